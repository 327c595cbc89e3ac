#include "bench/counted_weights.h"

#include <cstring>

#include "base/blocking.h"
#include "base/weight_tile.h"

namespace headlane::bench {
namespace {

using internal::kTileKeys;

// A block of the formats with the longest ones, and as many tiles as any kernel reads at a time.
constexpr int64_t kInputs = 256;
constexpr int64_t kTiles = 4;
constexpr int64_t kUnitInputs = 32;
constexpr int64_t kMaxRows = 8;
constexpr int64_t kPanelRows = 4;
// No format takes more than F32.
constexpr int64_t kTileFloats = kInputs * kTileKeys;
constexpr int64_t kFloatBytes = sizeof(float);

constexpr WeightFormat kFormats[] = {WeightFormat::kF32,  WeightFormat::kF16,  WeightFormat::kQ8_0, WeightFormat::kQ4_0,
                                     WeightFormat::kQ5_0, WeightFormat::kQ4_K, WeightFormat::kQ6_K};

double Units(int64_t rows, int64_t tiles) { return static_cast<double>(rows * tiles * (kInputs / kUnitInputs)); }

}  // namespace

// Activations of 8 bits are zeros: no kernel's way through them depends on what they are. Bytes of weights are such
// that every number among them is one in every format, f16 and f32 included: sums of nothing, and of what is not
// finite, may be computed twice.
CountedWeights::CountedWeights(const internal::KernelTable& table)
    : table_(table),
      x_(kMaxRows * kInputs),
      tiles_(kTiles * kTileFloats),
      panel_(kTileFloats),
      y_(kMaxRows * kTiles * kTileKeys),
      codes_(kMaxRows * kInputs / kFloatBytes),
      pairs_(kMaxRows * kInputs / 2),
      groups_(kMaxRows * kInputs / kTileKeys * static_cast<int64_t>(sizeof(internal::Int8Group)) / kFloatBytes) {
  static_assert(kInputs / kUnitInputs * internal::kInt8PanelBytes <= kTileFloats * kFloatBytes);
  x_.Fill(5);
  std::memset(tiles_.data(), 0x3C, static_cast<size_t>(kTiles * kTileFloats * kFloatBytes));
  quantized_ = {reinterpret_cast<int8_t*>(codes_.data()), reinterpret_cast<int32_t*>(pairs_.data()),
                reinterpret_cast<internal::Int8Group*>(groups_.data()), kInputs, 0};
}

void CountedWeights::AddTo(std::vector<Case>* cases) {
  for (const WeightFormat format : kFormats) AddFormat(format, cases);
  for (const WeightFormat format : kFormats) AddInt8(format, cases);
  cases->push_back({"int8_quantize", Units(1, 1), [this] { Quantize(); }});
}

void CountedWeights::AddFormat(WeightFormat format, std::vector<Case>* cases) {
  const std::string name = WeightFormatName(format);
  for (const int64_t rows : {1, 4, 8}) {
    cases->push_back({"weights/" + name + "/rows:" + std::to_string(rows), Units(rows, kTiles),
                      [this, format, rows] { FewRows(format, rows); }});
  }
  const auto expand = table_.weights[static_cast<int>(format)].expand;
  if (expand == nullptr) return;
  cases->push_back({"expand/" + name, Units(1, 1), [this, expand] { Expand(expand); }});
}

void CountedWeights::AddInt8(WeightFormat format, std::vector<Case>* cases) {
  const internal::Int8Kernels& kernels = table_.int8[static_cast<int>(format)];
  if (kernels.one_row == nullptr) return;
  const std::string name = WeightFormatName(format);
  cases->push_back({"int8_weights/" + name + "/rows:1", Units(1, kTiles), [this, format] { OneRow(format); }});
  cases->push_back({"int8_weights/" + name + "/rows:" + std::to_string(kPanelRows), Units(kPanelRows, 1),
                    [this, format] { RowsOfPanel(format); }});
  cases->push_back({"int8_expand/" + name, Units(1, 1), [this, &kernels] { Expand(kernels.expand); }});
}

void CountedWeights::FewRows(WeightFormat format, int64_t rows) {
  internal::WeightArgs args{};
  args.x = x_.data();
  args.x_pitch = kInputs;
  args.rows = rows;
  args.k_len = kInputs;
  args.w = tiles();
  args.tile_bytes = internal::WeightTileBytes(format, kInputs);
  args.num_tiles = kTiles;
  args.y = y_.data();
  args.y_pitch = kTiles * kTileKeys;
  args.num_features = kTiles * kTileKeys;
  table_.weights[static_cast<int>(format)].few_rows(args);
}

void CountedWeights::Expand(void (*expand)(const internal::ExpandArgs&) noexcept) {
  expand({tiles(), 0, kInputs, panel_.data()});
}

void CountedWeights::Quantize() {
  const internal::Int8Operand& operand = table_.int8[static_cast<int>(WeightFormat::kQ4_0)].operand;
  quantized_.group_pitch = kInputs / operand.group;
  table_.quantize({x_.data(), kInputs, 1, kInputs, operand, quantized_});
}

internal::Int8Args CountedWeights::ArgsOf(const internal::Int8Kernels& kernels, int64_t rows) {
  quantized_.group_pitch = kInputs / kernels.operand.group;
  internal::Int8Args args{};
  args.x = quantized_;
  args.rows = rows;
  args.num_groups = kInputs / kernels.operand.group;
  args.y = y_.data();
  args.y_pitch = kTiles * kTileKeys;
  return args;
}

void CountedWeights::OneRow(WeightFormat format) {
  const internal::Int8Kernels& kernels = table_.int8[static_cast<int>(format)];
  internal::Int8Args args = ArgsOf(kernels, 1);
  args.w = tiles();
  args.tile_bytes = internal::WeightTileBytes(format, kInputs);
  args.num_tiles = kTiles;
  args.num_features = kTiles * kTileKeys;
  kernels.one_row(args);
}

void CountedWeights::RowsOfPanel(WeightFormat format) {
  const internal::Int8Kernels& kernels = table_.int8[static_cast<int>(format)];
  internal::Int8Args args = ArgsOf(kernels, kPanelRows);
  args.w = reinterpret_cast<const uint8_t*>(panel_.data());
  args.num_tiles = 1;
  kernels.rows(args);
}

}  // namespace headlane::bench
