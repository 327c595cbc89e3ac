// The shape of an attention problem once it has been checked: what planning and execution need to know of a spec, with
// nothing optional left.
//
// Separate from AttentionSpec so that defaults, divisions and roundings are made once, at plan time, and not in every
// run.
#ifndef HEADLANE_SRC_PLAN_PROBLEM_H_
#define HEADLANE_SRC_PLAN_PROBLEM_H_

#include <cstdint>

#include "base/blocking.h"
#include "headlane/attention.h"
#include "headlane/mask.h"

namespace headlane::internal {

// Refused beyond these, long before a product of two of them could overflow.
inline constexpr int64_t kMaxHeads = int64_t{1} << 20;
inline constexpr int64_t kMaxDim = int64_t{1} << 20;
inline constexpr int64_t kMaxBatchSequences = int64_t{1} << 20;
inline constexpr int64_t kMaxKvLen = int64_t{1} << 40;      // keys of one sequence, and positions of either sign
inline constexpr int64_t kMaxQueryRows = int64_t{1} << 30;  // tokens times query heads of one call
inline constexpr int kMaxWorkers = 4096;                    // more are taken as this many

// What holds the keys and values.
enum class KeysIn : int32_t {
  kTensors = 0,  // plain tensors
  kCache,        // a KVCache
  kTilePages,    // pages of tiles of the caller's
  kRowPages,     // pages of rows of the caller's: packed on the way, as tensors are
};

struct Problem {
  int64_t num_q_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t group = 0;  // query heads per KV head; 0 when there are no KV heads
  int64_t qk_dim = 0;
  int64_t v_dim = 0;
  float scale = 1;
  float softcap = 0;
  Mask mask;
  KeysIn keys_in = KeysIn::kTensors;
  bool from_cache = false;  // tiles are in memory: kCache or kTilePages
  int64_t cache_group = 0;
  bool values_in_keys = false;
  bool rotate = false;          // keys and values are stored rotated: queries are turned likewise, outputs back
  DType k_dtype = DType::kF32;  // of cache and pages; plain tensors say theirs at run time
  DType v_dtype = DType::kF32;

  int64_t num_stripes = 0;  // ceil(v_dim / 16)
  int64_t q_pitch = 0;      // floats per row of scaled queries
  int64_t o_pitch = 0;      // floats per row of an output accumulator: num_stripes * 16

  // Whether blocks of a few rows of several KV heads may be made. A token's heads are often neighbours in plain
  // tensors, and memory gives most when all are read together; strides come with the run, which walks one head after
  // the other where they are not.
  bool SharesHeads() const { return !from_cache && !values_in_keys && num_kv_heads > 1 && v_dim % kTileKeys == 0; }

  // Query rows of one sequence and one KV head: row r is token r / group, head r % group of the KV head's group. Tokens
  // come first so that the visible intervals of consecutive rows never fall.
  int64_t RowsPerKvHead(int64_t q_len) const { return q_len * group; }
};

// Rows a kernel call works on: their scores and queries stay in the L1 cache while a block of keys passes by. A
// multiple of the row counts of the micro-kernels (6, 8, 12).
inline constexpr int64_t kSubRows = 24;
// Blocks of up to so many rows are one sub-block: the time is that of reading K and V, and a second sub-block would
// read them twice. All query rows of a KV head share one pass over the keys if they are no more than this.
inline constexpr int64_t kDecodeRows = 32;
// Rows that use quantised tiles as they are; for more, a block of them is widened first.
inline constexpr int64_t kMaxQuantizedRows = 8;
// Up to so many query rows of a KV head wait for memory, and use the rows of plain tensors where they lie; for more,
// tiles that are packed once are less work.
inline constexpr int64_t kInPlaceRows = 8;

// Rows of a block of the tile path. A block of keys stays in L2 while all of them pass by, one sub-block of 24 after
// the other; their queries and accumulators need not: 24 rows of 128 + 128 floats come and go while 0.8 million FMAs
// are made. More rows mean less reading, and for plain tensors less packing, of the keys (192 to 384 rows on an AVX2
// EPYC: 7 % of a prefill from plain tensors); fewer mean more pieces to share out.
// Where the values are in the keys, the heads of a token stay together, so that their one latent is read, and its
// values transposed, once for all of them.
int64_t TileRows(const Problem& problem) noexcept;

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_PLAN_PROBLEM_H_
