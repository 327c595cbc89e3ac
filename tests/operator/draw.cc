#include "operator/draw.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <memory>

namespace headlane::testing {
namespace {

using reference::Causal;
using reference::Problem;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

DType DrawDType(Random& random) { return random.Pick<DType>({DType::kF32, DType::kF32, DType::kF16, DType::kBF16}); }

DType DrawStoredDType(Random& random) {
  return random.OneIn(3) ? random.Pick<DType>({DType::kI8, DType::kF8E4M3, DType::kI4}) : DrawDType(random);
}

int64_t DrawDim(Random& random) {
  return random.OneIn(3) ? random.Int(1, 40) : random.Pick<int64_t>({1, 7, 16, 64, 80, 96, 128, 160, 256, 257});
}

Heads DrawHeads(Random& random, bool values_in_keys) {
  Heads heads;
  heads.num_kv_heads = values_in_keys ? random.Int(1, 2) : random.Int(1, 3);
  heads.num_q_heads = heads.num_kv_heads * random.Pick<int64_t>({1, 1, 2, 3, 4, 5, 6, 7, 8, 16});
  heads.qk_dim = DrawDim(random);
  heads.v_dim = random.OneIn(2) ? heads.qk_dim : DrawDim(random);
  if (values_in_keys) {
    if (random.OneIn(3)) heads.qk_dim = 576;
    heads.v_dim = heads.qk_dim == 576 ? 512 : random.Int(1, heads.qk_dim);
  }
  return heads;
}

Sight DrawSight(Random& random) {
  Sight sight;
  sight.causal = random.Pick<Causal>({Causal::kBottomRight, Causal::kBottomRight, Causal::kNo, Causal::kTopLeft});
  if (random.OneIn(3)) sight.window = random.Pick<int64_t>({0, 1, 2, 15, 16, 17, 100, 128, 300, 1000, 100000});
  if (random.OneIn(4)) {
    sight.window_right = random.Pick<int64_t>({0, 1, 7, 16, 40, 200, 100000});
    if (random.OneIn(2)) sight.causal = Causal::kNo;  // where causality does not hide more
  }
  if (random.OneIn(5)) sight.chunk = random.Pick<int64_t>({1, 3, 16, 50, 128, 1000, 100000});
  if (random.OneIn(4)) {
    sight.num_always_visible = random.Pick<int64_t>({1, 4, 16, 100, 5000});
    if (random.OneIn(2)) sight.window = random.Pick<int64_t>({1, 16, 100});  // there is something to be exempt from
  }
  if (random.OneIn(3)) sight.softcap = random.Pick<float>({0.5f, 5.0f, 30.0f});
  return sight;
}

int64_t DrawLength(Random& random) {
  switch (random.Int(0, 5)) {
    case 0:
      return random.Int(0, 3);
    case 1:
      return random.Int(4, 40);
    case 2:
      return random.Int(41, 300);
    case 3:  // around an edge
      return random.Pick<int64_t>({16, 64, 128, 256, 1024, 2048}) + random.Int(-1, 1);
    case 4:
      return random.Int(1025, 2300);
    default:
      return random.Int(100, 1100);
  }
}

// A prompt, a chunk of one, a decoded token, a draft, or nothing; at most `pairs` rows times keys.
Sequence DrawSequence(Random& random, const Heads& heads, const Sight& sight, int64_t pairs) {
  int64_t kv_len = DrawLength(random);
  int64_t q_len = 0;
  bool is_tree = false;
  switch (random.Int(0, 6)) {
    case 0:
      q_len = kv_len;
      break;
    case 1:
      q_len = random.Int(2, 200);
      break;
    case 2:
      is_tree = true;
      q_len = random.OneIn(8) ? random.Int(33, 80) : random.Int(1, 12);
      kv_len += q_len;
      break;
    case 3:
      q_len = kv_len + random.Int(1, 3);
      break;
    case 4:
      q_len = random.Int(0, 2);
      if (random.OneIn(2)) kv_len = 0;
      break;
    default:
      q_len = 1;
  }
  q_len = std::min(q_len, pairs / std::max<int64_t>(kv_len, 1) + 1);
  Sequence s = RandomSequence(random, heads, sight, q_len, kv_len);
  if (is_tree) {
    s.SetTree(RandomTree(random, q_len));
  } else if (random.OneIn(4)) {
    s.problem.q_pos = random.OneIn(4) ? random.Int(-5, kv_len + 300) : random.Int(0, kv_len);
  }
  if (random.OneIn(5)) s.problem.prefix_len = random.Int(0, kv_len);
  return s;
}

// Room for one bias or mask that all sequences share, or for one of each; with or without a dimension of heads or rows.
struct Extents {
  Extents(Random& random, const std::vector<Sequence>& sequences) : is_shared(random.OneIn(3)) {
    by_head = random.OneIn(2);
    by_row = random.OneIn(2);
    for (const Sequence& s : sequences) {
      rows = std::max(rows, s.problem.q_len);
      columns = std::max(columns, s.problem.kv_len);
    }
  }
  int64_t row_stride(const Problem& p) const { return by_row ? (is_shared ? columns : p.kv_len) : 0; }
  int64_t head_stride(const Problem& p) const {
    const int64_t n = by_row ? (is_shared ? rows : p.q_len) : 1;
    return by_head ? n * (is_shared ? columns : p.kv_len) : 0;
  }
  size_t size(const Problem& p) const {
    return static_cast<size_t>((is_shared ? columns : p.kv_len) * (by_row ? (is_shared ? rows : p.q_len) : 1) *
                               (by_head ? p.num_q_heads : 1));
  }
  bool is_shared;
  bool by_head;
  bool by_row;
  int64_t rows = 0;
  int64_t columns = 0;
};

void DrawBias(Random& random, DType dtype, std::vector<Sequence>& sequences) {
  const Extents extents(random, sequences);
  std::shared_ptr<std::vector<float>> bias;
  for (Sequence& s : sequences) {
    if (bias == nullptr || !extents.is_shared) {
      bias = std::make_shared<std::vector<float>>(random.Floats(extents.size(s.problem), 3.0f));
      RoundAll(*bias, dtype);
      const int64_t holes = random.Pick<int64_t>({2, 10, 1000000});
      for (float& x : *bias) x = random.OneIn(holes) ? -kInf : x;
    }
    s.SetBias(bias, extents.head_stride(s.problem), extents.row_stride(s.problem));
  }
}

void DrawMask(Random& random, std::vector<Sequence>& sequences) {
  const Extents extents(random, sequences);
  std::shared_ptr<std::vector<uint8_t>> mask;
  for (Sequence& s : sequences) {
    if (mask == nullptr || !extents.is_shared) {
      mask = std::make_shared<std::vector<uint8_t>>(extents.size(s.problem));
      // Runs of hidden and visible keys, up to whole blocks, or single ones.
      const int64_t longest = random.Pick<int64_t>({2, 20, 300});
      for (size_t i = 0; i < mask->size();) {
        const uint8_t value = random.OneIn(2) ? 1 : 0;
        for (int64_t n = random.Int(1, longest); n > 0 && i < mask->size(); --n) (*mask)[i++] = value;
      }
    }
    s.SetMask(mask, extents.head_stride(s.problem), extents.row_stride(s.problem));
  }
}

// Keys and values that no row of any head sees become NaN or infinite.
void PoisonUnseen(Random& random, Sequence& s) {
  const Problem& p = s.problem;
  for (int64_t key = 0; key < p.kv_len; ++key) {
    bool seen = false;
    for (int64_t head = 0; head < p.num_q_heads && !seen; ++head) {
      for (int64_t row = 0; row < p.q_len && !seen; ++row) seen = Visible(p, head, row, key);
    }
    if (seen) continue;
    const float poison = random.Pick<float>({kNaN, kInf, -kInf});
    std::fill_n(s.k->begin() + key * p.num_kv_heads * p.qk_dim, p.num_kv_heads * p.qk_dim, poison);
    if (!s.values_in_keys) std::fill_n(s.v->begin() + key * p.num_kv_heads * p.v_dim, p.num_kv_heads * p.v_dim, poison);
  }
}

}  // namespace

Call DrawCall(Random& random, int64_t work) {
  Call call;
  const bool values_in_keys = random.OneIn(6);
  const Heads heads = DrawHeads(random, values_in_keys);
  const Sight sight = DrawSight(random);
  RunOptions& types = call.options;
  types.q_dtype = DrawDType(random);
  types.k_dtype = DrawStoredDType(random);
  types.v_dtype = values_in_keys ? types.k_dtype : DrawStoredDType(random);
  types.bias_dtype = DrawDType(random);
  const reference::OutType out_type = OutTypeOf(DrawDType(random));
  const float scale = random.OneIn(3) ? random.Float() * 2.0f : 0.0f;

  int64_t pairs = work / (heads.num_q_heads * (heads.qk_dim + heads.v_dim + 20));
  const int64_t count = random.OneIn(3) ? 1 : random.Int(2, 7);
  for (int64_t i = 0; i < count; ++i) {
    Sequence s = DrawSequence(random, heads, sight, std::max<int64_t>(pairs, 0));
    pairs -= s.problem.q_len * s.problem.kv_len;
    if (values_in_keys) s = WithValuesInKeys(s);
    if (random.OneIn(4)) {
      for (float& x : *s.q) x *= 30.0f;
    }
    RoundAll(*s.q, types.q_dtype);
    RoundRows(*s.k, types.k_dtype, heads.qk_dim);
    if (!values_in_keys) RoundRows(*s.v, types.v_dtype, heads.v_dim);
    s.problem.out_type = out_type;
    if (scale != 0.0f) s.problem.scale = scale;
    call.sequences.push_back(std::move(s));
  }
  if (random.OneIn(3)) DrawBias(random, types.bias_dtype, call.sequences);
  if (random.OneIn(3)) DrawMask(random, call.sequences);
  const auto per_head = [&](float size) {
    return std::make_shared<std::vector<float>>(random.Floats(static_cast<size_t>(heads.num_q_heads), size));
  };
  if (random.OneIn(3)) {
    const auto slopes = per_head(random.Pick<float>({0.01f, 0.5f}));
    for (Sequence& s : call.sequences) s.SetSlopes(slopes);
  }
  if (random.OneIn(3)) {
    const auto sinks = per_head(4.0f);
    for (Sequence& s : call.sequences) s.SetSinks(sinks);
  }
  if (random.OneIn(3)) {
    for (Sequence& s : call.sequences) PoisonUnseen(random, s);
  }
  return call;
}

RunOptions AnotherWay(Random& random, const Call& call) {
  RunOptions way = call.options;
  const Problem& p = call.sequences[0].problem;
  way.cache = random.OneIn(2) && p.qk_dim > 0 && p.v_dim > 0;
  way.page_tokens = 16 * random.Int(1, 16);
  if (way.cache && random.OneIn(2)) {
    way.cache = false;
    // Rows are not quantised.
    const bool quantised = IsQuantized(way.k_dtype) || IsQuantized(way.v_dtype);
    way.pages = quantised ? Pages::kTiles : static_cast<Pages>(random.Int(1, 3));
  }
  way.padded = random.OneIn(2);
  way.update = random.OneIn(4);
  way.plan_workers = random.Pick<int>({1, 1, 2, 3, 8});
  way.seed = random.Next();
  if (random.OneIn(2)) way.mask_format = BoolMaskView::Format::kBits;
  return way;
}

}  // namespace headlane::testing
