#include "operator/runner.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <utility>

#include "headlane/kv_cache.h"
#include "operator/pages.h"
#include "operator/tensors.h"
#include "support/bits.h"
#include "support/guarded_buffer.h"

namespace headlane::testing {
namespace {

using reference::Problem;

DType DTypeOf(reference::OutType type) {
  return type == reference::OutType::kF16    ? DType::kF16
         : type == reference::OutType::kBF16 ? DType::kBF16
                                             : DType::kF32;
}

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
  spec.k_dtype = options.k_dtype;
  spec.v_dtype = options.v_dtype;
  spec.values_in_keys = sequences[0].values_in_keys;
  spec.rotate = options.rotate;
  spec.page_tokens = options.page_tokens;
  spec.max_sequences = static_cast<int64_t>(sequences.size()) + 1;
  for (const Sequence& s : sequences) spec.max_tokens += (s.problem.kv_len / spec.page_tokens + 1) * spec.page_tokens;
  Result<KVCache> created = KVCache::Create(spec);
  EXPECT_TRUE(created.ok()) << created.status().c_str();
  if (!created.ok()) return nullptr;
  auto owner = std::make_unique<KVCache>(std::move(created).value());
  KVCache& cache = *owner;

  const auto values = [&](const float* data, int64_t n) {
    return spec.values_in_keys ? ConstTensorView{} : TokensHeadsDim(data, n, p.num_kv_heads, p.v_dim);
  };

  const SequenceId poison = cache.CreateSequence().value();
  const std::vector<float> nans(static_cast<size_t>(spec.max_tokens * p.num_kv_heads * std::max(p.qk_dim, p.v_dim)),
                                std::bit_cast<float>(0xFFFFFFFFu));
  ExpectOk(cache.Reserve(poison, spec.max_tokens), "reserve");
  for (int64_t layer = 0; layer < 2; ++layer) {
    ExpectOk(cache.Write(poison, layer, TokensHeadsDim(nans.data(), spec.max_tokens, p.num_kv_heads, p.qk_dim),
                         values(nans.data(), spec.max_tokens)),
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
    const ConstTensorView v = values(s.v + length * s.num_kv_heads * s.v_dim, n);
    ExpectOk(cache.Reserve(id, n), "reserve");
    // Layer 0 gets NaN: reading it would show.
    ExpectOk(cache.Write(id, 0, TokensHeadsDim(nans.data(), n, s.num_kv_heads, s.qk_dim), values(nans.data(), n)),
             "write layer 0");
    ExpectOk(cache.Write(id, 1, k, v), "write layer 1");
    ExpectOk(cache.Commit(id, n), "commit");
    if (length + n == s.kv_len) growing.erase(growing.begin() + static_cast<std::ptrdiff_t>(pick));
  }
  return owner;
}

}  // namespace

AttentionSpec SpecOf(const Problem& p) {
  AttentionSpec spec;
  spec.num_q_heads = p.num_q_heads;
  spec.num_kv_heads = p.num_kv_heads;
  spec.qk_dim = p.qk_dim;
  spec.v_dim = p.v_dim;
  // The default is left to the library wherever it is meant, so that it is tested too.
  const float usual = p.qk_dim > 0 ? static_cast<float>(1.0 / std::sqrt(static_cast<double>(p.qk_dim))) : 1.0f;
  if (!SameBits(p.scale, usual)) spec.scale = p.scale;
  spec.softcap = p.softcap;
  spec.mask.causality = p.causal == reference::Causal::kNo            ? Causality::kFull
                        : p.causal == reference::Causal::kBottomRight ? Causality::kBottomRight
                                                                      : Causality::kTopLeft;
  spec.mask.window = p.window < 0 ? kNoWindow : p.window;
  spec.mask.window_right = p.window_right < 0 ? kNoWindow : p.window_right;
  spec.mask.num_always_visible = p.num_always_visible;
  spec.mask.chunk = p.chunk;
  return spec;
}

std::string Describe(const RunOptions& o) {
  const char* const stores[] = {"cache", "pages of tiles", "pages of token rows", "pages of head rows"};
  std::string text = o.padded ? "padded" : "packed";
  if (o.cache || o.pages != Pages::kNo) {
    text = std::string(stores[static_cast<int>(o.pages)]) + ", pages of " + std::to_string(o.page_tokens);
  }
  text += ", planned for " + std::to_string(o.plan_workers);
  if (o.executor != nullptr) text += ", run by " + std::to_string(o.executor->num_workers());
  if (o.rotate) text += ", rotated";
  if (o.update) text += ", updated";
  for (const auto& [name, dtype] : {std::pair("q", o.q_dtype), std::pair("k", o.k_dtype), std::pair("v", o.v_dtype),
                                    std::pair("bias", o.bias_dtype)}) {
    if (dtype != DType::kF32) text += std::string(", ") + name + " " + DTypeName(dtype);
  }
  if (o.mask_format == BoolMaskView::Format::kBits) text += ", mask in bits";
  if (o.states != nullptr) text += ", states";
  return text;
}

std::vector<Output> RunLibrary(const std::vector<Sequence>& sequences, const RunOptions& options) {
  Random random(options.seed);
  const Sequence& first = sequences[0];
  const Problem& p = first.problem;
  AttentionSpec spec = SpecOf(p);
  spec.values_in_keys = first.values_in_keys;
  Placement place = Place(sequences, options.padded, random);
  const DType out_dtype = DTypeOf(p.out_type);
  const auto rows_of = [&](int64_t heads, int64_t dim, DType dtype) {
    return Tensor(place, options.padded, place.q_tokens, heads, dim, dtype);
  };
  const Tensor q = rows_of(p.num_q_heads, p.qk_dim, options.q_dtype);
  const Tensor out = rows_of(p.num_q_heads, p.v_dim, out_dtype);
  const Tensor lse = rows_of(p.num_q_heads, 1, DType::kF32);
  const bool has_pages = options.pages != Pages::kNo;
  const bool plain = !options.cache && !has_pages;
  const bool has_v = plain && !first.values_in_keys;
  const auto of_tensors = [](DType dtype) { return IsQuantized(dtype) ? DType::kF32 : dtype; };
  const Tensor k(place, options.padded, plain ? place.kv_tokens : 0, p.num_kv_heads, p.qk_dim,
                 of_tensors(options.k_dtype));
  const Tensor v(place, options.padded, has_v ? place.kv_tokens : 0, p.num_kv_heads, p.v_dim,
                 of_tensors(options.v_dtype));
  std::vector<std::unique_ptr<TreeBits>> trees;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const Problem& s = sequences[i].problem;
    SequenceSpec& at = place.specs[i];
    q.Put(s.q, at.batch, at.q_begin, s.q_len);
    if (plain) k.Put(s.k, at.batch, at.kv_begin, s.kv_len);
    if (has_v) v.Put(s.v, at.batch, at.kv_begin, s.kv_len);
    if (s.tree != nullptr) {
      trees.push_back(std::make_unique<TreeBits>(sequences[i], random));
      at.tree = trees.back()->view();
    }
  }
  std::unique_ptr<BiasTensor> bias;
  std::unique_ptr<MaskTensor> mask;
  if (p.bias != nullptr)
    bias = std::make_unique<BiasTensor>(sequences, place, options.padded, options.bias_dtype, random);
  if (p.mask != nullptr)
    mask = std::make_unique<MaskTensor>(sequences, place, options.padded, options.mask_format, random);

  std::unique_ptr<KVCache> cache;
  if (options.cache) {
    cache = FilledCache(sequences, options, random, place.specs);
    if (cache == nullptr) return std::vector<Output>(sequences.size());
  }
  FilledPages filled;
  if (has_pages) {
    filled = FillPages(sequences, options, random);
    if (filled.store.pages == nullptr) return std::vector<Output>(sequences.size());
    for (size_t i = 0; i < sequences.size(); ++i) {
      place.specs[i].page_ids = {filled.ids[i].data(), filled.ids[i].size()};
    }
  }
  const KVPages* const pages = filled.store.pages.get();
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
      s.tree = TreeMask{};
    }
    planned.pop_back();
  }
  Result<AttentionPlan> plan = plain       ? PlanAttention(spec, planned, plan_options)
                               : has_pages ? PlanAttention(spec, *pages, planned, plan_options)
                                           : PlanAttention(spec, *cache, planned, plan_options);
  EXPECT_TRUE(plan.ok()) << plan.status().c_str();
  if (!plan.ok()) return std::vector<Output>(sequences.size());
  if (options.update) {
    ExpectOk(plain       ? plan->Update(place.specs)
             : has_pages ? plan->Update(*pages, place.specs)
                         : plan->Update(*cache, place.specs),
             "update");
  }

  AttentionArgs args;
  args.q = q.view();
  if (plain) args.k = k.view();
  if (has_v) args.v = v.view();
  args.cache = cache.get();
  args.pages = pages;
  args.layer = plain ? 0 : 1;
  if (options.want_out) args.out = out.view();
  if (options.want_lse) args.lse = lse.lse_view();
  if (bias != nullptr) args.bias = bias->view();
  if (mask != nullptr) args.mask = mask->view();
  args.alibi_slopes = p.alibi_slopes;
  args.sinks = p.sinks;
  const bool want_states = options.states != nullptr;
  const Tensor state_m = rows_of(want_states ? p.num_q_heads : 0, 1, DType::kF32);
  const Tensor state_l = rows_of(want_states ? p.num_q_heads : 0, 1, DType::kF32);
  const Tensor state_o = rows_of(want_states ? p.num_q_heads : 0, p.v_dim, DType::kF32);
  if (want_states) args.state = {state_m.lse_view(), state_l.lse_view(), state_o.view()};

  const size_t bytes = (plan->workspace_bytes() + 63) / 64 * 64;
  const GuardedBuffer memory(bytes);
  Result<Workspace> workspace = Workspace::Over(*plan, memory.data(), bytes);
  EXPECT_TRUE(workspace.ok()) << workspace.status().c_str();
  if (!workspace.ok()) return std::vector<Output>(sequences.size());
  const Status status =
      RunAttention(*plan, args, *workspace, options.executor != nullptr ? *options.executor : SerialExecutor());
  EXPECT_TRUE(status.ok()) << status.c_str();

  std::vector<Output> outputs;
  if (want_states) options.states->clear();
  int64_t rows = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const Problem& s = sequences[i].problem;
    const SequenceSpec& at = place.specs[i];
    const size_t seq_rows = static_cast<size_t>(s.q_len * s.num_q_heads);
    const size_t v_dim = static_cast<size_t>(s.v_dim);
    Output output{std::vector<float>(seq_rows * v_dim), std::vector<float>(seq_rows)};
    if (options.want_out) out.Get(output.out.data(), at.batch, at.q_begin, s.q_len);
    if (options.want_lse) lse.Get(output.lse.data(), at.batch, at.q_begin, s.q_len);
    outputs.push_back(std::move(output));
    rows += static_cast<int64_t>(seq_rows);
    if (!want_states) continue;
    std::vector<float> m(seq_rows);
    std::vector<float> l(seq_rows);
    std::vector<float> o(seq_rows * v_dim);
    state_m.Get(m.data(), at.batch, at.q_begin, s.q_len);
    state_l.Get(l.data(), at.batch, at.q_begin, s.q_len);
    state_o.Get(o.data(), at.batch, at.q_begin, s.q_len);
    options.states->emplace_back();
    for (size_t r = 0; r < seq_rows; ++r)
      options.states->back().push_back({m[r], l[r], {o.data() + r * v_dim, o.data() + (r + 1) * v_dim}});
  }
  const auto expect_untouched = [&](const Tensor& tensor, int64_t written, const char* what) {
    EXPECT_EQ(tensor.CountUntouched(), tensor.size() - written)
        << what << ": rows of no sequence were written, or rows of one were not";
  };
  expect_untouched(out, options.want_out ? rows * p.v_dim : 0, "out");
  expect_untouched(lse, options.want_lse ? rows : 0, "lse");
  expect_untouched(state_m, want_states ? rows : 0, "state.m");
  expect_untouched(state_l, want_states ? rows : 0, "state.l");
  expect_untouched(state_o, want_states ? rows * p.v_dim : 0, "state.o");
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
