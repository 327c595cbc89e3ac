// The order of operations of one item (Milakov and Gimelshein 2018; Dao et al. 2022; splits as in Flash-Decoding,
// 2023):
//
//   for each split of 1024 keys                      a fresh state m = -inf, l = 0, o = 0
//     for each block of 128 keys, for each sub-block of rows
//       S = Q K^T                                    tiles that no row of the sub-block sees are not visited
//       S = cap tanh(S / cap) + bias + slope * distance
//       m' = max(m, S);  c = exp(m - m');  W = exp(S - m');  l = l c + sum W
//       O = O c + W V
//     l = its 16 partial sums by a fixed tree
//     running state = fold(running state, state)
//   out = O / l, lse = m + ln l
//
// Blocks are the outer loop and sub-blocks of rows the inner one: a block's K and V come from memory once and stay in
// L2, while a sub-block's scores stay in L1. A row's own order of operations is the same for any sub-blocks, row blocks
// and items. Tiles that are not visited would have changed nothing: their keys count for no row.
//
// Where a row block has several KV heads, each is a sub-block of its own with its own keys. Heads that are neighbours
// in a plain tensor are walked together, tile by tile: one head alone is 512 bytes here and there in pages of 4 KiB,
// and reads at half of the memory's bandwidth.
#include "exec/item.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/blocking.h"
#include "base/check.h"
#include "exec/block_mask.h"
#include "exec/output.h"
#include "exec/tile_source.h"
#include "kernels/kernel_api.h"
#include "mask/visibility.h"

namespace headlane::internal {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// How many tiles ahead rows of plain tensors are fetched. 1 to 4 are the same on Zen 3, 8 are slower.
constexpr int64_t kTilesAhead = 2;

// Factors of rows whose o has been rescaled.
alignas(64) constexpr float kOnes[kDecodeRows] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                                  1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

// What one kernel call works on: the visited tiles of a block, in ascending order.
struct TileList {
  int32_t index[kTilesPerBlock];  // within the block
  const void* k[kTilesPerBlock];
  const void* v[kTilesPerBlock];
  int64_t num = 0;
  bool non_finite = false;

  // Without addresses.
  explicit TileList(uint32_t bits) {
    for (; bits != 0; bits &= bits - 1) index[num++] = std::countr_zero(bits);
  }
  TileList(uint32_t bits, const BlockTiles& tiles) {
    non_finite = (tiles.non_finite & bits) != 0;
    for (int32_t t = 0; t < kTilesPerBlock; ++t) {
      if ((bits >> t & 1) == 0) continue;
      index[num] = t;
      k[num] = tiles.k[t];
      v[num++] = tiles.v[t];
    }
  }
};

class ItemRunner {
 public:
  ItemRunner(const RunContext& run, const WorkItem& item, const Slot& slot)
      : problem_(run.plan.problem()),
        kernels_(run.plan.kernels()),
        run_(run),
        args_(run.args),
        item_(item),
        block_(run.plan.work().blocks[static_cast<size_t>(item.block)]),
        sequence_(run.plan.sequences()[static_cast<size_t>(block_.sequence)]),
        mask_(ResolveMask(problem_.mask, sequence_)),
        slot_(slot),
        source_(run, block_, slot),
        block_mask_(run, block_, mask_, slot) {}

  bool Run() {
    GatherRows();
    block_mask_.FindSubBlocks();
    const bool complete = RunSplits();
    if (args_.counters != nullptr) Count();
    return complete;
  }

 private:
  bool RunSplits() {
    if (item_.split_begin == item_.split_end) {
      // No row sees a key, so that o is never looked at.
      const State state = StateInSlot(slot_, 0);
      Clear(state);
      std::fill_n(state.l, block_.num_rows, 0.0f);
      Finish(run_, block_, slot_, state);
      return true;
    }
    // Splits are folded as they come into what began with the row block's first split; others are left apart.
    const bool has_first = item_.split_begin == 0;
    bool has_running = false;
    State running{};
    for (int64_t i = item_.split_begin; i < item_.split_end; ++i) {
      if (run_.Stopped()) return false;
      const bool apart = !has_first || !has_running;
      State state = apart
                        ? (block_.cut() ? StateInWorkspace(run_, block_, block_.StateIndex(i)) : StateInSlot(slot_, 0))
                        : StateInSlot(slot_, 1);
      RunSplit(block_.SplitAt(i), state);
      if (!has_first) continue;
      if (has_running) {
        Fold(run_, block_.num_rows, running, state);
      } else {
        running = state;
        has_running = true;
      }
    }
    if (!block_.cut()) Finish(run_, block_, slot_, running);
    return true;
  }

  // Dense rows of q * scale, what each of them sees, and its head's slope.
  void GatherRows() {
    for (int64_t i = 0; i < block_.num_heads; ++i) GatherRowsOf(block_.kv_head + i, i * block_.head_rows());
  }

  void GatherRowsOf(int64_t kv_head, int64_t first) {
    const ConstTensorView& q = args_.q;
    const int64_t element = DTypeBytes(q.dtype);
    int64_t token = block_.row_begin / problem_.group;
    int64_t in_group = block_.row_begin % problem_.group;
    RowKeys visible = VisibleKeys(mask_, token);
    int64_t position = args_.alibi_slopes != nullptr ? RowPosition(mask_, token) : 0;
    const int64_t end = first + block_.head_rows();
    for (int64_t r = first; r < end; ++r) {
      const int64_t head = kv_head * problem_.group + in_group;
      if (problem_.qk_dim > 0) {
        const std::byte* const row = static_cast<const std::byte*>(q.data) +
                                     element * (sequence_.batch * q.batch_stride +
                                                (sequence_.q_begin + token) * q.token_stride + head * q.head_stride);
        kernels_.elementwise.scale(row, q.dtype, q.dim_stride, problem_.scale, problem_.qk_dim,
                                   slot_.q + r * problem_.q_pitch);
        if (problem_.rotate) kernels_.hadamard(slot_.q + r * problem_.q_pitch, problem_.qk_dim);
      }
      slot_.keys[r] = visible;
      if (args_.alibi_slopes != nullptr) {
        slot_.slopes[r] = args_.alibi_slopes[head];
        slot_.row_offset[r] = -position;
      }
      if (++in_group == problem_.group && r + 1 < end) {
        in_group = 0;
        ++token;
        visible = VisibleKeys(mask_, token);
        if (args_.alibi_slopes != nullptr) position = RowPosition(mask_, token);
      }
    }
  }

  void Clear(const State& state) const {
    std::fill_n(state.m, block_.num_rows, -kInfinity);
    std::fill_n(slot_.l16, block_.num_rows * kTileKeys, 0.0f);
  }

  void RunSplit(int64_t split, const State& state) {
    Clear(state);
    for (int64_t i = 0; i < block_mask_.num_sub_blocks(); ++i) block_mask_.sub_block(i).started = false;
    if (block_.num_heads == 1 || source_.heads_together()) {
      ForEachBlock(split, [&](int64_t b) { RunBlock(b, state); });
    } else {
      for (int64_t i = 0; i < block_.num_heads; ++i) {
        source_.SelectHead(i);
        ForEachBlock(split, [&](int64_t b) {
          block_mask_.PrepareSubBlock(b * kBlockKeys, &block_mask_.sub_block(i));
          RunSelectedHead(b, state, &block_mask_.sub_block(i));
        });
      }
    }
    // A sub-block that saw nothing has an o that was never written; its l of 0 says so.
    ReduceArgs reduce;
    reduce.l16 = slot_.l16;
    reduce.rows = block_.num_rows;
    reduce.l = state.l;
    kernels_.softmax.reduce(reduce);
  }

  // Calls f(number of the block) for the blocks of a split that some row sees keys of.
  template <typename F>
  void ForEachBlock(int64_t split, const F& f) const {
    const int64_t begin = split * kSplitKeys;
    int64_t next_block = 0;
    for (const KeyInterval& keys : {block_.keys.first, block_.keys.rest}) {
      const KeyInterval range = Intersect(keys, begin, begin + kSplitKeys);
      if (range.empty()) continue;
      // Both intervals may touch one block, which is visited once.
      int64_t b = std::max(range.begin / kBlockKeys, next_block);
      for (; b * kBlockKeys < range.end; ++b) f(b);
      next_block = b;
    }
  }

  void RunBlock(int64_t key_block, const State& state) {
    const int64_t base = key_block * kBlockKeys;
    const uint32_t visited = block_mask_.Prepare(base);
    if (visited == 0) return;
    if (block_.num_heads > 1) {
      if (HeadsAreAlike()) return RunHeadsTogether(base, state);
      for (int64_t i = 0; i < block_.num_heads; ++i) {
        source_.SelectHead(i);
        RunSelectedHead(key_block, state, &block_mask_.sub_block(i));
      }
      return;
    }
    source_.Load(key_block, visited, &tiles_);
    num_loaded_tiles_ += std::popcount(visited);
    // The first sub-block to use the block brings it from memory; for the others it is in L2.
    bool is_first = true;
    for (int64_t i = 0; i < block_mask_.num_sub_blocks(); ++i) {
      SubBlock& sub = block_mask_.sub_block(i);
      if (sub.tiles == 0) continue;
      RunSubBlock(base, is_first, state, &sub);
      is_first = false;
    }
  }

  void RunSelectedHead(int64_t key_block, const State& state, SubBlock* sub) {
    if (sub->tiles == 0) return;
    source_.Load(key_block, sub->tiles, &tiles_);
    num_loaded_tiles_ += std::popcount(sub->tiles);
    RunSubBlock(key_block * kBlockKeys, true, state, sub);
  }

  // Whether all heads visit the same tiles, which only masks of each head's own prevent.
  bool HeadsAreAlike() {
    const SubBlock& first = block_mask_.sub_block(0);
    for (int64_t i = 1; i < block_.num_heads; ++i) {
      const SubBlock& sub = block_mask_.sub_block(i);
      if (sub.tiles != first.tiles || sub.started != first.started) return false;
    }
    return true;
  }

  // A tile of keys of all heads, then the next; values likewise. Every head keeps its own scores meanwhile.
  void RunHeadsTogether(int64_t base, const State& state) {
    const SubBlock& first = block_mask_.sub_block(0);
    const TileList list(first.tiles);
    source_.SelectHead(0);
    ScoresInPlace(base, list, first, block_.num_heads);
    for (int64_t i = 0; i < block_.num_heads; ++i) {
      const SubBlock& sub = block_mask_.sub_block(i);
      Count(sub, list);
      num_loaded_tiles_ += list.num;
      Weigh(base, list, sub, state, PartOf(sub));
    }
    SumInPlace(base, list, first, block_.num_heads, state);
    for (int64_t i = 0; i < block_.num_heads; ++i) block_mask_.sub_block(i).started = true;
  }

  // Where a sub-block has its scores and what belongs to them.
  struct Part {
    float* s;
    float* c;
    uint16_t* live;
  };
  Part PartOf(const SubBlock& sub) const {
    return {slot_.s + sub.row_begin * kBlockKeys, slot_.c + sub.row_begin, slot_.live + sub.row_begin * kTilesPerBlock};
  }

  void RunSubBlock(int64_t base, bool is_first, const State& state, SubBlock* sub) {
    const TileList list(sub->tiles, tiles_);
    const int64_t row = sub->row_begin;
    Count(*sub, list);

    if (source_.k_in_place()) {
      ScoresInPlace(base, list, *sub, 1);
    } else if (problem_.qk_dim > 0) {
      QkArgs qk;
      qk.q = slot_.q + row * problem_.q_pitch;
      qk.q_pitch = problem_.q_pitch;
      qk.rows = sub->num_rows;
      qk.qk_dim = problem_.qk_dim;
      qk.k_tiles = list.k;
      qk.num_tiles = list.num;
      qk.s = slot_.s;
      qk.stream = is_first && source_.k_from_memory();
      if (source_.v_from_memory()) qk.next = list.v[0];
      source_.k_kernels().qk(qk);
    } else {
      std::fill_n(slot_.s, sub->num_rows * kBlockKeys, 0.0f);  // the empty sum
    }
    const bool wants_live = list.non_finite || source_.v_in_place();
    Weigh(base, list, *sub, state, {slot_.s, slot_.c, wants_live ? slot_.live : nullptr});

    if (source_.v_in_place()) {
      SumInPlace(base, list, *sub, 1, state);
    } else if (problem_.v_dim > 0) {
      PvArgs pv;
      pv.w = slot_.s;
      pv.rows = sub->num_rows;
      pv.v_tiles = list.v;
      pv.num_tiles = list.num;
      pv.num_stripes = problem_.num_stripes;
      pv.c = sub->started ? slot_.c : nullptr;
      pv.o = state.o + row * problem_.o_pitch;
      pv.o_pitch = problem_.o_pitch;
      pv.live = wants_live ? slot_.live : nullptr;
      pv.stream = is_first && source_.v_from_memory();
      pv.next = source_.NextKTile(base / kBlockKeys + 1);
      source_.v_kernels().pv(pv);
    }
    sub->started = true;
  }

  void Count(const SubBlock& sub, const TileList& list) {
    num_row_tiles_ += sub.num_rows * list.num;
    num_tiles_ += list.num;
  }

  // From products to weights.
  void Weigh(int64_t base, const TileList& list, const SubBlock& sub, const State& state, const Part& part) const {
    if (changes_scores_) ChangeScores(base, list, sub, part.s);
    SoftmaxArgs softmax;
    softmax.s = part.s;
    softmax.rows = sub.num_rows;
    softmax.num_tiles = list.num;
    block_mask_.SetVisible(sub, base, list.index, list.num, &softmax);
    softmax.m = state.m + sub.row_begin;
    softmax.l = slot_.l16 + sub.row_begin * kTileKeys;
    softmax.c = part.c;
    softmax.live = part.live;
    kernels_.softmax.softmax(softmax);
  }

  // Calls f(number of the first tile in the list, key it begins with, keys) for consecutive tiles of the list whose
  // rows follow each other.
  template <typename F>
  void ForEachRun(int64_t base, const TileList& list, const TileSource::Rows& rows, const F& f) const {
    for (int64_t i = 0; i < list.num;) {
      int64_t end = i + 1;
      while (end < list.num && list.index[end] == list.index[end - 1] + 1 &&
             source_.GoesOn(rows, base + list.index[end] * kTileKeys)) {
        ++end;
      }
      const int64_t key = base + list.index[i] * kTileKeys;
      f(i, key, std::min((end - i) * kTileKeys, sequence_.kv_len - key));
      i = end;
    }
  }

  // Of the selected head, or of all heads of the row block.
  void ScoresInPlace(int64_t base, const TileList& list, const SubBlock& sub, int64_t num_heads) const {
    const TileSource::Rows& rows = source_.k_rows();
    QkRowsArgs qk{};
    qk.q = slot_.q + sub.row_begin * problem_.q_pitch;
    qk.q_pitch = problem_.q_pitch;
    qk.rows = sub.num_rows;
    qk.qk_dim = problem_.qk_dim;
    qk.k_dtype = rows.dtype;
    qk.num_heads = num_heads;
    qk.row_stride = rows.row_stride;
    qk.head_stride = rows.head_stride;
    qk.ahead = kTilesAhead;
    qk.scratch = source_.scratch();
    ForEachRun(base, list, rows, [&](int64_t i, int64_t key, int64_t num_keys) {
      qk.k = source_.RowAt(rows, key);
      if (source_.v_in_place()) qk.next = source_.NextAt(source_.v_rows(), key);
      qk.num_keys = num_keys;
      qk.s = slot_.s + i * kTileKeys;
      kernels_.qk_rows(qk);
    });
  }

  void SumInPlace(int64_t base, const TileList& list, const SubBlock& sub, int64_t num_heads,
                  const State& state) const {
    const TileSource::Rows& rows = source_.v_rows();
    PvRowsArgs pv{};
    pv.rows = sub.num_rows;
    pv.v_dtype = rows.dtype;
    pv.num_heads = num_heads;
    pv.row_stride = rows.row_stride;
    pv.head_stride = rows.head_stride;
    pv.ahead = kTilesAhead;
    pv.v_dim = problem_.v_dim;
    pv.o = state.o + sub.row_begin * problem_.o_pitch;
    pv.o_pitch = problem_.o_pitch;
    pv.c = sub.started ? slot_.c : nullptr;
    ForEachRun(base, list, rows, [&](int64_t i, int64_t key, int64_t num_keys) {
      if (i > 0) pv.c = kOnes;  // rescaled by the first run
      pv.w = slot_.s + i * kTileKeys;
      pv.live = slot_.live + i;
      pv.v = source_.RowAt(rows, key);
      // Most likely: the next block's keys.
      if (source_.k_in_place()) pv.next = source_.NextAt(source_.k_rows(), key + kBlockKeys);
      pv.num_keys = num_keys;
      kernels_.pv_rows(pv);
    });
  }

  void ChangeScores(int64_t base, const TileList& list, const SubBlock& sub, float* s) const {
    ScoreArgs scores{};
    scores.s = s;
    scores.rows = sub.num_rows;
    scores.num_tiles = list.num;
    scores.softcap = problem_.softcap;
    if (args_.bias.data != nullptr) {
      GatherBias(base, list, sub);
      scores.bias = slot_.bias;
    }
    if (args_.alibi_slopes != nullptr) {
      FindDistances(base, list, sub);
      scores.slopes = slot_.slopes + sub.row_begin;
      scores.row_offset = slot_.sub_offset;
      scores.key_offset = slot_.key_offset;
    }
    kernels_.softmax.scores(scores);
  }

  // Biases of hidden keys are read and dropped with their scores. Behind kv_len nothing is read.
  void GatherBias(int64_t base, const TileList& list, const SubBlock& sub) const {
    const ConstTensorView& bias = args_.bias;
    const int64_t element = DTypeBytes(bias.dtype);
    for (int64_t r = 0; r < sub.num_rows; ++r) {
      const int64_t row = sub.head_row + r;
      const int64_t token = sequence_.q_begin + row / problem_.group;
      const int64_t head = sub.kv_head * problem_.group + row % problem_.group;
      const int64_t first = sequence_.batch * bias.batch_stride + token * bias.token_stride + head * bias.head_stride;
      for (int64_t i = 0; i < list.num; ++i) {
        const int64_t column = base + list.index[i] * kTileKeys;
        const int64_t count = std::min(kTileKeys, sequence_.kv_len - column);
        float* const to = slot_.bias + r * kBlockKeys + i * kTileKeys;
        kernels_.elementwise.scale(
            static_cast<const std::byte*>(bias.data) + element * (first + column * bias.dim_stride), bias.dtype,
            bias.dim_stride, 1.0f, count, to);
        std::fill(to + count, to + kTileKeys, 0.0f);
      }
    }
  }

  void FindDistances(int64_t base, const TileList& list, const SubBlock& sub) const {
    for (int64_t r = 0; r < sub.num_rows; ++r) {
      slot_.sub_offset[r] = base + slot_.row_offset[sub.row_begin + r];
    }
    for (int64_t i = 0; i < list.num; ++i) {
      for (int64_t lane = 0; lane < kTileKeys; ++lane) {
        const int64_t key = base + list.index[i] * kTileKeys + lane;
        const int64_t position = mask_.has_tree() && key < mask_.kv_len ? KeyPosition(mask_, key) : key;
        slot_.key_offset[i * kTileKeys + lane] = static_cast<int32_t>(position - base);
      }
    }
  }

  void Count() const {
    RunCounters& counters = *args_.counters;
    constexpr auto kRelaxed = std::memory_order_relaxed;
    (block_.decode() ? counters.decode_items : counters.tile_items).fetch_add(1, kRelaxed);
    counters.kv_bytes.fetch_add(num_loaded_tiles_ * source_.tile_bytes(), kRelaxed);
    counters.flops.fetch_add(2 * kTileKeys * num_row_tiles_ * (problem_.qk_dim + problem_.v_dim), kRelaxed);
    counters.num_tiles.fetch_add(num_tiles_, kRelaxed);
  }

  const Problem& problem_;
  const KernelTable& kernels_;
  const RunContext& run_;
  const AttentionArgs& args_;
  const WorkItem& item_;
  const RowBlock& block_;
  const SequenceSpec& sequence_;
  const SequenceMask mask_;
  const Slot& slot_;
  TileSource source_;
  BlockMask block_mask_;
  BlockTiles tiles_;  // of the present block
  const bool changes_scores_ = problem_.softcap > 0 || args_.bias.data != nullptr || args_.alibi_slopes != nullptr;
  int64_t num_loaded_tiles_ = 0;
  int64_t num_row_tiles_ = 0;
  int64_t num_tiles_ = 0;
};

}  // namespace

bool RunItem(const RunContext& run, const WorkItem& item, const Slot& slot) noexcept {
  return ItemRunner(run, item, slot).Run();
}

void FoldAndFinish(const RunContext& run, const RowBlock& block, const Slot& slot) noexcept {
  const State running = StateInWorkspace(run, block, 0);
  for (int64_t i = 1; i < block.NumStates(); ++i) Fold(run, block.num_rows, running, StateInWorkspace(run, block, i));
  Finish(run, block, slot, running);
}

}  // namespace headlane::internal
