#include "kv/tile_rows.h"

#include <cstring>

#include "base/checked_math.h"
#include "base/float16.h"
#include "base/quantized.h"
#include "base/tile_layout.h"
#include "base/view_check.h"

namespace headlane::internal {
namespace {

long long LL(int64_t value) { return static_cast<long long>(value); }

// View is ConstTensorView or TensorView.
template <typename View>
Status CheckRows(const char* name, const View& view, int64_t num_tokens, int64_t num_heads, int64_t dim) {
  const struct {
    const char* field;
    int64_t value;
    int64_t expected;
  } extents[] = {
      {"num_heads", view.num_heads, num_heads}, {"dim", view.dim, dim}, {"num_tokens", view.num_tokens, num_tokens}};
  for (const auto& [field, value, expected] : extents) {
    if (value != expected) {
      return MakeStatus(StatusCode::kInvalidArgument, "%s: %s is %lld, must be %lld", name, field, LL(value),
                        LL(expected));
    }
  }
  return CheckView(name, view);
}

// Whether one of features [0, dim) of slots [begin, begin + count) of a K tile is not finite.
template <typename T>
bool HoldsNonFinite(DType dtype, const std::byte* tile, T exponent, int64_t dim, int64_t begin, int64_t count) {
  bool found = false;
  for (int64_t d = 0; d < dim; ++d) {
    for (int64_t slot = begin; slot < begin + count; ++slot) {
      T bits;
      std::memcpy(&bits, tile + KTileIndex(dtype, d, slot) * static_cast<int64_t>(sizeof(T)), sizeof(T));
      found |= (bits & exponent) == exponent;
    }
  }
  return found;
}
bool HoldsNonFinite(DType dtype, const std::byte* tile, int64_t qk_dim, int64_t dim, int64_t begin, int64_t count) {
  if (IsQuantized(dtype)) {
    bool found = false;
    for (int64_t d = 0; d < dim; ++d) {
      for (int64_t slot = begin; slot < begin + count; ++slot) {
        const float x = KTileElement(dtype, tile, qk_dim, d, slot);
        found |= !(x - x == 0.0f);
      }
    }
    return found;
  }
  if (dtype == DType::kF32) return HoldsNonFinite<uint32_t>(dtype, tile, 0x7F800000u, dim, begin, count);
  const uint16_t exponent = dtype == DType::kF16 ? 0x7C00 : 0x7F80;
  return HoldsNonFinite<uint16_t>(dtype, tile, exponent, dim, begin, count);
}

// The number at `index` of a tile, exactly. Bytes are copied: on some targets a float that is loaded and stored may
// lose its NaN payload.
void ReadElement(DType dtype, const std::byte* tile, int64_t index, DType out_dtype, void* row, int64_t i) {
  if (dtype == DType::kF32) {
    std::memcpy(static_cast<float*>(row) + i, tile + index * static_cast<int64_t>(sizeof(float)), sizeof(float));
    return;
  }
  uint16_t bits;
  std::memcpy(&bits, tile + index * static_cast<int64_t>(sizeof(bits)), sizeof(bits));
  if (out_dtype == dtype) {
    static_cast<uint16_t*>(row)[i] = bits;
  } else {
    static_cast<float*>(row)[i] = dtype == DType::kF16 ? F16ToF32(bits) : BF16ToF32(bits);
  }
}

}  // namespace

bool TileFormat::Write(RowFeed& k, RowFeed& v, int64_t token, int64_t head, int64_t slot, int64_t count,
                       std::byte* k_tile, std::byte* v_tile) const noexcept {
  k.ForEachPiece(token, head, count, [&](PackTileArgs pack, int64_t offset) {
    pack.slot_begin = slot + offset;
    pack.tile = k_tile;
    k_kernels->pack_k(pack);
  });
  if (values_in_keys) return HoldsNonFinite(k_dtype, k_tile, qk_dim, v_dim, slot, count);
  bool non_finite = false;
  v.ForEachPiece(token, head, count, [&](PackTileArgs pack, int64_t offset) {
    bool in_piece = false;
    pack.slot_begin = slot + offset;
    pack.tile = v_tile;
    pack.non_finite = &in_piece;
    v_kernels->pack_v(pack);
    non_finite |= in_piece;
  });
  return non_finite;
}

void TileFormat::ReadKey(const std::byte* k_tile, int64_t slot, DType out_dtype, void* row,
                         int64_t stride) const noexcept {
  for (int64_t i = 0; i < qk_dim; ++i) {
    if (IsQuantized(k_dtype)) {
      static_cast<float*>(row)[i * stride] = KTileElement(k_dtype, k_tile, qk_dim, i, slot);
    } else {
      ReadElement(k_dtype, k_tile, KTileIndex(k_dtype, i, slot), out_dtype, row, i * stride);
    }
  }
}

void TileFormat::ReadValue(const std::byte* v_tile, int64_t slot, DType out_dtype, void* row,
                           int64_t stride) const noexcept {
  for (int64_t i = 0; i < v_dim; ++i) {
    if (IsQuantized(v_dtype)) {
      static_cast<float*>(row)[i * stride] = VTileElement(v_dtype, v_tile, v_dim, i, slot);
    } else {
      ReadElement(v_dtype, v_tile, VTileIndex(v_dtype, i, slot), out_dtype, row, i * stride);
    }
  }
}

Status CheckRowsView(const char* name, const ConstTensorView& view, int64_t num_tokens, int64_t num_heads,
                     int64_t dim) noexcept {
  return CheckRows(name, view, num_tokens, num_heads, dim);
}

Status CheckReadsRows(const char* name, const TensorView& view, DType stored, int64_t num_tokens, int64_t num_heads,
                      int64_t dim) noexcept {
  if (DTypeBytes(view.dtype) != 0 && view.dtype != DType::kF32 && view.dtype != stored) {
    return MakeStatus(StatusCode::kUnsupported, "%s: rows are %s, a cache of %s gives f32%s%s", name,
                      DTypeName(view.dtype), DTypeName(stored), DTypeBytes(stored) == 2 ? " and " : "",
                      DTypeBytes(stored) == 2 ? DTypeName(stored) : "");
  }
  HEADLANE_RETURN_IF_ERROR(CheckRows(name, view, num_tokens, num_heads, dim));
  return CheckBatchEntry(name, 0, view.num_batch);
}

Status CheckBatchEntry(const char* name, int64_t batch, int64_t num_batch) noexcept {
  if (RangeFits(batch, 1, num_batch)) return OkStatus();
  return MakeStatus(StatusCode::kOutOfRange, "%s: batch entry %lld of %lld", name, LL(batch), LL(num_batch));
}

}  // namespace headlane::internal
