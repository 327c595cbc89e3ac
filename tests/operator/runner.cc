#include "operator/runner.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "headlane/kv_cache.h"
#include "support/bits.h"
#include "support/guarded_buffer.h"

namespace headlane::testing {
namespace {

using reference::Problem;

// The contract's default, not the library's idea of it.
float ContractScale(int64_t qk_dim) {
  return qk_dim > 0 ? static_cast<float>(1.0 / std::sqrt(static_cast<double>(qk_dim))) : 1.0f;
}

Sequence Allocate(const Heads& heads, const Sight& sight, int64_t q_len, int64_t kv_len) {
  Sequence s;
  s.q = std::make_shared<std::vector<float>>(static_cast<size_t>(q_len * heads.num_q_heads * heads.qk_dim));
  s.k = std::make_shared<std::vector<float>>(static_cast<size_t>(kv_len * heads.num_kv_heads * heads.qk_dim));
  s.v = std::make_shared<std::vector<float>>(static_cast<size_t>(kv_len * heads.num_kv_heads * heads.v_dim));
  Problem& p = s.problem;
  p.num_q_heads = heads.num_q_heads;
  p.num_kv_heads = heads.num_kv_heads;
  p.qk_dim = heads.qk_dim;
  p.v_dim = heads.v_dim;
  p.q_len = q_len;
  p.kv_len = kv_len;
  p.q = s.q->data();
  p.k = s.k->data();
  p.v = s.v->data();
  p.scale = ContractScale(heads.qk_dim);
  p.causal = sight.causal;
  p.window = sight.window;
  return s;
}

// Where the sequences lie in tensors of [batch, tokens].
struct Placement {
  std::vector<SequenceSpec> specs;
  int64_t num_batch = 1;
  int64_t q_tokens = 0;
  int64_t kv_tokens = 0;
};

Placement Place(const std::vector<Sequence>& sequences, const RunOptions& options, Random& random) {
  Placement place;
  for (const Sequence& s : sequences) {
    SequenceSpec spec;
    spec.q_len = s.problem.q_len;
    spec.kv_len = s.problem.kv_len;
    if (options.padded) {
      spec.batch = static_cast<int64_t>(place.specs.size());
      place.q_tokens = std::max(place.q_tokens, spec.q_len);
      place.kv_tokens = std::max(place.kv_tokens, spec.kv_len);
    } else {
      spec.q_begin = place.q_tokens + random.Int(0, 1);
      spec.kv_begin = place.kv_tokens + random.Int(0, 2);
      place.q_tokens = spec.q_begin + spec.q_len;
      place.kv_tokens = spec.kv_begin + spec.kv_len;
    }
    place.specs.push_back(spec);
  }
  if (options.padded) place.num_batch = static_cast<int64_t>(sequences.size());
  return place;
}

// A tensor in guarded memory, dense in one of the two layouts.
class Tensor {
 public:
  Tensor(const Placement& place, bool padded, int64_t num_tokens, int64_t num_heads, int64_t dim)
      : memory_(static_cast<size_t>(place.num_batch * num_tokens * num_heads * dim)) {
    view_ = padded ? BatchHeadsTokensDim(memory_.data(), place.num_batch, num_heads, num_tokens, dim)
                   : TokensHeadsDim(memory_.data(), num_tokens, num_heads, dim);
  }

  const TensorView& view() const { return view_; }
  ConstTensorView const_view() const {
    return {view_.data, view_.dtype,        view_.num_batch,    view_.num_tokens,  view_.num_heads,
            view_.dim,  view_.batch_stride, view_.token_stride, view_.head_stride, view_.dim_stride};
  }
  float* at(int64_t batch, int64_t token, int64_t head) const {
    return memory_.data() + batch * view_.batch_stride + token * view_.token_stride + head * view_.head_stride;
  }
  // Copies rows [tokens][heads][dim] in or out.
  void Put(const float* rows, int64_t batch, int64_t begin, int64_t num_tokens) const {
    for (int64_t t = 0; t < num_tokens; ++t) {
      for (int64_t h = 0; h < view_.num_heads; ++h, rows += view_.dim)
        std::copy_n(rows, view_.dim, at(batch, begin + t, h));
    }
  }
  void Get(float* rows, int64_t batch, int64_t begin, int64_t num_tokens) const {
    for (int64_t t = 0; t < num_tokens; ++t) {
      for (int64_t h = 0; h < view_.num_heads; ++h, rows += view_.dim)
        std::copy_n(at(batch, begin + t, h), view_.dim, rows);
    }
  }
  // How many elements are still 0xFFFFFFFF.
  int64_t CountUntouched() const {
    return std::count_if(memory_.data(), memory_.data() + memory_.size(),
                         [](float x) { return std::bit_cast<uint32_t>(x) == 0xFFFFFFFFu; });
  }
  int64_t size() const { return static_cast<int64_t>(memory_.size()); }

 private:
  GuardedFloats memory_;
  TensorView view_;
};

void ExpectOk(const Status& status, const char* what) { ASSERT_TRUE(status.ok()) << what << ": " << status.c_str(); }

// A cache that holds the keys and values of all sequences in layer 1 of 2. Every page was full of NaN before.
std::unique_ptr<KVCache> FilledCache(const std::vector<Sequence>& sequences, const RunOptions& options, Random& random,
                                     std::vector<SequenceSpec>& specs) {
  const Problem& p = sequences[0].problem;
  KVCacheSpec spec;
  spec.num_layers = 2;
  spec.num_kv_heads = p.num_kv_heads;
  spec.qk_dim = p.qk_dim;
  spec.v_dim = p.v_dim;
  spec.page_tokens = options.page_tokens;
  spec.max_sequences = static_cast<int64_t>(sequences.size()) + 1;
  for (const Sequence& s : sequences) spec.max_tokens += (s.problem.kv_len / spec.page_tokens + 1) * spec.page_tokens;
  Result<KVCache> created = KVCache::Create(spec);
  EXPECT_TRUE(created.ok()) << created.status().c_str();
  if (!created.ok()) return nullptr;
  auto owner = std::make_unique<KVCache>(std::move(created).value());
  KVCache& cache = *owner;

  const SequenceId poison = cache.CreateSequence().value();
  const std::vector<float> nans(static_cast<size_t>(spec.max_tokens * p.num_kv_heads * std::max(p.qk_dim, p.v_dim)),
                                std::bit_cast<float>(0xFFFFFFFFu));
  ExpectOk(cache.Reserve(poison, spec.max_tokens), "reserve");
  for (int64_t layer = 0; layer < 2; ++layer) {
    ExpectOk(cache.Write(poison, layer, TokensHeadsDim(nans.data(), spec.max_tokens, p.num_kv_heads, p.qk_dim),
                         TokensHeadsDim(nans.data(), spec.max_tokens, p.num_kv_heads, p.v_dim)),
             "write NaN");
  }
  ExpectOk(cache.Commit(poison, spec.max_tokens), "commit");
  ExpectOk(cache.DropSequence(poison), "drop");

  for (SequenceSpec& sequence : specs) sequence.cache_id = cache.CreateSequence().value();
  // A few tokens of one sequence, then of another: their pages lie between each other.
  std::vector<size_t> growing;
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (sequences[i].problem.kv_len > 0) growing.push_back(i);
  }
  while (!growing.empty()) {
    const size_t pick = static_cast<size_t>(random.Int(0, static_cast<int64_t>(growing.size()) - 1));
    const Problem& s = sequences[growing[pick]].problem;
    const SequenceId id = specs[growing[pick]].cache_id;
    const int64_t length = cache.Length(id).value();
    const int64_t n = std::min(s.kv_len - length, random.OneIn(3) ? random.Int(1, 40) : random.Int(1, 700));
    const ConstTensorView k = TokensHeadsDim(s.k + length * s.num_kv_heads * s.qk_dim, n, s.num_kv_heads, s.qk_dim);
    const ConstTensorView v = TokensHeadsDim(s.v + length * s.num_kv_heads * s.v_dim, n, s.num_kv_heads, s.v_dim);
    ExpectOk(cache.Reserve(id, n), "reserve");
    // Layer 0 gets NaN: reading it would show.
    ExpectOk(cache.Write(id, 0, TokensHeadsDim(nans.data(), n, s.num_kv_heads, s.qk_dim),
                         TokensHeadsDim(nans.data(), n, s.num_kv_heads, s.v_dim)),
             "write layer 0");
    ExpectOk(cache.Write(id, 1, k, v), "write layer 1");
    ExpectOk(cache.Commit(id, n), "commit");
    if (length + n == s.kv_len) growing.erase(growing.begin() + static_cast<std::ptrdiff_t>(pick));
  }
  return owner;
}

}  // namespace

Sequence Sequence::Rows(int64_t begin, int64_t end, int64_t kv_len) const {
  Sequence rows = *this;
  rows.problem.q = problem.q + begin * problem.num_q_heads * problem.qk_dim;
  rows.problem.q_len = end - begin;
  rows.problem.kv_len = kv_len;
  return rows;
}

Sequence RandomSequence(Random& random, const Heads& heads, const Sight& sight, int64_t q_len, int64_t kv_len) {
  Sequence s = Allocate(heads, sight, q_len, kv_len);
  random.Fill(s.q->data(), s.q->size());
  random.Fill(s.k->data(), s.k->size());
  random.Fill(s.v->data(), s.v->size());
  return s;
}

Sequence PositionSequence(const Sight& sight, int64_t q_len, int64_t kv_len, const Heads& heads) {
  Sequence s = Allocate(heads, sight, q_len, kv_len);
  Random random(99);
  random.Fill(s.k->data(), s.k->size());  // times q = 0
  const int64_t row = heads.num_kv_heads * heads.v_dim;
  for (size_t i = 0; i < s.v->size(); ++i) (*s.v)[i] = static_cast<float>(static_cast<int64_t>(i) / row);
  return s;
}

std::string Describe(const Problem& p) {
  static constexpr const char* kCausal[] = {"full", "bottom-right", "top-left"};
  return "heads " + std::to_string(p.num_q_heads) + "/" + std::to_string(p.num_kv_heads) + " dims " +
         std::to_string(p.qk_dim) + "/" + std::to_string(p.v_dim) + " q_len " + std::to_string(p.q_len) + " kv_len " +
         std::to_string(p.kv_len) + " " + kCausal[static_cast<int>(p.causal)] + " window " + std::to_string(p.window);
}

AttentionSpec SpecOf(const Problem& p) {
  AttentionSpec spec;
  spec.num_q_heads = p.num_q_heads;
  spec.num_kv_heads = p.num_kv_heads;
  spec.qk_dim = p.qk_dim;
  spec.v_dim = p.v_dim;
  // The default is left to the library wherever it is meant, so that it is tested too.
  if (!SameBits(p.scale, ContractScale(p.qk_dim))) spec.scale = p.scale;
  spec.mask.causality = p.causal == reference::Causal::kNo            ? Causality::kFull
                        : p.causal == reference::Causal::kBottomRight ? Causality::kBottomRight
                                                                      : Causality::kTopLeft;
  spec.mask.window = p.window < 0 ? kNoWindow : p.window;
  return spec;
}

std::vector<Output> RunLibrary(const std::vector<Sequence>& sequences, const RunOptions& options) {
  Random random(options.seed);
  const Problem& p = sequences[0].problem;
  const AttentionSpec spec = SpecOf(p);
  Placement place = Place(sequences, options, random);
  const Tensor q(place, options.padded, place.q_tokens, p.num_q_heads, p.qk_dim);
  const Tensor out(place, options.padded, place.q_tokens, p.num_q_heads, p.v_dim);
  const Tensor lse(place, options.padded, place.q_tokens, p.num_q_heads, 1);
  const bool plain = !options.cache;
  const Tensor k(place, options.padded, plain ? place.kv_tokens : 0, p.num_kv_heads, p.qk_dim);
  const Tensor v(place, options.padded, plain ? place.kv_tokens : 0, p.num_kv_heads, p.v_dim);
  for (size_t i = 0; i < sequences.size(); ++i) {
    const Problem& s = sequences[i].problem;
    q.Put(s.q, place.specs[i].batch, place.specs[i].q_begin, s.q_len);
    if (!plain) continue;
    k.Put(s.k, place.specs[i].batch, place.specs[i].kv_begin, s.kv_len);
    v.Put(s.v, place.specs[i].batch, place.specs[i].kv_begin, s.kv_len);
  }

  std::unique_ptr<KVCache> cache;
  if (options.cache) {
    cache = FilledCache(sequences, options, random, place.specs);
    if (cache == nullptr) return std::vector<Output>(sequences.size());
  }
  PlanOptions plan_options;
  plan_options.num_workers = options.plan_workers;
  std::vector<SequenceSpec> planned = place.specs;
  if (options.update) {
    for (SequenceSpec& s : planned) {
      plan_options.max_sequences += 1;
      plan_options.max_q_tokens += s.q_len;
      plan_options.max_kv_len = std::max(plan_options.max_kv_len, s.kv_len);
      s.q_len /= 2;
      s.kv_len /= 3;
    }
    planned.pop_back();
  }
  Result<AttentionPlan> plan =
      plain ? PlanAttention(spec, planned, plan_options) : PlanAttention(spec, *cache, planned, plan_options);
  EXPECT_TRUE(plan.ok()) << plan.status().c_str();
  if (!plan.ok()) return std::vector<Output>(sequences.size());
  if (options.update) {
    ExpectOk(plain ? plan->Update(place.specs) : plan->Update(*cache, place.specs), "update");
  }

  AttentionArgs args;
  args.q = q.const_view();
  args.k = k.const_view();
  args.v = v.const_view();
  args.cache = cache.get();
  args.layer = options.cache ? 1 : 0;
  args.out = out.view();
  if (options.want_lse)
    args.lse = {lse.at(0, 0, 0), lse.view().batch_stride, lse.view().token_stride, lse.view().head_stride};

  const size_t bytes = (plan->workspace_bytes() + 63) / 64 * 64;
  const GuardedBuffer memory(bytes);
  Result<Workspace> workspace = Workspace::Over(*plan, memory.data(), bytes);
  EXPECT_TRUE(workspace.ok()) << workspace.status().c_str();
  if (!workspace.ok()) return std::vector<Output>(sequences.size());
  const Status status =
      RunAttention(*plan, args, *workspace, options.executor != nullptr ? *options.executor : SerialExecutor());
  EXPECT_TRUE(status.ok()) << status.c_str();

  std::vector<Output> outputs;
  int64_t rows = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const Problem& s = sequences[i].problem;
    Output output;
    output.out.resize(static_cast<size_t>(s.q_len * s.num_q_heads * s.v_dim));
    output.lse.resize(static_cast<size_t>(s.q_len * s.num_q_heads));
    out.Get(output.out.data(), place.specs[i].batch, place.specs[i].q_begin, s.q_len);
    if (options.want_lse) lse.Get(output.lse.data(), place.specs[i].batch, place.specs[i].q_begin, s.q_len);
    outputs.push_back(std::move(output));
    rows += s.q_len * s.num_q_heads;
  }
  EXPECT_EQ(out.CountUntouched(), out.size() - rows * p.v_dim)
      << "rows of no sequence were written, or rows of one were not";
  EXPECT_EQ(lse.CountUntouched(), lse.size() - (options.want_lse ? rows : 0));
  return outputs;
}

Output RunLibrary(const Sequence& sequence, const RunOptions& options) {
  return RunLibrary(std::vector<Sequence>{sequence}, options)[0];
}

::testing::AssertionResult SameOutput(const Output& expected, const Output& actual) {
  const ::testing::AssertionResult out = SameBits(expected.out, actual.out);
  if (!out) return ::testing::AssertionFailure() << "out: " << out.message();
  const ::testing::AssertionResult lse = SameBits(expected.lse, actual.lse);
  if (!lse) return ::testing::AssertionFailure() << "lse: " << lse.message();
  return ::testing::AssertionSuccess();
}

}  // namespace headlane::testing
