// The order of operations of one item (Milakov and Gimelshein 2018; Dao et al. 2022; splits as in Flash-Decoding,
// 2023):
//
//   for each split of 1024 keys                      a fresh state m = -inf, l = 0, o = 0
//     for each block of 128 keys, for each sub-block of rows
//       S = Q K^T                                    tiles that no row of the sub-block sees are not visited
//       m' = max(m, S);  c = exp(m - m');  W = exp(S - m');  l = l c + sum W
//       O = O c + W V
//     l = its 16 partial sums by a fixed tree
//     running state = fold(running state, state)
//   out = O / l, lse = m + ln l
//
// Blocks are the outer loop and sub-blocks of rows the inner one: a block's K and V come from memory once and stay in
// L2, while a sub-block's scores stay in L1. A row's own order of operations is the same for any sub-blocks, row blocks
// and items.
#include "exec/item.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/blocking.h"
#include "base/check.h"
#include "exec/tile_source.h"
#include "kernels/kernel_api.h"

namespace headlane::internal {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// TileRows() gives at most 384 rows.
constexpr int64_t kMaxSubBlocks = 384 / kSubRows;

struct State {
  float* m;  // [rows]
  float* l;  // [rows]
  float* o;  // [rows][o_pitch]
};

State StateInWorkspace(const RunContext& run, const RowBlock& block, int64_t index) {
  const StateLayout layout = MakeStateLayout(block.num_rows, run.plan.problem().o_pitch);
  float* const base = reinterpret_cast<float*>(run.memory.states() + block.state_offset + index * layout.bytes);
  return {base, base + layout.l, base + layout.o};
}

State StateInSlot(const Slot& slot, int index) { return {slot.m[index], slot.l[index], slot.o[index]}; }

// Rows that go through a kernel together.
struct SubBlock {
  int64_t row_begin;  // within the row block
  int64_t num_rows;
  KeyInterval seen;    // by any row
  KeyInterval by_all;  // by every row
  bool started;        // in the present split
};

class ItemRunner {
 public:
  ItemRunner(const RunContext& run, const WorkItem& item, const Slot& slot)
      : problem_(run.plan.problem()),
        kernels_(run.plan.kernels()),
        run_(run),
        item_(item),
        block_(run.plan.work().blocks[static_cast<size_t>(item.block)]),
        slot_(slot),
        source_(run, block_, slot) {}

  void Run() {
    if (item_.split_begin == item_.split_end) {
      // No row sees a key, so that o is never looked at.
      Clear(StateInSlot(slot_, 0));
      FillZero(slot_.l[0]);
      Finish(run_, block_, slot_, StateInSlot(slot_, 0));
      return;
    }
    GatherQueries();
    FindSubBlocks();

    // Splits are folded as they come into what began with the row block's first split; others are left apart.
    const bool has_first = item_.split_begin == 0;
    bool has_running = false;
    State running{};
    for (int64_t split = item_.split_begin; split < item_.split_end; ++split) {
      const bool apart = !has_first || !has_running;
      State state =
          apart ? (block_.cut() ? StateInWorkspace(run_, block_, block_.StateIndex(split)) : StateInSlot(slot_, 0))
                : StateInSlot(slot_, 1);
      RunSplit(block_.SplitAt(split), state);
      if (!has_first) continue;
      if (has_running) {
        Fold(kernels_, problem_, block_.num_rows, running, state);
      } else {
        running = state;
        has_running = true;
      }
    }
    if (!block_.cut()) Finish(run_, block_, slot_, running);
  }

  static void Fold(const KernelTable& kernels, const Problem& problem, int64_t num_rows, const State& a,
                   const State& b) {
    FoldArgs args;
    args.rows = num_rows;
    args.o_width = problem.o_pitch;
    args.m_a = a.m;
    args.l_a = a.l;
    args.o_a = a.o;
    args.pitch_a = problem.o_pitch;
    args.m_b = b.m;
    args.l_b = b.l;
    args.o_b = b.o;
    args.pitch_b = problem.o_pitch;
    kernels.softmax.fold(args);
  }

  static void Finish(const RunContext& run, const RowBlock& block, const Slot& slot, const State& state) {
    const Problem& problem = run.plan.problem();
    const SequenceSpec& sequence = run.plan.sequences()[static_cast<size_t>(block.sequence)];
    const TensorView& out = run.args.out;
    const LseView& lse = run.args.lse;
    int64_t token = sequence.q_begin + block.row_begin / problem.group;
    int64_t in_group = block.row_begin % problem.group;
    for (int64_t r = 0; r < block.num_rows; ++r) {
      const int64_t head = block.kv_head * problem.group + in_group;
      // Without features `out` may be null; nothing is stored then.
      slot.out_rows[r] = problem.v_dim == 0 ? nullptr
                                            : static_cast<float*>(out.data) + sequence.batch * out.batch_stride +
                                                  token * out.token_stride + head * out.head_stride;
      if (lse.data != nullptr) {
        slot.lse_rows[r] =
            lse.data + sequence.batch * lse.batch_stride + token * lse.token_stride + head * lse.head_stride;
      }
      if (++in_group == problem.group) {
        in_group = 0;
        ++token;
      }
    }
    FinishArgs args;
    args.rows = block.num_rows;
    args.v_dim = problem.v_dim;
    args.m = state.m;
    args.l = state.l;
    args.o = state.o;
    args.o_pitch = problem.o_pitch;
    args.out = reinterpret_cast<void* const*>(slot.out_rows);
    args.out_dtype = out.dtype;
    args.out_stride = out.dim_stride;
    args.lse = lse.data != nullptr ? slot.lse_rows : nullptr;
    run.plan.kernels().softmax.finish(args);
  }

 private:
  // What the block's rows see of a split.
  KeyInterval Range(int64_t split) const {
    return Intersect(block_.keys.hull(), split * kSplitKeys, (split + 1) * kSplitKeys);
  }
  KeyInterval BlockKeys(int64_t key_block) const {
    return Intersect(block_.keys.hull(), key_block * kBlockKeys, (key_block + 1) * kBlockKeys);
  }

  // Dense rows of q * scale, and what each of them sees.
  void GatherQueries() {
    const SequenceSpec& sequence = run_.plan.sequences()[static_cast<size_t>(block_.sequence)];
    const ConstTensorView& q = run_.args.q;
    int64_t token = block_.row_begin / problem_.group;
    int64_t in_group = block_.row_begin % problem_.group;
    KeyInterval visible = VisibleInterval(problem_.mask, sequence.q_len, sequence.kv_len, token);
    for (int64_t r = 0; r < block_.num_rows; ++r) {
      if (problem_.qk_dim > 0) {
        const int64_t head = block_.kv_head * problem_.group + in_group;
        const float* const row = static_cast<const float*>(q.data) + sequence.batch * q.batch_stride +
                                 (sequence.q_begin + token) * q.token_stride + head * q.head_stride;
        kernels_.elementwise.scale(row, q.dtype, q.dim_stride, problem_.scale, problem_.qk_dim,
                                   slot_.q + r * problem_.q_pitch);
      }
      slot_.keys[r] = visible;
      if (++in_group == problem_.group && r + 1 < block_.num_rows) {
        in_group = 0;
        ++token;
        visible = VisibleInterval(problem_.mask, sequence.q_len, sequence.kv_len, token);
      }
    }
  }

  void FindSubBlocks() {
    num_sub_blocks_ = CeilDiv(block_.num_rows, block_.sub_rows);
    HEADLANE_DCHECK(num_sub_blocks_ <= kMaxSubBlocks);
    for (int64_t i = 0; i < num_sub_blocks_; ++i) {
      SubBlock& sub = sub_blocks_[i];
      sub.row_begin = i * block_.sub_rows;
      sub.num_rows = std::min<int64_t>(block_.sub_rows, block_.num_rows - sub.row_begin);
      sub.seen = slot_.keys[sub.row_begin];
      sub.by_all = sub.seen;
      for (int64_t r = sub.row_begin + 1; r < sub.row_begin + sub.num_rows; ++r) {
        const KeyInterval& keys = slot_.keys[r];
        if (!keys.empty()) {
          sub.seen = sub.seen.empty()
                         ? keys
                         : KeyInterval{std::min(sub.seen.begin, keys.begin), std::max(sub.seen.end, keys.end)};
        }
        sub.by_all = Intersect(sub.by_all, keys.begin, keys.end);
      }
    }
  }

  void FillZero(float* l) const { std::fill_n(l, block_.num_rows, 0.0f); }

  void Clear(const State& state) const {
    std::fill_n(state.m, block_.num_rows, -kInfinity);
    std::fill_n(slot_.l16, block_.num_rows * kTileKeys, 0.0f);
  }

  void RunSplit(int64_t split, const State& state) {
    Clear(state);
    for (int64_t i = 0; i < num_sub_blocks_; ++i) sub_blocks_[i].started = false;
    const KeyInterval range = Range(split);
    HEADLANE_DCHECK(!range.empty());
    for (int64_t b = range.begin / kBlockKeys; b * kBlockKeys < range.end; ++b) {
      source_.Load(b, BlockKeys(b), &tiles_);
      RunBlock(b, state);
    }
    ReduceArgs reduce;
    reduce.l16 = slot_.l16;
    reduce.rows = block_.num_rows;
    reduce.l = state.l;
    kernels_.softmax.reduce(reduce);
  }

  void RunBlock(int64_t key_block, const State& state) {
    const int64_t base = key_block * kBlockKeys;
    // The first sub-block to use the block brings it from memory; for the others it is in L2.
    bool is_first = source_.from_cache();
    for (int64_t i = 0; i < num_sub_blocks_; ++i) {
      const KeyInterval seen = Intersect(sub_blocks_[i].seen, base, base + kBlockKeys);
      if (seen.empty()) continue;
      RunSubBlock(base, seen, is_first, state, &sub_blocks_[i]);
      is_first = false;
    }
  }

  void RunSubBlock(int64_t base, const KeyInterval& seen, bool stream, const State& state, SubBlock* sub) {
    const int64_t tile_begin = (seen.begin - base) / kTileKeys;
    const int64_t num_tiles = CeilDiv(seen.end - base, kTileKeys) - tile_begin;
    HEADLANE_DCHECK(tile_begin >= tiles_.begin && tile_begin + num_tiles <= tiles_.end);
    const int64_t row = sub->row_begin;

    if (problem_.qk_dim > 0) {
      QkArgs qk;
      qk.q = slot_.q + row * problem_.q_pitch;
      qk.q_pitch = problem_.q_pitch;
      qk.rows = sub->num_rows;
      qk.qk_dim = problem_.qk_dim;
      qk.k_tiles = tiles_.k + tile_begin;
      qk.num_tiles = num_tiles;
      qk.s = slot_.s;
      qk.stream = stream;
      kernels_.kv[0].qk(qk);
    } else {
      std::fill_n(slot_.s, sub->num_rows * kBlockKeys, 0.0f);  // the empty sum
    }

    // Lanes count from the first visited tile on.
    const int64_t lane_base = base + tile_begin * kTileKeys;
    const int64_t num_lanes = num_tiles * kTileKeys;
    FindLanes(*sub, lane_base, num_lanes);
    const bool select = ((tiles_.non_finite >> tile_begin) & ((1u << num_tiles) - 1)) != 0;
    SoftmaxArgs softmax;
    softmax.s = slot_.s;
    softmax.rows = sub->num_rows;
    softmax.num_tiles = num_tiles;
    softmax.begin = slot_.lane_begin;
    softmax.end = slot_.lane_end;
    softmax.visible = nullptr;
    softmax.m = state.m + row;
    softmax.l = slot_.l16 + row * kTileKeys;
    softmax.c = slot_.c;
    softmax.live = select ? slot_.live : nullptr;
    kernels_.softmax.softmax(softmax);

    if (problem_.v_dim > 0) {
      PvArgs pv;
      pv.w = slot_.s;
      pv.rows = sub->num_rows;
      pv.v_tiles = tiles_.v + tile_begin;
      pv.num_tiles = num_tiles;
      pv.num_stripes = problem_.num_stripes;
      pv.c = sub->started ? slot_.c : nullptr;
      pv.o = state.o + row * problem_.o_pitch;
      pv.o_pitch = problem_.o_pitch;
      pv.live = softmax.live;
      pv.stream = stream;
      kernels_.kv[0].pv(pv);
    }
    sub->started = true;
  }

  void FindLanes(const SubBlock& sub, int64_t lane_base, int64_t num_lanes) const {
    if (sub.by_all.begin <= lane_base && sub.by_all.end >= lane_base + num_lanes) {
      std::fill_n(slot_.lane_begin, sub.num_rows, 0);
      std::fill_n(slot_.lane_end, sub.num_rows, static_cast<int32_t>(num_lanes));
      return;
    }
    for (int64_t r = 0; r < sub.num_rows; ++r) {
      const KeyInterval& keys = slot_.keys[sub.row_begin + r];
      slot_.lane_begin[r] = static_cast<int32_t>(std::clamp<int64_t>(keys.begin - lane_base, 0, num_lanes));
      slot_.lane_end[r] = static_cast<int32_t>(std::clamp<int64_t>(keys.end - lane_base, 0, num_lanes));
    }
  }

  const Problem& problem_;
  const KernelTable& kernels_;
  const RunContext& run_;
  const WorkItem& item_;
  const RowBlock& block_;
  const Slot& slot_;
  TileSource source_;
  BlockTiles tiles_;  // of the present block
  SubBlock sub_blocks_[kMaxSubBlocks];
  int64_t num_sub_blocks_ = 0;
};

}  // namespace

void RunItem(const RunContext& run, const WorkItem& item, const Slot& slot) noexcept {
  ItemRunner(run, item, slot).Run();
}

void FoldAndFinish(const RunContext& run, const RowBlock& block, const Slot& slot) noexcept {
  const State running = StateInWorkspace(run, block, 0);
  for (int64_t i = 1; i < block.NumStates(); ++i) {
    ItemRunner::Fold(run.plan.kernels(), run.plan.problem(), block.num_rows, running, StateInWorkspace(run, block, i));
  }
  ItemRunner::Finish(run, block, slot, running);
}

}  // namespace headlane::internal
