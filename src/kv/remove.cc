// Removal from the middle: the rest moves down, and keys that carry a rotary embedding turn with it.
#include <algorithm>

#include "base/check.h"
#include "base/fp_environment.h"
#include "kv/kv_cache_impl.h"

namespace headlane::internal {
namespace {

long long LL(int64_t value) { return static_cast<long long>(value); }

}  // namespace

Status KVCacheImpl::CheckShifts(SequenceId id, int64_t n, std::span<const RopeShift> shifts) noexcept {
  if (shifts.empty()) return OkStatus();
  if (static_cast<int64_t>(shifts.size()) != layout_.num_groups) {
    return MakeStatus(StatusCode::kInvalidArgument, "sequence %lld: %lld rotations for %lld layer groups", LL(id.value),
                      LL(static_cast<int64_t>(shifts.size())), LL(layout_.num_groups));
  }
  for (size_t g = 0; g < shifts.size(); ++g) {
    const RopeShift& shift = shifts[g];
    const int64_t dim = shift.rope.rotary_dim;
    if (dim == 0) continue;
    if (shift.first_feature < 0 || dim < 0 || dim > spec_.qk_dim || shift.first_feature > spec_.qk_dim - dim) {
      return MakeStatus(StatusCode::kInvalidArgument,
                        "sequence %lld: shifts[%lld] turns %lld features from %lld on, keys have %lld", LL(id.value),
                        LL(static_cast<int64_t>(g)), LL(dim), LL(shift.first_feature), LL(spec_.qk_dim));
    }
    if (spec_.values_in_keys && shift.first_feature < spec_.v_dim) {
      return MakeStatus(StatusCode::kUnsupported,
                        "sequence %lld: shifts[%lld] turns features from %lld on, but the first %lld are the values",
                        LL(id.value), LL(static_cast<int64_t>(g)), LL(shift.first_feature), LL(spec_.v_dim));
    }
    if (shift.rope.scaling == RopeScaling::kDynamicNtk) {
      return MakeStatus(StatusCode::kUnsupported,
                        "sequence %lld: shifts[%lld] is a dynamic scaling, its angles are not linear in the position: "
                        "resolve it",
                        LL(id.value), LL(static_cast<int64_t>(g)));
    }
    HEADLANE_RETURN_IF_ERROR(MakeTurn(shift, n));
  }
  return OkStatus();
}

// The rotation of one position by another is that of their difference, without the attention factor, which the stored
// key has already.
Status KVCacheImpl::MakeTurn(const RopeShift& shift, int64_t n) noexcept {
  RopeSpec rope = shift.rope;
  rope.attention_factor = 1.0;
  const int64_t position = -n;
  float* const cos = key_scratch_.as<float>();
  return RopeAngles(rope, &position, 1, cos, cos + spec_.qk_dim);
}

// Decoded, turned and encoded again.
void KVCacheImpl::TurnKey(int64_t layer, int64_t page, const TokenPlace& place, const RopeShift& shift) noexcept {
  const float* const cos = key_scratch_.as<float>();
  float* const row = key_scratch_.as<float>() + 2 * spec_.qk_dim;
  for (int64_t head = 0; head < spec_.num_kv_heads; ++head) {
    std::byte* const tile = addressing_.KTile(layer, page, head, place.tile);
    tile_format().ReadKey(tile, place.slot, DType::kF32, row, 1);
    // Features that are values keep their bits; they are blocks of the rotation of their own.
    const int64_t first = spec_.values_in_keys ? spec_.v_dim : 0;
    const auto rotate = [&] {
      if (!spec_.rotate) return;
      InDefaultFpEnvironment([&] { ActiveKernels().hadamard(row + first, spec_.qk_dim - first); });
    };
    rotate();
    const Status turned =
        ApplyRope(shift.rope, cos, cos + spec_.qk_dim,
                  TokensHeadsDim(row + shift.first_feature, 1, 1, spec_.qk_dim - shift.first_feature));
    HEADLANE_DCHECK(turned.ok());
    (void)turned;
    rotate();
    PackTileArgs pack{};
    pack.rows = reinterpret_cast<const std::byte*>(row);
    pack.rows_dtype = DType::kF32;
    pack.row_stride = spec_.qk_dim;
    pack.dim_stride = 1;
    pack.dim = spec_.qk_dim;
    pack.num_keys = 1;
    pack.slot_begin = place.slot;
    pack.tile = tile;
    InDefaultFpEnvironment([&] { k_kernels_->pack_k(pack); });
  }
}

Status KVCacheImpl::Remove(SequenceId id, int64_t begin, int64_t end, std::span<const RopeShift> shifts) noexcept {
  Sequence* const sequence = sequences_.Find(id);
  if (sequence == nullptr) return NoSequence(id);
  const int64_t length = sequence->length;
  if (begin < 0 || begin > end || end > length) {
    return MakeStatus(StatusCode::kOutOfRange, "sequence %lld: cannot remove tokens [%lld, %lld), it has %lld",
                      LL(id.value), LL(begin), LL(end), LL(length));
  }
  const int64_t n = end - begin;
  const int64_t new_length = length - n;
  HEADLANE_RETURN_IF_ERROR(CheckShifts(id, n, shifts));
  for (int64_t g = 0; g < layout_.num_groups; ++g) {
    // The tokens that are lost have to stay where they are, out of everyone's sight.
    const int64_t first_kept = sequence->groups[g].first_kept;
    if (first_kept <= layout_.groups[g].num_always_visible || n == 0) continue;
    if (begin >= first_kept && new_length - layout_.groups[g].window + 1 >= first_kept) continue;
    return MakeStatus(StatusCode::kFailedPrecondition,
                      "sequence %lld: cannot remove tokens [%lld, %lld), layer group %lld with window %lld keeps those "
                      "from %lld on",
                      LL(id.value), LL(begin), LL(end), LL(g), LL(layout_.groups[g].window), LL(first_kept));
  }
  const bool moves = n > 0 && end < length;
  const int64_t first_page = begin / spec_.page_tokens;
  const int64_t end_page = moves ? CeilDiv(new_length, spec_.page_tokens) : first_page;
  for (int64_t g = 0; g < layout_.num_groups; ++g) {
    int64_t copies = 0;
    for (int64_t i = first_page; i < end_page; ++i) copies += IsShared(*sequence, g, i) ? 1 : 0;
    if (copies <= pools_[g].free_pages()) continue;
    return MakeStatus(StatusCode::kResourceExhausted,
                      "sequence %lld: removing tokens [%lld, %lld) needs copies of %lld shared pages, %lld are free in "
                      "layer group %lld",
                      LL(id.value), LL(begin), LL(end), LL(copies), LL(pools_[g].free_pages()), LL(g));
  }
  // From here on nothing fails.
  for (int64_t g = 0; moves && g < layout_.num_groups; ++g) {
    for (int64_t i = first_page; i < end_page; ++i) {
      if (IsShared(*sequence, g, i)) {
        TakeCopy(sequence, g, i, std::min(spec_.page_tokens, length - i * spec_.page_tokens));
      }
    }
    const RopeShift* const shift = shifts.empty() || shifts[static_cast<size_t>(g)].rope.rotary_dim == 0
                                       ? nullptr
                                       : &shifts[static_cast<size_t>(g)];
    if (shift != nullptr) {
      const Status made = MakeTurn(*shift, n);
      HEADLANE_DCHECK(made.ok());
      (void)made;
    }
    for (int64_t layer = 0; layer < spec_.num_layers; ++layer) {
      if (GroupOf(spec_, layer) != g) continue;
      for (int64_t token = end; token < length; ++token) {
        CopyToken(*sequence, layer, token, token - n);
        const TokenPlace place = PlaceOf(token - n, spec_.page_tokens);
        if (shift != nullptr) TurnKey(layer, PagesOf(*sequence, layer)[place.page], place, *shift);
      }
    }
  }
  Shrink(sequence, new_length);
  if (moves) ForgetIds(*sequence, begin);
  return OkStatus();
}

}  // namespace headlane::internal
