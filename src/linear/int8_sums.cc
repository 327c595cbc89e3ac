#include "linear/int8_sums.h"

#include <algorithm>

#include "base/blocking.h"
#include "base/weight_tile.h"

namespace headlane::internal {
namespace {

// For so many rows making a panel of a tile takes longer than reading its codes again for each row: of codes of 8 bits,
// whose panel is large, and of 6 bits, which have twice the scales.
constexpr int64_t kFewRows = 6;

}  // namespace

const Int8Rows& Int8Scratch::Quantize(const KernelTable& kernels, const Int8Operand& operand,
                                      const LinearOperands& operands, int64_t row_begin, int64_t rows, int64_t k_begin,
                                      int64_t k_len) {
  const Key key = {row_begin, rows, k_begin, k_len, operand.group, operand.center};
  if (key == key_) return rows_;
  key_ = key;
  rows_.pitch = k_len;
  rows_.group_pitch = k_len / operand.group;
  QuantizeArgs args = {};
  args.x = operands.x + row_begin * operands.x_stride + k_begin;
  args.x_pitch = operands.x_stride;
  args.rows = rows;
  args.k_len = k_len;
  args.operand = operand;
  args.to = rows_;
  kernels.quantize(args);
  return rows_;
}

void Int8Sums(const KernelTable& kernels, const LinearOperands& operands, int64_t row_begin, int64_t rows,
              int64_t in_features, std::span<const Int8Run> runs, int64_t pitch, Int8Scratch& scratch) {
  int64_t block_len = 1;  // a multiple of every other's
  for (const Int8Run& run : runs) block_len = std::max<int64_t>(block_len, WeightTileOf(run.format).block_len());
  int64_t most = Int8Scratch::kMaxCodes / rows;
  if (rows > 1) most = std::min(most, Int8Scratch::kMaxPanelInputs);
  most = most / block_len * block_len;
  const int64_t kc = RoundUp(CeilDiv(in_features, CeilDiv(in_features, most)), block_len);
  for (int64_t k_begin = 0; k_begin < in_features; k_begin += kc) {
    const int64_t k_len = std::min(kc, in_features - k_begin);
    for (const Int8Run& run : runs) {
      const WeightTileInfo info = WeightTileOf(run.format);
      const Int8Operand& operand = run.kernels->operand;
      Int8Args args = {};
      args.x = scratch.Quantize(kernels, operand, operands, row_begin, rows, k_begin, k_len);
      args.rows = rows;
      args.num_groups = k_len / operand.group;
      args.accumulate = k_begin > 0;
      args.y_pitch = pitch;
      if (rows == 1) {
        args.w = run.tiles + k_begin / info.block_len() * info.block_bytes;
        args.tile_bytes = run.tile_bytes;
        args.num_tiles = run.num_tiles;
        args.y = run.sums;
        args.num_features = run.num_features;
        run.kernels->one_row(args);
        continue;
      }
      args.num_tiles = 1;
      if (rows <= kFewRows && info.bits >= 6) {
        const Int8Rows x = args.x;
        args.tile_bytes = run.tile_bytes;
        args.num_features = kTileKeys;
        for (int64_t tile = 0; tile < run.num_tiles; ++tile) {
          args.w = run.tiles + tile * run.tile_bytes + k_begin / info.block_len() * info.block_bytes;
          for (int64_t row = 0; row < rows; ++row) {
            args.x.codes = x.codes + row * x.pitch;
            args.x.pairs = x.pairs + row * (x.pitch / 2);
            args.x.groups = x.groups + row * x.group_pitch;
            args.y = run.sums + row * pitch + tile * kTileKeys;
            run.kernels->one_row(args);
          }
        }
        continue;
      }
      args.w = scratch.panel();
      for (int64_t tile = 0; tile < run.num_tiles; ++tile) {
        run.kernels->expand(
            {run.tiles + tile * run.tile_bytes, k_begin, k_begin + k_len, reinterpret_cast<float*>(scratch.panel())});
        args.y = run.sums + tile * kTileKeys;
        run.kernels->rows(args);
      }
    }
  }
}

}  // namespace headlane::internal
