// The KV cache: sequences of keys and values for all layers of a model, in pages from one pool, stored as the packed
// operands that the attention kernels read.
//
// One page holds `page_tokens` tokens of every layer and every KV head. Within it, each layer and head has its keys in
// tiles of 16 ([qk_dim][16], lane = key) and its values in the same tiles ([ceil(v_dim / 16)][16 keys][16], lane =
// feature). In bf16 two features of a key and two keys of a feature stand side by side. A tile takes a multiple of 64
// bytes.
//
// Quantised types hold numbers code * scale; attention over them has the bits of attention over those numbers in f32,
// which are what Read gives. Scales stand behind a tile's codes, for K and for V alike:
//   int8  one f32 scale per token and head, the row's largest magnitude / 127      qk_dim + 4 and v_dim + 4 bytes
//   fp8   one f32 scale per token and head, the row's largest magnitude / 448      qk_dim + 4 and v_dim + 4 bytes
//   int4  one bf16 scale per 32 features of a token and head (the last group may be shorter), the number of the largest
//         magnitude / -8                                          dim / 2 + 2 * ceil(dim / 32) bytes each: 4.5 bits
//                                                                 per element where 32 divides the dim
// Scales are cut to as many bits (16, of int4 8) as make code * scale exact, so that what was read back is stored again
// as it was; they are at least 2^-100. A code is the nearest one to x / scale, ties to even; int4 clamps at 7. A row
// (int4: a group) of zeros is zeros; one that holds something not finite is NaN.
// Page sizes, sharing and history never change a result.
#ifndef HEADLANE_KV_CACHE_H_
#define HEADLANE_KV_CACHE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "headlane/dtype.h"
#include "headlane/executor.h"
#include "headlane/mask.h"
#include "headlane/ops.h"
#include "headlane/status.h"
#include "headlane/view.h"

namespace headlane {

// Layers whose rows see the same keys. Each group has pages of its own; the sequences are the same in all groups.
//
// With a window, a sequence keeps only the tokens that rows at positions >= length - max_in_flight can see: the last
// window + max_in_flight - 1 ones, and the first num_always_visible; pages without any of them are given back by
// Commit. Keys keep their places in tiles and blocks, so that results have the bits of a group that keeps everything.
// What is not kept can't be read, rolled back to or attended to any more: the calls that would have to say so.
struct KVLayerGroup {
  int64_t window = kNoWindow;      // as Mask::window, at least 1; kNoWindow: everything is kept
  int64_t num_always_visible = 0;  // as Mask::num_always_visible
  // How many of the newest tokens can be rolled back, or, committed already, still be query rows.
  int64_t max_in_flight = 1;
  int64_t max_tokens = 0;  // the group's share of the pool; 0: KVCacheSpec::max_tokens
};
inline constexpr int64_t kMaxLayerGroups = 8;

struct KVCacheSpec {
  int64_t num_layers = 1;
  int64_t num_kv_heads = 0;
  int64_t qk_dim = 0;
  int64_t v_dim = 0;
  DType k_dtype = DType::kF32;  // of the stored keys: rounded to nearest even when written
  DType v_dtype = DType::kF32;
  bool values_in_keys = false;  // the values are the first v_dim <= qk_dim features of the keys: none are stored or
                                // written, v_dtype and the argument v of all calls are not looked at
  int64_t page_tokens = 128;    // a multiple of 16 in 16 .. 256
  int64_t max_tokens = 0;       // capacity: the pool gets ceil(max_tokens / page_tokens) pages per layer
  int64_t max_sequences = 64;
  // Hard limit of the pool: as many pages as fit, if max_tokens is 0, otherwise no more than fit. 0: none.
  int64_t max_bytes = 0;
  // The caller's memory for the pool, aligned to 64 bytes, in place of the system's; it must outlive the cache. Given
  // without max_tokens and max_bytes, max_bytes is memory_bytes.
  void* memory = nullptr;
  int64_t memory_bytes = 0;  // at least KVCache::RequiredBytes
  // At most kMaxLayerGroups; none: one that keeps everything.
  std::vector<KVLayerGroup> groups = {};
  // [num_layers] the group of each layer; empty: all in group 0.
  std::vector<int32_t> group_of_layer = {};
  // The longest that a sequence may become, which may be more than the pool holds where all groups have windows. 0: the
  // tokens of the largest group's pages.
  int64_t max_positions = 0;
  // Keys and values of each head are stored rotated by the Walsh-Hadamard transform (HadamardHeads), which spreads what
  // few features have over many: int4 loses less where some are much larger than the others. Attention turns queries
  // likewise and its sums of values back; Read gives what is stored, the turned rows. With values in keys v_dim has to
  // be where a block of the transform of qk_dim ends. Dims up to kMaxBufferedHeadDim.
  bool rotate = false;
};

// As a length: all committed tokens.
inline constexpr int64_t kWholeSequence = -1;

// Names one sequence of one cache. Never reused within a cache's life, so that a stale id is an error and not another
// sequence.
struct SequenceId {
  int64_t value = -1;
  friend bool operator==(SequenceId a, SequenceId b) { return a.value == b.value; }
};

// How the keys of a layer group carry their positions, for KVCache::Remove: features [first_feature, first_feature +
// rope.rotary_dim) were rotated by `rope`. rotary_dim 0: they carry none.
struct RopeShift {
  RopeSpec rope;
  int64_t first_feature = 0;
};

// What becomes of keys on their way into a cache, for models whose keys come as their linear layers made them. Keys are
// copied, their tensor stays as it is; what is stored has the bits of RmsNormHeads and ApplyRope on the tensor, in its
// element type, followed by a plain Write.
struct KeyTransform {
  // First, if wanted: RmsNormHeads of all features.
  bool norm = false;
  const float* norm_weight = nullptr;  // [qk_dim]; null: all ones
  float norm_epsilon = 1e-6f;
  // Then, if rope.rotary_dim > 0: ApplyRope on features [first_feature, first_feature + rotary_dim).
  RopeShift rope;
  // [k.num_tokens] where each token stands; null: where its sequence puts it, which pages of the caller's do not know.
  const int64_t* positions = nullptr;
  // [k.num_tokens][rotary_dim / 2] as RopeAngles gives them, in place of positions, for callers that have them already:
  // the same for all layers and for queries. Both or none.
  const float* cos = nullptr;
  const float* sin = nullptr;
};

// What one sequence holds of the cache's memory, in all layer groups.
struct KVSequenceUsage {
  int64_t pages = 0;         // that its tokens and its reservation stand in
  int64_t bytes = 0;         // of them
  int64_t shared_pages = 0;  // those of them that other sequences hold, too
};

struct KVCacheUsage {
  // Pages of several groups are counted together; page_bytes then is one of each.
  int64_t page_bytes = 0;       // one page: all layers and heads, keys and values
  int64_t bytes_per_token = 0;  // page_bytes / page_tokens
  int64_t total_pages = 0;
  int64_t used_pages = 0;
  int64_t limit_bytes = 0;  // all pages; used and free bytes add up to it
  int64_t used_bytes = 0;
  int64_t free_bytes = 0;
  int64_t num_sequences = 0;
  int64_t num_tokens = 0;  // committed tokens of all sequences
};

namespace internal {
class KVCacheImpl;
}

// Threads: calls that change a cache must not run at the same time as any other call on it, except Write calls for
// different (sequence, layer) pairs or tiles (position / 16). Reading (attention) may run on any number of threads.
class KVCache {
 public:
  // Allocates everything that the cache will ever use. Large pools are on huge pages where the system has them.
  // Errors: InvalidArgument (names the field), Unsupported (dtype), ResourceExhausted (the system has no such memory).
  static Result<KVCache> Create(const KVCacheSpec& spec) noexcept;

  // Bytes of the pool of such a cache, which is what memory_bytes must be at least. Errors: InvalidArgument,
  // Unsupported.
  static Result<int64_t> RequiredBytes(const KVCacheSpec& spec) noexcept;

  KVCache(KVCache&&) noexcept;
  KVCache& operator=(KVCache&&) noexcept;
  ~KVCache();

  const KVCacheSpec& spec() const noexcept;
  KVCacheUsage usage() const noexcept;

  // Touches all of the pool from the executor's workers, each its share of every layer, so that a system with several
  // memories places it near them, and the first tokens don't wait for it. Contents stay. Errors: none. Allocation:
  // none.
  Status FirstTouch(Executor& executor) noexcept;

  // An empty sequence. Errors: ResourceExhausted (max_sequences). Allocation: none.
  Result<SequenceId> CreateSequence() noexcept;

  // A new sequence that begins with the first `length` committed tokens of this one. Pages are shared, whoever writes
  // to a shared page takes a copy of it before (in Reserve), and neither ever sees what becomes of the other. Where
  // the last of these pages is one that this sequence has reserved tokens in, the new one gets its copy at once.
  // Errors: NotFound, OutOfRange (length), FailedPrecondition (a group with a window keeps too little for that length),
  // ResourceExhausted (max_sequences; the page of that copy). Allocation: none. O(pages).
  Result<SequenceId> Fork(SequenceId sequence, int64_t length = kWholeSequence) noexcept;

  // Gives back its pages, but for those that other sequences hold, too; the id is invalid from then on. Errors:
  // NotFound. Allocation: none.
  Status DropSequence(SequenceId sequence) noexcept;

  // Committed length in tokens. Errors: NotFound.
  Result<int64_t> Length(SequenceId sequence) const noexcept;

  // Errors: NotFound. O(pages).
  Result<KVSequenceUsage> SequenceUsage(SequenceId sequence) const noexcept;

  // Appending is three steps, so that every layer of a model can write and attend before the tokens count:
  //   Reserve(sequence, n)                          pages for n tokens behind the committed length
  //   Write(sequence, layer, k, v, begin) per layer the new tokens' keys and values
  //   Commit(sequence, n)                           length += n
  // Reserved tokens may be attended to before Commit by naming a kv_len up to length + n. A failed Reserve changes
  // nothing; a reservation that is not committed is dropped by the next Reserve, Truncate or Abandon.
  //
  // Reserve. Requires: n >= 0. Errors: NotFound, InvalidArgument (n < 0), ResourceExhausted (names the sequence, pages
  // wanted and free; where the last page is shared, its copy is one of them), OutOfRange (max_positions). Allocation:
  // none.
  Status Reserve(SequenceId sequence, int64_t n) noexcept;

  // Encodes n = k.num_tokens tokens of batch entry `batch` of k [.., n, num_kv_heads, qk_dim] and v [.., n,
  // num_kv_heads, v_dim] at positions length + begin ... into `layer`. k and v: f32, f16 or bf16 each, rounded to the
  // cache's types to nearest even (beyond f16's range: infinity). Errors: NotFound, OutOfRange (layer; begin + n past
  // what is reserved), InvalidArgument (shapes, null data, dtype); nothing is written then. Allocation: none.
  Status Write(SequenceId sequence, int64_t layer, const ConstTensorView& k, const ConstTensorView& v,
               int64_t begin = 0, int64_t batch = 0) noexcept;

  // The same after a transform of the keys, which is left as it was. Errors: also those of RmsNormHeads, RopeAngles and
  // ApplyRope, InvalidArgument (features past qk_dim, one of cos and sin), Unsupported (qk_dim beyond
  // kMaxBufferedHeadDim); nothing is written then. Allocation: none. Stack: about 50 KB.
  Status Write(SequenceId sequence, int64_t layer, const ConstTensorView& k, const ConstTensorView& v,
               const KeyTransform& transform, int64_t begin = 0, int64_t batch = 0) noexcept;

  // length += n; the rest of the reservation stays, with positions counted from the new length. Errors: NotFound,
  // OutOfRange (n negative or more than reserved), FailedPrecondition (one of the n tokens was not written in every
  // layer: names both; nothing changed). Allocation: none.
  Status Commit(SequenceId sequence, int64_t n) noexcept;

  // Commits some of the reserved tokens, the accepted ones of a draft: length += n, and the token that stood at place
  // accepted[i] behind the old length stands at place i, its stored bytes unchanged. The rest of the reservation is
  // dropped. A token with accepted[i] == i is not copied. The caller has rotated keys for the positions where they end
  // up, as a tree mask places them: in a path of a tree accepted[i] has depth i. Errors: NotFound, OutOfRange (n or an
  // index not within what is reserved), InvalidArgument (accepted not strictly ascending, or null), FailedPrecondition
  // (an accepted token was not written in every layer). Nothing changed then. Allocation: none.
  Status CommitPath(SequenceId sequence, const int64_t* accepted, int64_t n) noexcept;

  // Gives back what was reserved and not committed. Errors: NotFound.
  Status Abandon(SequenceId sequence) noexcept;

  // Reserve, Write and Commit in one, for a cache with one layer. All or nothing.
  // Errors: those of the three; FailedPrecondition when the cache has more than one layer.
  Status Append(SequenceId sequence, const ConstTensorView& k, const ConstTensorView& v) noexcept;
  Status Append(SequenceId sequence, const ConstTensorView& k, const ConstTensorView& v,
                const KeyTransform& transform) noexcept;

  // Rolls back to `length` <= the committed length, drops any reservation and gives back pages that hold nothing any
  // more. Errors: NotFound, OutOfRange, FailedPrecondition (a group with a window keeps too little for that length:
  // names both). Allocation: none.
  Status Truncate(SequenceId sequence, int64_t length) noexcept;

  // Removes committed tokens [begin, end) and moves those behind them down, in tiles, blocks and positions alike; drops
  // any reservation. Values keep their stored bytes. Keys do, too, without `shifts`, for models whose keys carry no
  // position (ALiBi); otherwise shifts has one element per layer group, and every moved key is decoded, turned back by
  // end - begin positions and encoded again: to f32 rounding in f32, within a step of the element type's rounding per
  // removal elsewhere. Shared pages are copied before. Errors: NotFound, OutOfRange, InvalidArgument (shifts),
  // Unsupported (a scaling whose angles are not linear in the position, which ResolveRope makes so; rotated features
  // that are values, too), FailedPrecondition (a group with a window has lost tokens at or behind begin, or keeps too
  // little for the new length), ResourceExhausted (copies of shared pages). Nothing changed then. Allocation: none.
  // Time: that of copying what moves.
  Status Remove(SequenceId sequence, int64_t begin, int64_t end, std::span<const RopeShift> shifts) noexcept;

  // Tells the ids of committed tokens [begin, begin + n), for ForkPrefix. A token that has an id, also through a
  // sequence that shares its page, keeps it; ids go away with their tokens, and with removal before them. Errors:
  // NotFound, OutOfRange, InvalidArgument (null; a token with another id: names both), FailedPrecondition (tokens
  // before begin have none), Unsupported (all layer groups have windows); nothing changed then. Allocation: none.
  Status SetTokens(SequenceId sequence, const int32_t* ids, int64_t n, int64_t begin = 0) noexcept;

  // A new sequence that shares the longest run of full pages with any living sequence whose ids are the first of these
  // n, at most n - 1 tokens, so that at least one is left to compute; `*matched` is their number, 0 for an empty
  // sequence. Ids are compared, not only their hashes. Errors: InvalidArgument, ResourceExhausted (max_sequences),
  // Unsupported (all layer groups have windows). Allocation: none.
  Result<SequenceId> ForkPrefix(const int32_t* ids, int64_t n, int64_t* matched) noexcept;

  // Reads committed tokens [begin, begin + k.num_tokens) of `layer` back as rows, exactly as stored, into batch entry 0
  // of views of f32, or of the 16-bit type that is stored. Errors: NotFound, OutOfRange, FailedPrecondition (tokens
  // that the layer's window has passed), InvalidArgument, Unsupported. Allocation: none.
  Status Read(SequenceId sequence, int64_t layer, int64_t begin, const TensorView& k,
              const TensorView& v) const noexcept;

  // For the library itself.
  const internal::KVCacheImpl& impl() const noexcept { return *impl_; }
  internal::KVCacheImpl& impl() noexcept { return *impl_; }

 private:
  explicit KVCache(std::unique_ptr<internal::KVCacheImpl> impl) noexcept;
  std::unique_ptr<internal::KVCacheImpl> impl_;
};

}  // namespace headlane

#endif  // HEADLANE_KV_CACHE_H_
