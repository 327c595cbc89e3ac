#include "kv/stored_tile.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "base/blocking.h"
#include "base/quantized.h"
#include "base/tile_layout.h"
#include "kv/slot_copy.h"

namespace headlane::internal {
namespace {

// Lines of 16 codes as two words: what is true of all 16 bytes is found out in a few instructions.
constexpr uint64_t Repeated(uint8_t byte) { return byte * 0x0101010101010101u; }
constexpr uint64_t HasByte(uint64_t word, uint8_t byte) {
  const uint64_t zero_where = word ^ Repeated(byte);
  return (zero_where - Repeated(1)) & ~zero_where & Repeated(0x80);
}

struct Line {
  uint64_t words[2];
};
Line LoadLine(const std::byte* at) {
  Line line;
  std::memcpy(&line, at, sizeof(line));
  return line;
}
void Merge(Line* into, const Line& line) {
  into->words[0] |= line.words[0];
  into->words[1] |= line.words[1];
}
uint8_t ByteOf(const Line& line, int64_t i) {
  uint8_t bytes[sizeof(line)];
  std::memcpy(bytes, &line, sizeof(line));
  return bytes[i];
}

bool IsZero(const std::byte* at, int64_t bytes) {
  unsigned any = 0;
  for (int64_t i = 0; i < bytes; ++i) any |= static_cast<unsigned>(at[i]);
  return any == 0;
}

constexpr const char* kUnusedNotZero = "bytes that hold no number are not 0";
constexpr const char* kBadCode = "a code is none that is ever stored";
constexpr const char* kBadScale = "a scale is none that is ever stored";
constexpr const char* kCodesWithoutScale = "codes of a row whose scale is 0 or NaN are not 0";

// Of numbers without scales: slots from `count` on and features from dim on are 0.
template <typename T>
bool UnusedIsZero(const TileKind& kind, const std::byte* tile, int64_t count) {
  const int64_t padded = RoundUp(kind.dim, kind.is_k ? TilePack(kind.dtype) : kTileKeys);
  const auto index_of = kind.is_k ? &KTileIndex : &VTileIndex;
  unsigned any = 0;
  for (int64_t d = count < kTileKeys ? 0 : kind.dim; d < padded; ++d) {
    for (int64_t slot = d < kind.dim ? count : 0; slot < kTileKeys; ++slot) {
      T bits;
      std::memcpy(&bits, tile + index_of(kind.dtype, d, slot) * int64_t{sizeof(T)}, sizeof(T));
      any |= bits != 0 ? 1u : 0u;
    }
  }
  return any == 0;
}

template <typename T>
bool AnyNonFinite(const std::byte* at, int64_t n, T exponent) {
  unsigned any = 0;
  for (int64_t i = 0; i < n; ++i) {
    T bits;
    std::memcpy(&bits, at + i * int64_t{sizeof(T)}, sizeof(T));
    any |= (bits & exponent) == exponent ? 1u : 0u;
  }
  return any != 0;
}

// Elements that hold features [0, value_dim): K's stand in front, in pairs in bf16; of V it is all, its padding is 0.
template <typename T>
bool NonFiniteValues(const TileKind& kind, const std::byte* tile, int64_t value_dim, T exponent) {
  if (!kind.is_k) return AnyNonFinite(tile, RoundUp(kind.dim, kTileKeys) * kTileKeys, exponent);
  const int64_t whole = value_dim / TilePack(kind.dtype) * TilePack(kind.dtype);
  if (AnyNonFinite(tile, whole * kTileKeys, exponent)) return true;
  for (int64_t slot = 0; slot < kTileKeys && whole < value_dim; ++slot) {
    if (AnyNonFinite(tile + KTileIndex(kind.dtype, whole, slot) * int64_t{sizeof(T)}, 1, exponent)) return true;
  }
  return false;
}

template <typename T>
const char* CheckNumbers(const TileKind& kind, const std::byte* tile, int64_t count, int64_t value_dim, T exponent,
                         bool* non_finite) {
  if (!UnusedIsZero<T>(kind, tile, count)) return kUnusedNotZero;
  if (value_dim > 0) *non_finite = NonFiniteValues(kind, tile, value_dim, exponent);
  return nullptr;
}

enum class Scale { kZero, kNaN, kNumber, kBad };

// `kept`: the bits that such scales have; `largest`: the largest one's.
Scale Classify(uint32_t bits, uint32_t kept, uint32_t largest, bool may_be_negative) {
  if (bits == 0) return Scale::kZero;
  if (bits == 0x7FC00000u) return Scale::kNaN;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if ((bits & ~kept) != 0 || (magnitude != bits && !may_be_negative)) return Scale::kBad;
  if (magnitude < std::bit_cast<uint32_t>(kMinScale) || magnitude > largest) return Scale::kBad;
  return Scale::kNumber;
}

Scale ByteScale(DType dtype, const std::byte* at) {
  constexpr float kMax = std::numeric_limits<float>::max();
  constexpr uint32_t kKept = 0xFFFFFF00u;
  uint32_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  return Classify(bits, kKept, std::bit_cast<uint32_t>(kMax / (dtype == DType::kI8 ? 127.0f : 448.0f)) & kKept, false);
}
Scale Int4Scale(const std::byte* at) {
  constexpr float kMax = std::numeric_limits<float>::max();
  uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  return Classify(static_cast<uint32_t>(bits) << 16, 0xFFFF0000u, std::bit_cast<uint32_t>(kMax / 8) & 0xFFFF0000u,
                  true);
}

// What a slot's scale, and whether it has codes but 0, make of the slot.
const char* CheckSlot(Scale scale, bool has_codes, bool is_used) {
  if (!is_used) return scale == Scale::kZero && !has_codes ? nullptr : kUnusedNotZero;
  if (scale == Scale::kBad) return kBadScale;
  return scale != Scale::kNumber && has_codes ? kCodesWithoutScale : nullptr;
}

// int8 and fp8: lines of 16 codes, one per feature (K) or per stripe and slot (V).
const char* CheckBytes(const TileKind& kind, const std::byte* tile, int64_t count, bool* non_finite) {
  Line by_slot{};  // K: any code of each slot
  bool has_codes[kTileKeys] = {};
  uint64_t bad = 0;
  uint64_t in_padding = 0;
  const int64_t num_lines = kind.is_k ? kind.dim : RoundUp(kind.dim, kTileKeys);
  const int64_t first_padded = kind.dim % kTileKeys;  // V: feature of the last stripe; 0: none
  Line padding{};
  if (!kind.is_k && first_padded != 0) {
    uint8_t mask[kTileKeys] = {};
    std::fill(mask + first_padded, mask + kTileKeys, uint8_t{0xFF});
    std::memcpy(&padding, mask, sizeof(padding));
  }
  for (int64_t i = 0; i < num_lines; ++i) {
    const Line line = LoadLine(tile + i * kTileKeys);
    for (const uint64_t word : line.words) {
      bad |= HasByte(word, 0x80);
      if (kind.dtype == DType::kF8E4M3) bad |= HasByte(word & Repeated(0x7F), 0x7F);
    }
    if (kind.is_k) {
      Merge(&by_slot, line);
    } else {
      has_codes[i % kTileKeys] |= (line.words[0] | line.words[1]) != 0;
      if (i >= num_lines - kTileKeys) {
        in_padding |= (line.words[0] & padding.words[0]) | (line.words[1] & padding.words[1]);
      }
    }
  }
  if (bad != 0) return kBadCode;
  if (in_padding != 0) return kUnusedNotZero;
  const std::byte* const scales = tile + num_lines * kTileKeys;
  for (int64_t slot = 0; slot < kTileKeys; ++slot) {
    const Scale scale = ByteScale(kind.dtype, scales + slot * int64_t{sizeof(float)});
    const bool codes = kind.is_k ? ByteOf(by_slot, slot) != 0 : has_codes[slot];
    if (const char* const wrong = CheckSlot(scale, codes, slot < count); wrong != nullptr) return wrong;
    *non_finite |= scale == Scale::kNaN;
  }
  return nullptr;
}

// One group of int4: which slots have codes but 0, and whether features behind the last one are 0.
bool Int4Codes(const TileKind& kind, const std::byte* tile, int64_t group, bool (&has_codes)[kTileKeys]) {
  const int64_t begin = group * kInt4Group;
  if (kind.is_k) {
    const int64_t end = std::min(begin + kInt4Group, kind.dim);
    Line any{};
    for (int64_t d = begin; d < end; d += 2) Merge(&any, LoadLine(tile + KTileIndex(DType::kI4, d, 0)));
    for (int64_t slot = 0; slot < kTileKeys; ++slot) has_codes[slot] = ByteOf(any, slot) != 0;
    if (end % 2 == 0) return true;
    const Line last = LoadLine(tile + KTileIndex(DType::kI4, end - 1, 0));
    return ((last.words[0] | last.words[1]) & Repeated(0xF0)) == 0;
  }
  const int64_t end = std::min(begin + kInt4Group, RoundUp(kind.dim, kTileKeys));
  unsigned in_padding = 0;
  for (int64_t pair = 0; pair < kTileKeys / 2; ++pair) {
    unsigned any = 0;
    for (int64_t d = begin; d < end; ++d) {
      const unsigned codes = static_cast<unsigned>(tile[VTileIndex(DType::kI4, d, 2 * pair)]);
      any |= codes;
      if (d >= kind.dim) in_padding |= codes;
    }
    has_codes[2 * pair] = (any & 0x0F) != 0;
    has_codes[2 * pair + 1] = (any & 0xF0) != 0;
  }
  return in_padding == 0;
}

const char* CheckInt4(const TileKind& kind, const std::byte* tile, int64_t count, int64_t value_dim, bool* non_finite) {
  const std::byte* const scales =
      tile + (kind.is_k ? KTileCodeBytes(kind.dtype, kind.dim) : VTileCodeBytes(kind.dtype, kind.dim));
  for (int64_t group = 0; group < CeilDiv(kind.dim, kInt4Group); ++group) {
    bool has_codes[kTileKeys];
    if (!Int4Codes(kind, tile, group, has_codes)) return kUnusedNotZero;
    for (int64_t slot = 0; slot < kTileKeys; ++slot) {
      const Scale scale = Int4Scale(scales + (group * kTileKeys + slot) * int64_t{sizeof(uint16_t)});
      if (const char* const wrong = CheckSlot(scale, has_codes[slot], slot < count); wrong != nullptr) return wrong;
      *non_finite |= scale == Scale::kNaN && group * kInt4Group < value_dim;
    }
  }
  return nullptr;
}

}  // namespace

TileKind KTileKind(DType dtype, int64_t qk_dim) {
  return {dtype, true, qk_dim, KTileBytes(dtype, qk_dim),
          KTileCodeBytes(dtype, qk_dim) + TileScaleBytes(dtype, qk_dim)};
}
TileKind VTileKind(DType dtype, int64_t v_dim) {
  return {dtype, false, v_dim, VTileBytes(dtype, v_dim), VTileCodeBytes(dtype, v_dim) + TileScaleBytes(dtype, v_dim)};
}

void CopyClean(const TileKind& kind, const std::byte* tile, int64_t count, std::byte* out) noexcept {
  if (count == kTileKeys) {
    std::memcpy(out, tile, static_cast<size_t>(kind.used_bytes));
    std::memset(out + kind.used_bytes, 0, static_cast<size_t>(kind.bytes - kind.used_bytes));
    return;
  }
  std::memset(out, 0, static_cast<size_t>(kind.bytes));
  const auto copy = kind.is_k ? &CopyKSlot : &CopyVSlot;
  for (int64_t slot = 0; slot < count; ++slot) copy(kind.dtype, kind.dim, tile, slot, out, slot);
}

const char* CheckClean(const TileKind& kind, const std::byte* tile, int64_t count, int64_t value_dim,
                       bool* non_finite) noexcept {
  *non_finite = false;
  if (!IsZero(tile + kind.used_bytes, kind.bytes - kind.used_bytes)) return kUnusedNotZero;
  switch (kind.dtype) {
    case DType::kF32:
      return CheckNumbers<uint32_t>(kind, tile, count, value_dim, 0x7F800000u, non_finite);
    case DType::kF16:
      return CheckNumbers<uint16_t>(kind, tile, count, value_dim, uint16_t{0x7C00}, non_finite);
    case DType::kBF16:
      return CheckNumbers<uint16_t>(kind, tile, count, value_dim, uint16_t{0x7F80}, non_finite);
    case DType::kI8:
    case DType::kF8E4M3:
      return CheckBytes(kind, tile, count, non_finite);
    case DType::kI4:
      return CheckInt4(kind, tile, count, value_dim, non_finite);
  }
  return kBadCode;
}

}  // namespace headlane::internal
