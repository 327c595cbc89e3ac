// Rows on their way into tiles or pages: as they lie in the caller's tensor, or copied, normalised, turned to their
// positions and rotated.
//
// Separate from writing, so that every place that stores rows takes them in the same form, a kernel's argument. Called
// by KVCacheImpl and KVPagesImpl.
#ifndef HEADLANE_SRC_KV_ROW_FEED_H_
#define HEADLANE_SRC_KV_ROW_FEED_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "headlane/kv_cache.h"
#include "headlane/status.h"
#include "headlane/view.h"
#include "kernels/kernel_api.h"

namespace headlane::internal {

// Everything that can be said against a transform of keys, but for their positions. `values`: features [0, values) are
// values as well, 0 if none are. Errors: InvalidArgument, OutOfRange, Unsupported.
Status CheckTransform(const KeyTransform& transform, int64_t qk_dim, int64_t values) noexcept;

// Whether all positions can be turned to: those listed, or num_tokens from `first` on. Errors: OutOfRange.
Status CheckPositions(const KeyTransform& transform, int64_t first, int64_t num_tokens) noexcept;

// Whether heads of these dims can be rotated: rows are made in a buffer, and values that are the first features of the
// keys have to be blocks of their own. `what` names the spec. Requires: dims are not negative. Errors: Unsupported.
Status CheckRotation(const char* what, int64_t qk_dim, int64_t v_dim, bool values_in_keys) noexcept;

// What feeds make rows in; one for keys and one for values may share it. On the caller's stack: writes of several
// layers may run at the same time.
struct RowBuffers {
  static constexpr int64_t kSize = kMaxBufferedHeadDim;
  alignas(64) std::array<std::byte, kSize * sizeof(float)> raw;  // rows in the tensor's element type
  alignas(64) std::array<float, kSize> wide;                     // rows in f32
  alignas(64) std::array<float, kSize> angles;                   // cosines, and then sines
};

class RowFeed {
 public:
  // Of batch entry `batch`; `transform` null: none. Without listed positions, token 0 of the view stands at
  // first_position. Everything outlives the feed. Requires: all of it was checked; only one of the feeds that share
  // buffers has a transform.
  RowFeed(const ConstTensorView& view, int64_t batch, const KeyTransform* transform, bool rotate,
          int64_t first_position, RowBuffers* buffers) noexcept;

  // How many tokens Prepare takes at once, at least 1.
  int64_t max_tokens() const noexcept { return max_tokens_; }

  // To be called before ForEachPiece is for some of tokens [token, token + count).
  void Prepare(int64_t token, int64_t count) noexcept;

  // Calls f(args, offset) for consecutive parts of rows [token, token + count) of a head, which begin with row `offset`
  // of them. slot_begin and what is written to are f's to fill in; what args point to is overwritten by the next part.
  template <typename F>
  void ForEachPiece(int64_t token, int64_t head, int64_t count, const F& f) noexcept {
    if (!changes_) return f(AsTheyLie(token, head, count), int64_t{0});
    for (int64_t i = 0; i < count; i += rows_per_piece_) {
      const int64_t n = std::min(rows_per_piece_, count - i);
      f(Make(token + i, head, n), i);
    }
  }

 private:
  PackTileArgs AsTheyLie(int64_t token, int64_t head, int64_t count) const noexcept;
  PackTileArgs Make(int64_t token, int64_t head, int64_t count) noexcept;

  const ConstTensorView& view_;
  const std::byte* data_;  // of the batch entry
  const KeyTransform* transform_;
  RowBuffers& buffers_;
  bool rotate_;
  bool changes_;
  int64_t first_position_;
  int64_t num_pairs_ = 0;
  int64_t rows_per_piece_ = 1;
  int64_t max_tokens_ = kTileKeys;
  int64_t prepared_ = 0;  // the token of the first row of angles
  const float* cos_ = nullptr;
  const float* sin_ = nullptr;
};

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_KV_ROW_FEED_H_
