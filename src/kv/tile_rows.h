// Rows of one KV head to tiles and back.
//
// Separate from the cache, so that pages of a KVCache and pages that a caller manages are written and read by the same
// code. Called by KVCacheImpl and KVPagesImpl.
#ifndef HEADLANE_SRC_KV_TILE_ROWS_H_
#define HEADLANE_SRC_KV_TILE_ROWS_H_

#include <cstddef>
#include <cstdint>

#include "headlane/dtype.h"
#include "headlane/status.h"
#include "headlane/view.h"
#include "kernels/kernel_api.h"
#include "kv/row_feed.h"

namespace headlane::internal {

// What a tile holds.
struct TileFormat {
  DType k_dtype = DType::kF32;
  DType v_dtype = DType::kF32;
  int64_t qk_dim = 0;
  int64_t v_dim = 0;
  bool values_in_keys = false;
  const KvKernels* k_kernels = nullptr;
  const KvKernels* v_kernels = nullptr;  // nullptr: the values are in the keys

  // Encodes rows [token, token + count) of a head into slots [slot, slot + count) of its tiles. Returns whether a value
  // that is not finite went in. `v` and `v_tile` are not looked at where the values are in the keys. Requires: the
  // feeds are prepared.
  bool Write(RowFeed& k, RowFeed& v, int64_t token, int64_t head, int64_t slot, int64_t count, std::byte* k_tile,
             std::byte* v_tile) const noexcept;

  // The row in a slot, to f32, or to the 16-bit type that is stored; `stride` in elements.
  void ReadKey(const std::byte* k_tile, int64_t slot, DType out_dtype, void* row, int64_t stride) const noexcept;
  void ReadValue(const std::byte* v_tile, int64_t slot, DType out_dtype, void* row, int64_t stride) const noexcept;
};

// A row of batch entry 0.
inline void* RowOf(const TensorView& view, int64_t token, int64_t head) noexcept {
  return static_cast<std::byte*>(view.data) +
         (token * view.token_stride + head * view.head_stride) * DTypeBytes(view.dtype);
}

// Extents and addressing of one of k and v, for writing. Errors: InvalidArgument, Unsupported.
Status CheckRowsView(const char* name, const ConstTensorView& view, int64_t num_tokens, int64_t num_heads,
                     int64_t dim) noexcept;
// The same for reading rows stored as `stored`, into batch entry 0: f32, which holds every stored number exactly, or
// what is stored. Errors: also OutOfRange (no batch entry).
Status CheckReadsRows(const char* name, const TensorView& view, DType stored, int64_t num_tokens, int64_t num_heads,
                      int64_t dim) noexcept;
Status CheckBatchEntry(const char* name, int64_t batch, int64_t num_batch) noexcept;

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_KV_TILE_ROWS_H_
