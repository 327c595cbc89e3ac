// y = x W^T with W in tiles of 16 output features, [ceil(out / 16)][in][16]: the operand that the micro-kernel reads
// front to back.
//
// Each output is one chain of FMAs over the inputs in ascending order. Blocks of inputs continue the chain from the
// stored sum, which is a float already: storing and reloading changes no bit. So nothing below can change a result: it
// is about caches and threads only.
//
// Blocking (Goto and van de Geijn 2008, names as there), from the outside in:
//   item           kItemRows rows x up to kItemTiles tiles; the unit that workers take
//   kc             kKc inputs: the part of the item's tiles that stays in L2 (240 KiB), one tile's part in L1 (20 KiB)
//   mc             kSubRows rows: their kc inputs stay close (30 KiB) while the tiles pass; few, so that rows at a
//                  pitch of a power of two, which all fall into the same sets of a cache, still fit
//   mr, nr         the micro-kernel's registers
// x is not packed: each broadcast reads the next float of a row, and only kMaxRegisterRows rows are read at a time.
#include "linear/tile_linear.h"

#include <algorithm>
#include <cstdio>
#include <new>
#include <utility>

#include "base/aligned_buffer.h"
#include "base/blocking.h"
#include "base/checked_math.h"
#include "exec/parallel_for.h"
#include "kernels/kernel_api.h"
#include "linear/first_error.h"

namespace headlane::internal {
namespace {

constexpr int64_t kTileFeatures = kTileKeys;

// The rows that the micro-kernel computes in one pass over a tile: up to so many, weights are used once and nothing is
// gained by blocking.
constexpr int64_t kMaxRegisterRows = 6;
constexpr int64_t kSubRows = 24;
constexpr int64_t kItemRows = 192;
constexpr int64_t kItemTiles = 12;
constexpr int64_t kKc = 320;

// With few rows a worker should find at least so many bytes of weights in an item: taking one costs a trip to the
// shared counter.
constexpr int64_t kMinItemBytes = 256 << 10;
// And so many items per worker, where there is enough work, so that a late worker leaves its share to the others.
constexpr int64_t kItemsPerWorker = 4;

// How a run is cut into items. Row blocks are equal but for the last, tile blocks differ by one at most.
struct Partition {
  int64_t rows_per_block;
  int64_t num_row_blocks;
  int64_t num_tile_blocks;
};

Partition Cut(int64_t rows, int64_t num_tiles, int64_t tile_bytes, int64_t num_workers) {
  Partition cut = {};
  cut.rows_per_block = RoundUp(CeilDiv(rows, CeilDiv(rows, kItemRows)), kMaxRegisterRows);
  cut.num_row_blocks = CeilDiv(rows, cut.rows_per_block);
  int64_t wanted = num_workers * kItemsPerWorker;
  if (rows > kSubRows) {
    cut.num_tile_blocks = CeilDiv(num_tiles, kItemTiles);
  } else {
    cut.num_tile_blocks = 1;
    wanted = std::clamp(num_tiles * tile_bytes / kMinItemBytes, num_workers, wanted);
  }
  if (num_workers > 1) {
    cut.num_tile_blocks = std::max(cut.num_tile_blocks, CeilDiv(wanted, cut.num_row_blocks));
    // As many items for each worker.
    while (cut.num_tile_blocks < num_tiles && cut.num_row_blocks * cut.num_tile_blocks % num_workers != 0) {
      ++cut.num_tile_blocks;
    }
  }
  cut.num_tile_blocks = std::min(cut.num_tile_blocks, num_tiles);
  return cut;
}

class TileLinear final : public LinearImpl {
 public:
  TileLinear(int64_t out_features, int64_t in_features) noexcept
      : LinearImpl(LinearBackend::kTile, out_features, in_features),
        kernels_(ActiveKernels()),
        num_tiles_(CeilDiv(out_features, kTileFeatures)) {
    std::snprintf(implementation_, sizeof(implementation_), "tile %s", kernels_.target);
  }

  Status Pack(const WeightRows& rows, Executor& executor) noexcept;
  Status Run(const float* x, int64_t x_stride, int64_t rows, float* y, int64_t y_stride,
             Executor& executor) const noexcept override;

  size_t weight_bytes() const noexcept override { return static_cast<size_t>(weights_.bytes()); }
  const char* implementation() const noexcept override { return implementation_; }

 private:
  int64_t tile_floats() const { return in_features() * kTileFeatures; }
  Status PackTile(const WeightRows& rows, int64_t tile, float* buffer) noexcept;

  const KernelTable& kernels_;
  int64_t num_tiles_;
  AlignedBuffer weights_;  // [num_tiles][in_features][16], features that do not exist are 0
  char implementation_[40];
};

// Through a buffer of 16 rows.
Status TileLinear::PackTile(const WeightRows& rows, int64_t tile, float* buffer) noexcept {
  const int64_t k = in_features();
  const int64_t first = tile * kTileFeatures;
  const int64_t num_rows = std::min(kTileFeatures, out_features() - first);
  for (int64_t row = 0; row < num_rows; ++row) {
    HEADLANE_RETURN_IF_ERROR(rows.read(rows.context, first + row, buffer + row * k));
  }
  PackTileArgs args = {};
  args.rows = buffer;
  args.row_stride = k;
  args.dim_stride = 1;
  args.dim = k;
  args.num_keys = num_rows;
  args.tile = weights_.as<float>() + tile * tile_floats();
  kernels_.kv[0].pack_k(args);
  return OkStatus();
}

Status TileLinear::Pack(const WeightRows& rows, Executor& executor) noexcept {
  int64_t bytes = 0;
  if (!CheckedProduct({num_tiles_, kTileFeatures, in_features(), int64_t{sizeof(float)}}, &bytes)) {
    return MakeStatus(StatusCode::kResourceExhausted, "linear: weights of [%lld, %lld] exceed memory",
                      static_cast<long long>(out_features()), static_cast<long long>(in_features()));
  }
  // Untouched until a worker packs into it, and zero where none does: the padding of the last tile.
  HEADLANE_ASSIGN_OR_RETURN(weights_, AlignedBuffer::Create(bytes, "weights of a linear layer"));
  FirstError error;
  // Ranges long enough that their buffer costs nothing, short enough that workers end together.
  const int64_t grain = std::max<int64_t>(num_tiles_ / (int64_t{8} * std::max(executor.num_workers(), 1)), 1);
  ParallelFor(executor, num_tiles_, grain, [&](int64_t begin, int64_t end) {
    const std::unique_ptr<float[]> buffer(new (std::nothrow) float[static_cast<size_t>(tile_floats())]);
    for (int64_t tile = begin; tile < end && error.ShouldTry(tile); ++tile) {
      const Status status = buffer != nullptr ? PackTile(rows, tile, buffer.get())
                                              : MakeStatus(StatusCode::kResourceExhausted,
                                                           "linear: no memory for 16 rows of %lld weights to pack",
                                                           static_cast<long long>(in_features()));
      if (!status.ok()) error.Report(tile, status);
    }
  });
  return error.status();
}

Status TileLinear::Run(const float* x, int64_t x_stride, int64_t rows, float* y, int64_t y_stride,
                       Executor& executor) const noexcept {
  const int64_t k = in_features();
  const Partition cut =
      Cut(rows, num_tiles_, tile_floats() * int64_t{sizeof(float)}, std::max(executor.num_workers(), 1));
  const int64_t kc = rows <= kMaxRegisterRows ? k : CeilDiv(k, CeilDiv(k, kKc));
  ParallelFor(executor, cut.num_row_blocks * cut.num_tile_blocks, 1, [&](int64_t item, int64_t) {
    const int64_t row_block = item % cut.num_row_blocks, tile_block = item / cut.num_row_blocks;
    const int64_t row_begin = row_block * cut.rows_per_block;
    const int64_t row_end = std::min(rows, row_begin + cut.rows_per_block);
    const int64_t tile_begin = tile_block * num_tiles_ / cut.num_tile_blocks;
    const int64_t tile_end = (tile_block + 1) * num_tiles_ / cut.num_tile_blocks;
    for (int64_t k_begin = 0; k_begin < k; k_begin += kc) {
      for (int64_t row = row_begin; row < row_end; row += kSubRows) {
        LinearArgs args = {};
        args.x = x + row * x_stride + k_begin;
        args.x_pitch = x_stride;
        args.rows = std::min(kSubRows, row_end - row);
        args.k_len = std::min(kc, k - k_begin);
        args.w = weights_.as<float>() + tile_begin * tile_floats() + k_begin * kTileFeatures;
        args.w_tile_stride = tile_floats();
        args.num_tiles = tile_end - tile_begin;
        args.accumulate = k_begin > 0;
        args.y = y + row * y_stride + tile_begin * kTileFeatures;
        args.y_pitch = y_stride;
        args.num_features =
            std::min((tile_end - tile_begin) * kTileFeatures, out_features() - tile_begin * kTileFeatures);
        kernels_.linear_f32(args);
      }
    }
  });
  return OkStatus();
}

}  // namespace

Status CreateTileLinear(int64_t out_features, int64_t in_features, const WeightRows& rows, Executor& executor,
                        std::unique_ptr<LinearImpl>* impl) noexcept {
  std::unique_ptr<TileLinear> layer(new (std::nothrow) TileLinear(out_features, in_features));
  if (layer == nullptr) return MakeStatus(StatusCode::kResourceExhausted, "linear: no memory for a layer");
  HEADLANE_RETURN_IF_ERROR(layer->Pack(rows, executor));
  *impl = std::move(layer);
  return OkStatus();
}

}  // namespace headlane::internal
