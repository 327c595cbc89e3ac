// y = x W^T with W in tiles of 16 output features, stored as base/weight_tile.h says: the operand that kernels read
// front to back.
//
// Each output is one chain of FMAs over the inputs in ascending order. Blocks of inputs continue the chain from the
// stored sum, which is a float already: storing and reloading changes no bit. So nothing below can change a result: it
// is about caches and threads only.
//
// Few rows read the tiles once, from memory, and expand weights in registers. For many rows (Goto and van de Geijn
// 2008, names as there), from the outside in:
//   item           up to kItemRows rows x kPanelTiles tiles; the unit that workers take
//   kc             up to kMaxKc inputs of these tiles, expanded to an f32 panel (96 KiB, L2). So long because a change
//   of
//                  the panel costs the micro-kernel more than the second level of caches does: 94 GFLOP/s on a core
//                  whose peak is 104, against 88 with 256 inputs (Zen 3)
//   mc             kSubRows rows: their kc inputs stay in L1 while the tiles pass
//   mr, nr         the micro-kernel's registers
// Sums stay in a buffer of the item, so that y is written once, with what is added to or made of them. Both buffers are
// on the stack: no state, whoever calls. x is not packed: each broadcast reads the next float of a row.
//
// With LinearPrecision::kInt8 items have fewer rows and more tiles (RunInt8Items), because every item quantises its
// rows for itself: there is no memory that items could share. What is done for a float of x should be little beside its
// products with the item's features, and what is done for a weight beside its products with the item's rows.
#include "linear/tile_linear.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>
#include <utility>

#include "base/aligned_buffer.h"
#include "base/blocking.h"
#include "base/checked_math.h"
#include "base/weight_tile.h"
#include "exec/parallel_for.h"
#include "kernels/kernel_api.h"
#include "linear/first_error.h"
#include "linear/int8_sums.h"
#include "linear/pack_weights.h"

namespace headlane::internal {
namespace {

constexpr int64_t kTileFeatures = kTileKeys;

constexpr int64_t kRowStep = 6;  // rows of an item are a multiple: micro-kernels are full
constexpr int64_t kItemRows = 132;
static_assert(kItemRows % kRowStep == 0);
constexpr int64_t kSubRows = 12;
constexpr int64_t kPanelTiles = 2;
constexpr int64_t kMaxKc = 768;  // a multiple of every format's block
// Tiles that kernels of few rows take at once, at most.
constexpr int64_t kGroupTiles = 2;
// Floats of sums that few rows keep where these do not go to y straight away.
constexpr int64_t kFewSums = 4096;

// Tiles of an item of several rows with 8-bit activations, at most.
constexpr int64_t kInt8ItemTiles = 16;
static_assert(kInt8MaxRows % 8 == 0);

// With few rows a worker should find at least so many bytes of weights in an item: taking one costs a trip to the
// shared counter.
constexpr int64_t kMinItemBytes = 64 << 10;
// And so many items per worker, where there is enough work, so that a late worker leaves its share to the others.
constexpr int64_t kItemsPerWorker = 4;

// A part of a layer, packed.
struct Part {
  WeightFormat format = WeightFormat::kF32;
  int64_t out_features = 0;
  int64_t first_feature = 0;  // of all parts
  int64_t num_tiles = 0;
  int64_t tile_bytes = 0;
  int64_t offset = 0;  // of the tiles in the packed bytes
  const uint8_t* tiles = nullptr;
  const float* bias = nullptr;  // null: none
  WeightKernels kernels = {};
  const Int8Kernels* int8 = nullptr;  // null: activations stay as they are

  int64_t Features(int64_t tile_begin, int64_t tile_end) const {
    return std::min(tile_end * kTileFeatures, out_features) - tile_begin * kTileFeatures;
  }
};

// How a run is cut into items: blocks of rows x blocks of units. A unit is a tile, or a pair of them for SwiGLU.
struct Partition {
  int64_t rows_per_block;
  int64_t num_row_blocks;
  int64_t units_per_block;
  int64_t num_unit_blocks;
};

class TileLinear final : public LinearImpl {
 public:
  TileLinear(const LinearSpec& spec, const WeightLayout& layout) noexcept
      : LinearImpl(LinearBackend::kTile, layout.out_features, spec.in_features),
        kernels_(ActiveKernels()),
        output_(spec.output) {
    precision_ = spec.precision;
    std::snprintf(implementation_, sizeof(implementation_), "tile %s%s",
                  spec.precision == LinearPrecision::kInt8 ? "int8 " : "", kernels_.target);
  }

  // Fills parts_, whose tiles stand at `packed`, or in memory of the layer when that is empty.
  Status Init(const LinearSpec& spec, const WeightLayout& layout, std::span<const std::byte> packed) noexcept;
  Status Pack(const LinearSpec& spec, Executor& executor) noexcept;

  Status Run(const LinearOperands& operands, Executor& executor) const noexcept override {
    const int num_workers = std::max(executor.num_workers(), 1);
    ParallelFor(executor, NumItems(operands.rows, num_workers), 1,
                [&](int64_t begin, int64_t end) { RunItems(operands, num_workers, begin, end); });
    return OkStatus();
  }
  int64_t NumItems(int64_t rows, int num_workers) const noexcept override {
    const Partition cut = Cut(rows, num_workers);
    return cut.num_row_blocks * cut.num_unit_blocks;
  }
  void RunItems(const LinearOperands& operands, int num_workers, int64_t begin, int64_t end) const noexcept override;
  bool ReadWeights(int64_t feature, float* out) const noexcept override;

  LinearPrecision precision() const noexcept override { return precision_; }
  int64_t num_weight_rows() const noexcept override { return weight_rows_; }
  std::span<const std::byte> packed() const noexcept override { return packed_; }
  size_t weight_bytes() const noexcept override { return packed_.size(); }
  const char* implementation() const noexcept override { return implementation_; }

 private:
  bool is_pairs() const { return output_ == LinearOutput::kSwiGlu; }
  Partition Cut(int64_t rows, int64_t num_workers) const;
  Status PackTiles(const LinearPart& from, const Part& part, int64_t begin, int64_t end, FirstError& error,
                   int64_t first_tile) noexcept;

  // `scratch` is null where no part is multiplied with 8-bit activations.
  void FewRows(const LinearOperands& operands, int64_t unit_begin, int64_t unit_end, Int8Scratch* scratch) const;
  void FewRowsOfPart(const LinearOperands& operands, const Part& part, int64_t tile_begin, int64_t tile_end,
                     Int8Scratch* scratch) const;
  void FewRowsOfPair(const LinearOperands& operands, int64_t tile_begin, int64_t tile_end, Int8Scratch* scratch) const;
  void FewSums(const LinearOperands& operands, const Part& part, int64_t tile_begin, int64_t tile_end, float* sums,
               int64_t pitch, Int8Scratch* scratch) const;

  // Tiles of one part that are side by side in a panel, and in the buffer of sums.
  struct PanelRun {
    const Part* part;
    int64_t tile_begin, tile_end;
  };
  void ManyRows(const LinearOperands& operands, int64_t row_begin, int64_t row_end, int64_t unit_begin,
                int64_t unit_end) const;
  void PanelSums(const LinearOperands& operands, int64_t row_begin, int64_t row_end, const PanelRun* runs, int num_runs,
                 float* panel, int64_t max_kc, float* sums, int64_t pitch) const;
  void RunInt8Items(const LinearOperands& operands, const Partition& cut, int64_t begin, int64_t end) const;
  void Int8Rows(const LinearOperands& operands, int64_t row_begin, int64_t row_end, int64_t unit_begin,
                int64_t unit_end, Int8Scratch& scratch) const;
  Int8Run Int8RunOf(const Part& part, int64_t tile_begin, int64_t tile_end, float* sums) const {
    return {part.format,
            part.int8,
            part.tiles + tile_begin * part.tile_bytes,
            part.tile_bytes,
            tile_end - tile_begin,
            part.Features(tile_begin, tile_end),
            sums};
  }
  void Output(const PanelRun* runs, const LinearOperands& operands, int64_t row_begin, int64_t row_end, float* sums,
              int64_t pitch) const;

  const KernelTable& kernels_;
  LinearOutput output_;
  LinearPrecision precision_;
  bool has_int8_ = false;  // a part of it
  std::unique_ptr<Part[]> parts_;
  int num_parts_ = 0;
  int64_t num_units_ = 0;
  int64_t weight_rows_ = 0;
  AlignedBuffer buffer_;
  AlignedBuffer bias_;
  std::span<const std::byte> packed_;
  char implementation_[40];
};

Status TileLinear::Init(const LinearSpec& spec, const WeightLayout& layout,
                        std::span<const std::byte> packed) noexcept {
  parts_.reset(new (std::nothrow) Part[spec.parts.size()]);
  if (parts_ == nullptr) return MakeStatus(StatusCode::kResourceExhausted, "linear: no memory for a layer");
  // Untouched until a worker packs into it.
  if (packed.empty()) {
    HEADLANE_ASSIGN_OR_RETURN(buffer_, AlignedBuffer::Create(layout.packed_bytes, "weights of a linear layer"));
    packed = {buffer_.data(), static_cast<size_t>(layout.packed_bytes)};
  }
  bool has_bias = false;
  for (const LinearPart& from : spec.parts) has_bias = has_bias || from.bias != nullptr;
  if (has_bias) {
    HEADLANE_ASSIGN_OR_RETURN(
        bias_, AlignedBuffer::Create(layout.weight_rows * int64_t{sizeof(float)}, "biases of a linear layer"));
  }
  packed_ = packed;
  int64_t offset = 0;
  for (const LinearPart& from : spec.parts) {
    Part& part = parts_[num_parts_++];
    part.format = from.format;
    part.out_features = from.out_features;
    part.first_feature = weight_rows_;
    part.num_tiles = CeilDiv(from.out_features, kTileFeatures);
    part.tile_bytes = WeightTileBytes(from.format, spec.in_features);
    part.offset = offset;
    part.tiles = reinterpret_cast<const uint8_t*>(packed.data()) + offset;
    part.kernels = kernels_.weights[static_cast<int>(from.format)];
    if (spec.precision == LinearPrecision::kInt8 && WeightTileOf(from.format).block_len() > 1) {
      part.int8 = &kernels_.int8[static_cast<int>(from.format)];
      has_int8_ = true;
    }
    if (from.bias != nullptr) {
      float* const bias = bias_.as<float>() + weight_rows_;
      std::copy_n(from.bias, from.out_features, bias);
      part.bias = bias;
    }
    offset += part.num_tiles * part.tile_bytes;
    weight_rows_ += part.out_features;
    num_units_ += part.num_tiles;
  }
  if (is_pairs()) num_units_ /= 2;
  return OkStatus();
}

// Tiles [begin, end) of a part, through a buffer of 16 rows where they are not in memory.
Status TileLinear::PackTiles(const LinearPart& from, const Part& part, int64_t begin, int64_t end, FirstError& error,
                             int64_t first_tile) noexcept {
  const Result<int64_t> row_bytes = StoredRowBytes(from.format, in_features());
  if (!row_bytes.ok()) return row_bytes.status();
  const int64_t pitch = RoundUp(*row_bytes, 8);
  std::unique_ptr<uint8_t[]> buffer;
  if (from.rows.data == nullptr) {
    buffer.reset(new (std::nothrow) uint8_t[static_cast<size_t>(pitch * kTileFeatures)]);
    if (buffer == nullptr) {
      return MakeStatus(StatusCode::kResourceExhausted, "linear: no memory for 16 rows of %lld bytes to pack",
                        static_cast<long long>(*row_bytes));
    }
  }
  const int64_t stride = from.rows.row_stride == 0 ? *row_bytes : from.rows.row_stride;
  for (int64_t tile = begin; tile < end && error.ShouldTry(first_tile + tile); ++tile) {
    const int64_t num_rows = part.Features(tile, tile + 1);
    const uint8_t* rows[kTileFeatures] = {};
    for (int64_t i = 0; i < num_rows; ++i) {
      const int64_t row = tile * kTileFeatures + i;
      if (from.rows.data != nullptr) {
        rows[i] = static_cast<const uint8_t*>(from.rows.data) + row * stride;
      } else {
        uint8_t* const to = buffer.get() + i * pitch;
        HEADLANE_RETURN_IF_ERROR(from.rows.read(from.rows.context, row, to));
        rows[i] = to;
      }
    }
    PackWeightTile(part.format, part.int8 != nullptr, rows, num_rows, in_features(),
                   buffer_.as<uint8_t>() + part.offset + tile * part.tile_bytes);
  }
  return OkStatus();
}

Status TileLinear::Pack(const LinearSpec& spec, Executor& executor) noexcept {
  FirstError error;
  int64_t first_tile = 0;
  for (int i = 0; i < num_parts_; ++i) {
    const Part& part = parts_[i];
    // Ranges long enough that their buffer costs nothing, short enough that workers end together.
    const int64_t grain = std::max<int64_t>(part.num_tiles / (int64_t{8} * std::max(executor.num_workers(), 1)), 1);
    ParallelFor(executor, part.num_tiles, grain, [&](int64_t begin, int64_t end) {
      const Status status = PackTiles(spec.parts[static_cast<size_t>(i)], part, begin, end, error, first_tile);
      if (!status.ok()) error.Report(first_tile + begin, status);
    });
    if (const Status& status = error.status(); !status.ok()) return status;
    first_tile += part.num_tiles;
  }
  return OkStatus();
}

Partition TileLinear::Cut(int64_t rows, int64_t num_workers) const {
  Partition cut = {};
  if (has_int8_ && rows > 1) {
    cut.num_row_blocks = CeilDiv(rows, kInt8MaxRows);
    cut.rows_per_block = RoundUp(CeilDiv(rows, cut.num_row_blocks), 8);
    cut.num_row_blocks = CeilDiv(rows, cut.rows_per_block);
    const int64_t wanted = num_workers == 1 ? 1 : CeilDiv(num_workers * kItemsPerWorker, cut.num_row_blocks);
    cut.units_per_block =
        std::clamp<int64_t>(CeilDiv(num_units_, wanted), 1, is_pairs() ? kInt8ItemTiles / 2 : kInt8ItemTiles);
  } else if (rows <= kMaxWeightRows) {
    cut.rows_per_block = rows;
    cut.num_row_blocks = 1;
    // Blocks of whole groups of tiles that kernels take at once, as many for each worker.
    const int64_t num_groups = CeilDiv(num_units_, kGroupTiles);
    const int64_t bytes = static_cast<int64_t>(packed_.size());
    int64_t wanted =
        num_workers == 1 ? 1 : std::clamp(bytes / kMinItemBytes, num_workers, num_workers * kItemsPerWorker);
    wanted = RoundUp(wanted, num_workers);
    cut.units_per_block = CeilDiv(num_groups, std::min(wanted, num_groups)) * kGroupTiles;
  } else {
    cut.num_row_blocks = CeilDiv(rows, kItemRows);
    cut.rows_per_block = RoundUp(CeilDiv(rows, cut.num_row_blocks), kRowStep);  // at most kItemRows
    cut.num_row_blocks = CeilDiv(rows, cut.rows_per_block);
    cut.units_per_block = is_pairs() ? kPanelTiles / 2 : kPanelTiles;
  }
  cut.num_unit_blocks = CeilDiv(num_units_, cut.units_per_block);
  return cut;
}

void TileLinear::RunItems(const LinearOperands& operands, int num_workers, int64_t begin, int64_t end) const noexcept {
  const Partition cut = Cut(operands.rows, std::max(num_workers, 1));
  if (has_int8_) return RunInt8Items(operands, cut, begin, end);
  for (int64_t item = begin; item < end; ++item) {
    const int64_t row_begin = item / cut.num_unit_blocks * cut.rows_per_block;
    const int64_t unit_begin = item % cut.num_unit_blocks * cut.units_per_block;
    const int64_t unit_end = std::min(unit_begin + cut.units_per_block, num_units_);
    if (operands.rows <= kMaxWeightRows) {
      FewRows(operands, unit_begin, unit_end, nullptr);
    } else {
      ManyRows(operands, row_begin, std::min(row_begin + cut.rows_per_block, operands.rows), unit_begin, unit_end);
    }
  }
}

void TileLinear::FewRows(const LinearOperands& operands, int64_t unit_begin, int64_t unit_end,
                         Int8Scratch* scratch) const {
  if (is_pairs()) return FewRowsOfPair(operands, unit_begin, unit_end, scratch);
  int64_t first = 0;
  for (int i = 0; i < num_parts_; first += parts_[i++].num_tiles) {
    const int64_t begin = std::max<int64_t>(unit_begin - first, 0);
    const int64_t end = std::min(unit_end - first, parts_[i].num_tiles);
    if (begin < end) FewRowsOfPart(operands, parts_[i], begin, end, scratch);
  }
}

// sums [rows][pitch] = x * w^T + bias
void TileLinear::FewSums(const LinearOperands& operands, const Part& part, int64_t tile_begin, int64_t tile_end,
                         float* sums, int64_t pitch, Int8Scratch* scratch) const {
  WeightArgs args = {};
  args.x = operands.x;
  args.x_pitch = operands.x_stride;
  args.rows = operands.rows;
  args.k_len = in_features();
  args.w = part.tiles + tile_begin * part.tile_bytes;
  args.tile_bytes = part.tile_bytes;
  args.num_tiles = tile_end - tile_begin;
  args.y = sums;
  args.y_pitch = pitch;
  args.num_features = part.Features(tile_begin, tile_end);
  if (part.int8 != nullptr) {
    const Int8Run run = Int8RunOf(part, tile_begin, tile_end, sums);
    Int8Sums(kernels_, operands, 0, operands.rows, in_features(), {&run, 1}, pitch, *scratch);
  } else {
    part.kernels.few_rows(args);
  }
  if (part.bias == nullptr) return;
  for (int64_t row = 0; row < operands.rows; ++row) {
    kernels_.elementwise.add(part.bias + tile_begin * kTileFeatures, args.num_features, sums + row * pitch);
  }
}

void TileLinear::FewRowsOfPart(const LinearOperands& operands, const Part& part, int64_t tile_begin, int64_t tile_end,
                               Int8Scratch* scratch) const {
  float* const y = operands.y + part.first_feature;
  if (output_ == LinearOutput::kStore) {
    return FewSums(operands, part, tile_begin, tile_end, y + tile_begin * kTileFeatures, operands.y_stride, scratch);
  }
  alignas(64) float sums[kFewSums];
  const int64_t step = kFewSums / (operands.rows * kTileFeatures) / kGroupTiles * kGroupTiles;
  for (int64_t begin = tile_begin; begin < tile_end; begin += step) {
    const int64_t end = std::min(begin + step, tile_end);
    const int64_t pitch = (end - begin) * kTileFeatures;
    FewSums(operands, part, begin, end, sums, pitch, scratch);
    for (int64_t row = 0; row < operands.rows; ++row) {
      kernels_.elementwise.add(sums + row * pitch, part.Features(begin, end),
                               y + row * operands.y_stride + begin * kTileFeatures);
    }
  }
}

void TileLinear::FewRowsOfPair(const LinearOperands& operands, int64_t tile_begin, int64_t tile_end,
                               Int8Scratch* scratch) const {
  alignas(64) float gates[kFewSums];
  alignas(64) float ups[kFewSums];
  const int64_t step = kFewSums / (operands.rows * kTileFeatures) / kGroupTiles * kGroupTiles;
  for (int64_t begin = tile_begin; begin < tile_end; begin += step) {
    const int64_t end = std::min(begin + step, tile_end);
    const int64_t pitch = (end - begin) * kTileFeatures;
    FewSums(operands, parts_[0], begin, end, gates, pitch, scratch);
    FewSums(operands, parts_[1], begin, end, ups, pitch, scratch);
    for (int64_t row = 0; row < operands.rows; ++row) {
      kernels_.elementwise.silu_mul(gates + row * pitch, ups + row * pitch, parts_[0].Features(begin, end),
                                    operands.y + row * operands.y_stride + begin * kTileFeatures);
    }
  }
}

// sums [rows][pitch] = x * w^T of at most kPanelTiles tiles; the sums of tiles are 16 floats apart.
void TileLinear::PanelSums(const LinearOperands& operands, int64_t row_begin, int64_t row_end, const PanelRun* runs,
                           int num_runs, float* panel, int64_t max_kc, float* sums, int64_t pitch) const {
  const int64_t k = in_features();
  const int64_t kc = RoundUp(CeilDiv(k, CeilDiv(k, max_kc)), k % 256 == 0 ? 256 : 32);
  for (int64_t k_begin = 0; k_begin < k; k_begin += kc) {
    const int64_t k_end = std::min(k_begin + kc, k);
    LinearArgs args = {};
    args.x_pitch = operands.x_stride;
    args.k_len = k_end - k_begin;
    args.accumulate = k_begin > 0;
    args.y_pitch = pitch;
    int64_t first = 0;
    for (int i = 0; i < num_runs; ++i) {
      const Part& part = *runs[i].part;
      args.num_tiles = runs[i].tile_end - runs[i].tile_begin;
      args.num_features = args.num_tiles * kTileFeatures;
      const uint8_t* const tiles = part.tiles + runs[i].tile_begin * part.tile_bytes;
      if (part.kernels.expand == nullptr) {
        args.w = reinterpret_cast<const float*>(tiles) + k_begin * kTileFeatures;
        args.w_tile_stride = part.tile_bytes / int64_t{sizeof(float)};
      } else {
        args.w = panel;
        args.w_tile_stride = args.k_len * kTileFeatures;
        for (int64_t tile = 0; tile < args.num_tiles; ++tile) {
          part.kernels.expand({tiles + tile * part.tile_bytes, k_begin, k_end, panel + tile * args.w_tile_stride});
        }
      }
      for (int64_t row = row_begin; row < row_end; row += kSubRows) {
        args.x = operands.x + row * operands.x_stride + k_begin;
        args.rows = std::min(kSubRows, row_end - row);
        args.y = sums + (row - row_begin) * pitch + first * kTileFeatures;
        kernels_.linear_f32(args);
      }
      first += args.num_tiles;
    }
  }
}

// What becomes of the sums of rows [row_begin, row_end).
void TileLinear::Output(const PanelRun* runs, const LinearOperands& operands, int64_t row_begin, int64_t row_end,
                        float* sums, int64_t pitch) const {
  const int num_runs = is_pairs() ? 2 : 1;
  const Part& part = *runs[0].part;
  const int64_t begin = runs[0].tile_begin * kTileFeatures;
  const int64_t num_features = part.Features(runs[0].tile_begin, runs[0].tile_end);
  const int64_t up = (runs[0].tile_end - runs[0].tile_begin) * kTileFeatures;
  for (int64_t row = row_begin; row < row_end; ++row, sums += pitch) {
    for (int i = 0; i < num_runs; ++i) {
      const float* const bias = runs[i].part->bias;
      if (bias != nullptr) kernels_.elementwise.add(bias + begin, num_features, sums + i * up);
    }
    float* const y = operands.y + row * operands.y_stride + part.first_feature + begin;
    switch (output_) {
      case LinearOutput::kStore:
        std::memcpy(y, sums, static_cast<size_t>(num_features) * sizeof(float));
        break;
      case LinearOutput::kAdd:
        kernels_.elementwise.add(sums, num_features, y);
        break;
      case LinearOutput::kSwiGlu:
        kernels_.elementwise.silu_mul(sums, sums + up, num_features, y);
        break;
    }
  }
}

void TileLinear::ManyRows(const LinearOperands& operands, int64_t row_begin, int64_t row_end, int64_t unit_begin,
                          int64_t unit_end) const {
  alignas(64) float panel[kPanelTiles * kTileFeatures * kMaxKc];
  alignas(64) float sums[kItemRows * kPanelTiles * kTileFeatures];
  constexpr int64_t kPitch = kPanelTiles * kTileFeatures;
  if (is_pairs()) {
    const PanelRun runs[2] = {{&parts_[0], unit_begin, unit_end}, {&parts_[1], unit_begin, unit_end}};
    PanelSums(operands, row_begin, row_end, runs, 2, panel, kMaxKc, sums, kPitch);
    return Output(runs, operands, row_begin, row_end, sums, kPitch);
  }
  int64_t first = 0;
  for (int i = 0; i < num_parts_; first += parts_[i++].num_tiles) {
    const PanelRun run = {&parts_[i], std::max<int64_t>(unit_begin - first, 0),
                          std::min(unit_end - first, parts_[i].num_tiles)};
    if (run.tile_begin >= run.tile_end) continue;
    PanelSums(operands, row_begin, row_end, &run, 1, panel, kMaxKc, sums, kPitch);
    Output(&run, operands, row_begin, row_end, sums, kPitch);
  }
}

// Rows of an item with 8-bit activations, and more of them than one.
void TileLinear::Int8Rows(const LinearOperands& operands, int64_t row_begin, int64_t row_end, int64_t unit_begin,
                          int64_t unit_end, Int8Scratch& scratch) const {
  alignas(64) float sums[kInt8MaxRows * kInt8ItemTiles * kTileFeatures];
  PanelRun runs[2];
  int64_t first = 0;
  for (int i = 0; i < num_parts_; first += parts_[i++].num_tiles) {
    int num_runs = 0;
    if (is_pairs()) {
      for (const Part* part : {&parts_[0], &parts_[1]}) runs[num_runs++] = {part, unit_begin, unit_end};
    } else {
      runs[num_runs++] = {&parts_[i], std::max<int64_t>(unit_begin - first, 0),
                          std::min(unit_end - first, parts_[i].num_tiles)};
    }
    if (runs[0].tile_begin >= runs[0].tile_end) continue;
    const int64_t width = (runs[0].tile_end - runs[0].tile_begin) * kTileFeatures, pitch = width * num_runs;
    Int8Run int8_runs[2];
    size_t num_int8 = 0;
    for (int j = 0; j < num_runs; ++j) {
      const PanelRun& run = runs[j];
      float* const to = sums + j * width;
      if (run.part->int8 != nullptr) {
        int8_runs[num_int8++] = Int8RunOf(*run.part, run.tile_begin, run.tile_end, to);
        continue;
      }
      // A tile at a time, as the panel here is a small one.
      constexpr int64_t kKc = 256;
      static_assert(kKc * kTileFeatures * sizeof(float) <= Int8Scratch::kPanelBytes);
      for (int64_t tile = run.tile_begin; tile < run.tile_end; ++tile) {
        const PanelRun one = {run.part, tile, tile + 1};
        PanelSums(operands, row_begin, row_end, &one, 1, reinterpret_cast<float*>(scratch.panel()), kKc,
                  to + (tile - run.tile_begin) * kTileFeatures, pitch);
      }
    }
    if (num_int8 > 0) {
      Int8Sums(kernels_, operands, row_begin, row_end - row_begin, in_features(), {int8_runs, num_int8}, pitch,
               scratch);
    }
    Output(runs, operands, row_begin, row_end, sums, pitch);
    if (is_pairs()) return;
  }
}

// As RunItems, for layers that have 8-bit activations: quantised rows stay from item to item.
void TileLinear::RunInt8Items(const LinearOperands& operands, const Partition& cut, int64_t begin, int64_t end) const {
  Int8Scratch scratch;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t row_begin = item / cut.num_unit_blocks * cut.rows_per_block;
    const int64_t unit_begin = item % cut.num_unit_blocks * cut.units_per_block;
    const int64_t unit_end = std::min(unit_begin + cut.units_per_block, num_units_);
    if (operands.rows == 1) {
      FewRows(operands, unit_begin, unit_end, &scratch);
    } else {
      Int8Rows(operands, row_begin, std::min(row_begin + cut.rows_per_block, operands.rows), unit_begin, unit_end,
               scratch);
    }
  }
}

bool TileLinear::ReadWeights(int64_t feature, float* out) const noexcept {
  const Part* part = &parts_[0];
  while (feature >= part->first_feature + part->out_features) ++part;
  const int64_t row = feature - part->first_feature;
  const uint8_t* const tile = part->tiles + row / kTileFeatures * part->tile_bytes;
  if (part->int8 != nullptr) {
    ReadInt8Weights(part->format, tile, row % kTileFeatures, in_features(), out);
    return true;
  }
  alignas(64) float panel[kTileFeatures * kMaxKc];
  for (int64_t k_begin = 0; k_begin < in_features(); k_begin += kMaxKc) {
    const int64_t k_end = std::min(k_begin + kMaxKc, in_features());
    const float* weights = panel;
    if (part->kernels.expand == nullptr) {
      weights = reinterpret_cast<const float*>(tile) + k_begin * kTileFeatures;
    } else {
      part->kernels.expand({tile, k_begin, k_end, panel});
    }
    for (int64_t k = k_begin; k < k_end; ++k) out[k] = weights[(k - k_begin) * kTileFeatures + row % kTileFeatures];
  }
  return true;
}

Status NewTileLinear(const LinearSpec& spec, const WeightLayout& layout, std::span<const std::byte> packed,
                     std::unique_ptr<TileLinear>* layer) noexcept {
  layer->reset(new (std::nothrow) TileLinear(spec, layout));
  if (*layer == nullptr) return MakeStatus(StatusCode::kResourceExhausted, "linear: no memory for a layer");
  return (*layer)->Init(spec, layout, packed);
}

}  // namespace

Status CreateTileLinear(const LinearSpec& spec, const WeightLayout& layout, Executor& executor,
                        std::unique_ptr<LinearImpl>* impl) noexcept {
  std::unique_ptr<TileLinear> layer;
  HEADLANE_RETURN_IF_ERROR(NewTileLinear(spec, layout, {}, &layer));
  HEADLANE_RETURN_IF_ERROR(layer->Pack(spec, executor));
  *impl = std::move(layer);
  return OkStatus();
}

Status CreatePackedTileLinear(const LinearSpec& spec, const WeightLayout& layout, std::span<const std::byte> packed,
                              std::unique_ptr<LinearImpl>* impl) noexcept {
  std::unique_ptr<TileLinear> layer;
  HEADLANE_RETURN_IF_ERROR(NewTileLinear(spec, layout, packed, &layer));
  *impl = std::move(layer);
  return OkStatus();
}

}  // namespace headlane::internal
