// The cache behind KVCache: keeps pool, sequences and tile marks in agreement, and turns rows into tiles and back.
//
// Separate from the public header so that planning and execution see pages and addresses, and users don't. Called by
// KVCache (kv_cache.cc), by planning (CheckReadable, CopyPageIds) and by execution (addressing, flags).
#ifndef HEADLANE_SRC_KV_KV_CACHE_IMPL_H_
#define HEADLANE_SRC_KV_KV_CACHE_IMPL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "headlane/kv_cache.h"
#include "headlane/kv_file.h"
#include "headlane/status.h"
#include "headlane/view.h"
#include "kernels/kernel_api.h"
#include "kv/layout.h"
#include "kv/page_ids.h"
#include "kv/page_pool.h"
#include "kv/pool_memory.h"
#include "kv/sequence_table.h"
#include "kv/tile_marks.h"
#include "kv/tile_rows.h"

namespace headlane::internal {

// The error of every call that names a sequence which does not live in the cache.
Status NoSequence(SequenceId id) noexcept;

class KVSaver;
class KVRestorer;

// What restoring asks when it has read everything, before it changes the cache. check null: nothing.
struct KVRestoreEnd {
  void* context = nullptr;
  Status (*check)(void* context) noexcept = nullptr;
};

class KVCacheImpl {
 public:
  // `kernels`, one per DType, encode the rows; the bits of the tiles do not depend on which target's they are. They
  // must outlive the cache.
  static Result<std::unique_ptr<KVCacheImpl>> Create(const KVCacheSpec& spec,
                                                     const KvKernels (&kernels)[kNumDTypes]) noexcept;

  // As KVCache's methods of the same names.
  const KVCacheSpec& spec() const noexcept { return spec_; }
  KVCacheUsage usage() const noexcept;
  void FirstTouch(Executor& executor) noexcept { memory_.FirstTouch(executor); }
  Result<SequenceId> CreateSequence() noexcept { return sequences_.Add(); }
  Result<SequenceId> Fork(SequenceId id, int64_t length) noexcept;
  Status DropSequence(SequenceId id) noexcept;
  Result<int64_t> Length(SequenceId id) const noexcept;
  Result<KVSequenceUsage> SequenceUsage(SequenceId id) const noexcept;
  Status Reserve(SequenceId id, int64_t n) noexcept;
  // `transform` may be null, here and in Append.
  Status Write(SequenceId id, int64_t layer, const ConstTensorView& k, const ConstTensorView& v,
               const KeyTransform* transform, int64_t begin, int64_t batch) noexcept;
  Status Commit(SequenceId id, int64_t n) noexcept;
  Status CommitPath(SequenceId id, const int64_t* accepted, int64_t n) noexcept;
  Status Abandon(SequenceId id) noexcept;
  Status Append(SequenceId id, const ConstTensorView& k, const ConstTensorView& v,
                const KeyTransform* transform) noexcept;
  Status Truncate(SequenceId id, int64_t length) noexcept;
  Status Remove(SequenceId id, int64_t begin, int64_t end, std::span<const RopeShift> shifts) noexcept;
  Status SetTokens(SequenceId id, const int32_t* ids, int64_t n, int64_t begin) noexcept;
  Result<SequenceId> ForkPrefix(const int32_t* ids, int64_t n, int64_t* matched) noexcept;
  Status Read(SequenceId id, int64_t layer, int64_t begin, const TensorView& k, const TensorView& v) const noexcept;

  // As the functions of kv_file.h.
  Status Save(std::span<const SequenceId> ids, const KVSink& sink) const noexcept;
  Result<int64_t> SavedBytes(std::span<const SequenceId> ids) const noexcept;
  Result<std::vector<SequenceId>> AllSequences() const noexcept;
  Result<std::vector<RestoredSequence>> Restore(const KVSource& source, const KVRestoreEnd& end) noexcept;

  // For planning.
  // Ok when keys [0, kv_len) of the sequence have pages: kv_len <= committed + reserved. Errors: NotFound, OutOfRange.
  Status CheckReadable(SequenceId id, int64_t kv_len) const noexcept;
  int64_t PageTokens() const noexcept { return spec_.page_tokens; }
  int64_t TilesPerPage() const noexcept { return layout_.tiles_per_page; }
  int64_t NumGroups() const noexcept { return layout_.num_groups; }
  int64_t GroupOfLayer(int64_t layer) const noexcept { return GroupOf(spec_, layer); }
  // Ok when the group still has every one of tokens [begin, end) of the sequence. Errors: NotFound, FailedPrecondition.
  Status CheckKept(SequenceId id, int64_t group, int64_t begin, int64_t end) const noexcept;
  // The numbers of the sequence's first `num_pages` pages in a layer group; -1 where the window has passed. Requires:
  // CheckReadable is ok for a length that needs that many.
  void CopyPageIds(SequenceId id, int64_t num_pages, int32_t* out, int64_t group = 0) const noexcept;

  // For execution. Page numbers are those of CopyPageIds; nothing is checked.
  const KVLayout& layout() const noexcept { return layout_; }
  const KVAddressing& addressing() const noexcept { return addressing_; }
  const KVFlagAddressing& flags() const noexcept { return marks_.flags(); }
  const std::byte* KTile(int64_t layer, int64_t page, int64_t kv_head, int64_t tile) const noexcept {
    return addressing_.KTile(layer, page, kv_head, tile);
  }
  const std::byte* VTile(int64_t layer, int64_t page, int64_t kv_head, int64_t tile) const noexcept {
    return addressing_.VTile(layer, page, kv_head, tile);
  }
  // [tiles_per_page] flags: 0 unless the tile's V may hold something that is not finite.
  const uint8_t* TileFlags(int64_t layer, int64_t page, int64_t kv_head) const noexcept {
    return marks_.flags().Tiles(layer, page, kv_head);
  }

  // For tests: fills every byte that holds no token's data with 0xFF, a NaN in every float type: free pages, and tiles
  // without a written slot. Const, because nothing that a caller may rely on changes. Touches the whole pool.
  void PoisonUnusedForTesting() const noexcept;

 private:
  friend class KVSaver;
  friend class KVRestorer;

  // Requires: the spec has a layout. Throws std::bad_alloc.
  KVCacheImpl(const KVCacheSpec& spec, const KVLayout& layout, const KvKernels (&kernels)[kNumDTypes])
      : spec_(spec),
        layout_(layout),
        k_kernels_(&kernels[static_cast<int>(spec.k_dtype)]),
        v_kernels_(spec.values_in_keys ? nullptr : &kernels[static_cast<int>(spec.v_dtype)]) {}

  // All memory. Errors: ResourceExhausted, InvalidArgument.
  Status Allocate() noexcept;
  // Everything about a Write but its reach into the reservation, so that Append can ask before it reserves.
  Status CheckRows(SequenceId id, int64_t layer, const ConstTensorView& k, const ConstTensorView& v,
                   const KeyTransform* transform, int64_t batch) const noexcept;
  // Requires: checked.
  void WriteRows(const Sequence& sequence, int64_t layer, const ConstTensorView& k, const ConstTensorView& v,
                 const KeyTransform* transform, int64_t begin, int64_t batch) noexcept;
  // Ok when the first n tokens behind the committed length are written in every layer. Requires: n <= reserved. Errors:
  // FailedPrecondition.
  Status CheckWritten(SequenceId id, const Sequence& sequence, int64_t n) const noexcept;
  // Everything that CommitPath refuses.
  Status CheckPath(SequenceId id, const Sequence& sequence, const int64_t* accepted, int64_t n) const noexcept;
  // Whether somebody else holds the sequence's page number `index`, too.
  bool IsShared(const Sequence& sequence, int64_t group, int64_t index) const noexcept;
  // Puts a copy of its first num_tokens tokens in the place of page number `index` of the sequence. Requires: a free
  // page.
  void TakeCopy(Sequence* sequence, int64_t group, int64_t index, int64_t num_tokens) noexcept;
  // Gives back the pages that windows have passed.
  void ReleasePassed(Sequence* sequence) noexcept;
  // Ok when every group keeps what rows at position `length` and more see. Errors: FailedPrecondition.
  Status CheckRollBack(SequenceId id, const Sequence& sequence, int64_t length) const noexcept;
  // The sequence's block table for a layer.
  const int32_t* PagesOf(const Sequence& sequence, int64_t layer) const noexcept {
    return sequence.groups[GroupOf(spec_, layer)].pages;
  }
  // Copies token `from` of the sequence over token `to`, in one layer. Requires: the page of `to` is not shared, and
  // `from` is written.
  void CopyToken(const Sequence& sequence, int64_t layer, int64_t from, int64_t to) noexcept;
  // How rows become tiles.
  TileFormat tile_format() const noexcept {
    return {spec_.k_dtype, spec_.v_dtype, spec_.qk_dim, spec_.v_dim, spec_.values_in_keys, k_kernels_, v_kernels_};
  }
  // What Remove refuses of its rotations.
  Status CheckShifts(SequenceId id, int64_t n, std::span<const RopeShift> shifts) noexcept;
  // Puts the rotation by -n positions into the scratch. Errors: as RopeAngles.
  Status MakeTurn(const RopeShift& shift, int64_t n) noexcept;
  // Turns a token's keys of all heads by what MakeTurn has made.
  void TurnKey(int64_t layer, int64_t page, const TokenPlace& place, const RopeShift& shift) noexcept;
  // Token ids: whether there can be any; those from `first` on forgotten, where the page is not shared.
  Status CheckHasIds() const noexcept;
  void ForgetIds(const Sequence& sequence, int64_t first) noexcept;
  // Hashes the sequence's pages that are full of ids anew.
  void HashIds(const Sequence& sequence) noexcept;
  bool HasPage(const Sequence& sequence, int64_t index, const int32_t* ids) const noexcept;
  // Marks slots of a page from `first` on as not written.
  void ForgetPage(int64_t group, int32_t page, int64_t first) noexcept;
  // Marks tokens from `first` on as not written, in the pages that the sequence holds alone. In shared ones others may
  // have tokens there; Reserve takes a copy before it counts on the marks.
  void Forget(const Sequence& sequence, int64_t first) noexcept;
  // Drops the reservation and everything behind `length`.
  void Shrink(Sequence* sequence, int64_t length) noexcept;

  KVCacheSpec spec_;
  KVLayout layout_;
  const KvKernels* k_kernels_;
  const KvKernels* v_kernels_;  // nullptr: the values are in the keys
  PoolMemory memory_;
  AlignedBuffer first_slab_;   // [num_layers] int64_t, of the addressing
  AlignedBuffer key_scratch_;  // [3][qk_dim] float: cosines, sines, a key
  PageIds page_ids_;           // of the pages of ids_group_
  int64_t ids_group_ = -1;     // the first layer group that keeps everything
  PagePool pools_[kMaxLayerGroups];
  SequenceTable sequences_;
  TileMarks marks_;
  KVAddressing addressing_;
  int64_t num_tokens_ = 0;
};

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_KV_KV_CACHE_IMPL_H_
