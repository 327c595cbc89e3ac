// BatchSession of headlane/decoder.h: several sequences in one pass, and their prompts as a tree whose every run of
// tokens is computed once.
#include <algorithm>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include "decoder/alloc_guard.h"
#include "decoder/session_core.h"
#include "headlane/decoder.h"

namespace headlane {
namespace internal {

// Rows of logits that a step has at a time, besides one per sequence.
constexpr int64_t kLogitRows = 16;

class BatchSessionImpl {
 public:
  using Prompts = std::span<const std::span<const int32_t>>;

  BatchSessionImpl(const ModelImpl& model, const SessionOptions& options) : core_(model, options) {}

  Status Init(int64_t num_sequences, int64_t cache_tokens);

  Status Prefill(Prompts prompts, const ProgressCallback& progress);
  Status Step(std::span<const BatchToken> tokens) noexcept;

  std::span<const float> logits(int64_t sequence) const noexcept {
    if (!Has(sequence) || !states_[static_cast<size_t>(sequence)].has_logits) return {};
    return {LogitsOf(sequence), static_cast<size_t>(core_.config().vocab_size)};
  }
  int64_t length(int64_t sequence) const noexcept {
    return Has(sequence) ? states_[static_cast<size_t>(sequence)].length : 0;
  }
  int64_t num_sequences() const noexcept { return static_cast<int64_t>(states_.size()); }
  SessionMemory memory() const noexcept;
  const SessionCore& core() const noexcept { return core_; }

  PhaseStats prompt_stats;
  PhaseStats step_stats;

 private:
  struct State {
    SequenceId id;
    int64_t length = 0;
    bool has_logits = false;
    bool in_step = false;  // of the step that is being checked
  };
  // Prompts order[begin, end), which agree in their first `until` tokens; `done` of these are in the leader's sequence,
  // which is that of order[begin].
  struct Edge {
    size_t begin, end;
    int64_t done, until;
  };

  bool Has(int64_t sequence) const noexcept { return sequence >= 0 && sequence < num_sequences(); }
  float* LogitsOf(int64_t sequence) const noexcept {
    return core_.logits() + (kLogitRows + sequence) * core_.config().vocab_size;
  }
  Status CheckPrompts(Prompts prompts) const noexcept;
  Status CheckStep(std::span<const BatchToken> tokens) noexcept;
  Status PrefillTree(Prompts prompts, const ProgressCallback& progress);
  // One pass over the foremost edges, as many tokens as go through the layers together.
  Status Pass(Prompts prompts, const std::vector<size_t>& order, std::deque<Edge>& edges);
  // What goes on behind an edge that is done: prompts that end there, and edges of those that go on.
  Status Branch(Prompts prompts, const std::vector<size_t>& order, const Edge& edge, std::deque<Edge>& edges);
  Status ForkTo(size_t leader, size_t other) noexcept;
  // All sequences empty.
  Status Reset() noexcept;

  SessionCore core_;
  std::vector<State> states_;
  std::vector<SequenceTokens> batch_;  // of a pass; capacity num_sequences
};

namespace {

int64_t CommonPrefix(std::span<const int32_t> a, std::span<const int32_t> b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

// Tokens of all runs that are to be computed: prompts in order, each but for what it shares with the one before.
int64_t TokensOfTree(std::span<const std::span<const int32_t>> prompts, const std::vector<size_t>& order) {
  int64_t sum = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    sum += static_cast<int64_t>(prompts[order[i]].size());
    if (i > 0) sum -= CommonPrefix(prompts[order[i - 1]], prompts[order[i]]);
  }
  return sum;
}

}  // namespace

Status BatchSessionImpl::Init(int64_t num_sequences, int64_t cache_tokens) {
  HEADLANE_RETURN_IF_ERROR(core_.Init(num_sequences, cache_tokens, kLogitRows + num_sequences));
  states_.resize(static_cast<size_t>(num_sequences));
  batch_.reserve(states_.size());
  for (State& state : states_) {
    HEADLANE_ASSIGN_OR_RETURN(state.id, core_.cache().CreateSequence());
  }
  return OkStatus();
}

Status BatchSessionImpl::Reset() noexcept {
  for (State& state : states_) (void)core_.cache().DropSequence(state.id).ok();  // some may be gone already
  for (State& state : states_) {
    state = State();
    HEADLANE_ASSIGN_OR_RETURN(state.id, core_.cache().CreateSequence());
  }
  return OkStatus();
}

SessionMemory BatchSessionImpl::memory() const noexcept {
  SessionMemory memory = core_.memory();
  const int64_t page = core_.options().page_tokens;
  // Every page is full but the last one of each sequence; sequences that share theirs have the same length.
  int64_t room = 0;
  int64_t kept = 0;
  for (size_t i = 0; i < states_.size(); ++i) {
    const State& state = states_[i];
    kept += core_.KeptTokens(state.length);
    const Result<KVSequenceUsage> usage = core_.cache().SequenceUsage(state.id);
    const bool shares_last = usage.ok() && usage->shared_pages == usage->pages;
    bool is_counted = false;
    for (size_t j = 0; j < i && shares_last; ++j) is_counted = is_counted || states_[j].length == state.length;
    if (!is_counted) room += (page - state.length % page) % page;
  }
  const int64_t pages = memory.page_bytes > 0 ? memory.cache_used_bytes / memory.page_bytes : 0;
  memory.kept_tokens = std::min(kept, pages * page - room);
  return memory;
}

Status BatchSessionImpl::CheckPrompts(Prompts prompts) const noexcept {
  if (prompts.size() != states_.size()) {
    return MakeStatus(StatusCode::kInvalidArgument, "%zu prompts for %zu sequences", prompts.size(), states_.size());
  }
  for (size_t i = 0; i < prompts.size(); ++i) {
    if (prompts[i].empty()) return MakeStatus(StatusCode::kInvalidArgument, "prompt %zu is empty", i);
    Status status = core_.CheckIds(prompts[i]);
    if (status.ok()) status = core_.CheckRoom(0, static_cast<int64_t>(prompts[i].size()));
    if (!status.ok()) return MakeStatus(status.code(), "prompt %zu: %s", i, status.c_str());
  }
  return OkStatus();
}

Status BatchSessionImpl::Prefill(Prompts prompts, const ProgressCallback& progress) {
  HEADLANE_RETURN_IF_ERROR(CheckPrompts(prompts));
  LapTimer timer;
  const Status status = PrefillTree(prompts, progress);
  timer.Lap(prompt_stats.total);
  prompt_stats.calls += 1;
  if (!status.ok()) HEADLANE_RETURN_IF_ERROR(Reset());
  return status;
}

Status BatchSessionImpl::PrefillTree(Prompts prompts, const ProgressCallback& progress) {
  for (State& state : states_) {
    HEADLANE_RETURN_IF_ERROR(core_.cache().DropSequence(state.id));
    state = State();
  }
  // Sorted, prompts that begin alike stand together, and the first and last of a group tell what all of it has in
  // common.
  std::vector<size_t> order(prompts.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const auto compared = std::lexicographical_compare_three_way(prompts[a].begin(), prompts[a].end(),
                                                                 prompts[b].begin(), prompts[b].end());
    return compared != 0 ? compared < 0 : a < b;
  });
  const int64_t total = TokensOfTree(prompts, order);

  const size_t first = order.front();
  HEADLANE_ASSIGN_OR_RETURN(states_[first].id, core_.cache().CreateSequence());
  std::deque<Edge> edges;
  HEADLANE_RETURN_IF_ERROR(Branch(prompts, order, {0, order.size(), 0, 0}, edges));
  const int64_t before = prompt_stats.tokens;
  while (!edges.empty()) {
    HEADLANE_RETURN_IF_ERROR(Pass(prompts, order, edges));
    const int64_t done = prompt_stats.tokens - before;
    if (progress && !progress(done, total)) {
      return MakeStatus(StatusCode::kCancelled, "stopped after %lld of %lld tokens", static_cast<long long>(done),
                        static_cast<long long>(total));
    }
  }
  return OkStatus();
}

Status BatchSessionImpl::Pass(Prompts prompts, const std::vector<size_t>& order, std::deque<Edge>& edges) {
  batch_.clear();
  int64_t room = core_.max_q_tokens();
  for (const Edge& edge : edges) {
    const int64_t n = std::min(edge.until - edge.done, room);
    if (n == 0) break;
    const size_t leader = order[edge.begin];
    batch_.push_back(
        {states_[leader].id, prompts[leader].subspan(static_cast<size_t>(edge.done), static_cast<size_t>(n))});
    room -= n;
  }
  HEADLANE_RETURN_IF_ERROR(core_.Forward(batch_, prompt_stats));
  int64_t row = 0;
  for (size_t i = batch_.size(); i > 0; --i) {
    const auto n = static_cast<int64_t>(batch_[batch_.size() - i].ids.size());
    row += n;
    Edge edge = edges.front();
    edges.pop_front();
    const size_t leader = order[edge.begin];
    edge.done += n;
    states_[leader].length = edge.done;
    if (edge.done < edge.until) {
      // Only the last one can be cut short, by what fits into a pass.
      edges.push_front(edge);
      break;
    }
    if (edge.done == static_cast<int64_t>(prompts[leader].size())) {
      HEADLANE_RETURN_IF_ERROR(core_.Logits(row - 1, 1, LogitsOf(static_cast<int64_t>(leader)), prompt_stats));
      states_[leader].has_logits = true;
    }
    HEADLANE_RETURN_IF_ERROR(Branch(prompts, order, edge, edges));
  }
  return OkStatus();
}

Status BatchSessionImpl::ForkTo(size_t leader, size_t other) noexcept {
  if (leader == other) return OkStatus();
  HEADLANE_ASSIGN_OR_RETURN(states_[other].id, core_.cache().Fork(states_[leader].id));
  states_[other].length = states_[leader].length;
  return OkStatus();
}

Status BatchSessionImpl::Branch(Prompts prompts, const std::vector<size_t>& order, const Edge& edge,
                                std::deque<Edge>& edges) {
  const size_t leader = order[edge.begin];
  const auto depth = static_cast<size_t>(edge.until);
  size_t begin = edge.begin;
  for (; begin < edge.end && prompts[order[begin]].size() == depth; ++begin) {
    const size_t other = order[begin];
    if (other == leader) continue;
    HEADLANE_RETURN_IF_ERROR(ForkTo(leader, other));
    std::memcpy(LogitsOf(static_cast<int64_t>(other)), LogitsOf(static_cast<int64_t>(leader)),
                static_cast<size_t>(core_.config().vocab_size) * sizeof(float));
    states_[other].has_logits = true;
  }
  while (begin < edge.end) {
    const std::span<const int32_t> first = prompts[order[begin]];
    size_t end = begin + 1;
    while (end < edge.end && prompts[order[end]][depth] == first[depth]) ++end;
    HEADLANE_RETURN_IF_ERROR(ForkTo(leader, order[begin]));
    edges.push_back({begin, end, edge.until, CommonPrefix(first, prompts[order[end - 1]])});
    begin = end;
  }
  return OkStatus();
}

Status BatchSessionImpl::CheckStep(std::span<const BatchToken> tokens) noexcept {
  Status status;
  size_t num_checked = 0;
  for (; num_checked < tokens.size() && status.ok(); ++num_checked) {
    const BatchToken& token = tokens[num_checked];
    if (!Has(token.sequence)) {
      status = MakeStatus(StatusCode::kOutOfRange, "token %zu is for sequence %lld; there are %lld", num_checked,
                          static_cast<long long>(token.sequence), static_cast<long long>(num_sequences()));
      break;
    }
    State& state = states_[static_cast<size_t>(token.sequence)];
    if (state.in_step) {
      status = MakeStatus(StatusCode::kInvalidArgument, "sequence %lld has two tokens in one step",
                          static_cast<long long>(token.sequence));
      break;
    }
    state.in_step = true;
    status = core_.CheckRoom(state.length, 1);
    if (token.id < 0 || token.id >= core_.config().vocab_size) {
      status = MakeStatus(StatusCode::kOutOfRange, "token %zu has the id %d; the vocabulary has %lld", num_checked,
                          token.id, static_cast<long long>(core_.config().vocab_size));
    }
  }
  for (size_t i = 0; i < num_checked; ++i) states_[static_cast<size_t>(tokens[i].sequence)].in_step = false;
  return status;
}

Status BatchSessionImpl::Step(std::span<const BatchToken> tokens) noexcept {
  HEADLANE_RETURN_IF_ERROR(CheckStep(tokens));
  if (tokens.empty()) return OkStatus();
  LapTimer timer;
  batch_.clear();  // of at most as many as it has room for: no sequence is there twice
  for (const BatchToken& token : tokens) {
    batch_.push_back({states_[static_cast<size_t>(token.sequence)].id, std::span<const int32_t>(&token.id, 1)});
  }
  HEADLANE_RETURN_IF_ERROR(core_.Forward(batch_, step_stats));
  for (const BatchToken& token : tokens) {
    State& state = states_[static_cast<size_t>(token.sequence)];
    state.length += 1;
    state.has_logits = false;
  }
  const int64_t n = static_cast<int64_t>(tokens.size());
  const size_t row_floats = static_cast<size_t>(core_.config().vocab_size);
  for (int64_t row = 0; row < n; row += kLogitRows) {
    const int64_t num_rows = std::min(kLogitRows, n - row);
    HEADLANE_RETURN_IF_ERROR(core_.Logits(row, num_rows, core_.logits(), step_stats));
    for (int64_t i = 0; i < num_rows; ++i) {
      const int64_t sequence = tokens[static_cast<size_t>(row + i)].sequence;
      std::memcpy(LogitsOf(sequence), core_.logits() + static_cast<size_t>(i) * row_floats, row_floats * sizeof(float));
      states_[static_cast<size_t>(sequence)].has_logits = true;
    }
  }
  timer.Lap(step_stats.total);
  step_stats.calls += 1;
  return OkStatus();
}

}  // namespace internal

BatchSession::BatchSession(std::unique_ptr<internal::BatchSessionImpl> impl) noexcept : impl_(std::move(impl)) {}
BatchSession::BatchSession(BatchSession&&) noexcept = default;
BatchSession& BatchSession::operator=(BatchSession&&) noexcept = default;
BatchSession::~BatchSession() = default;

Result<BatchSession> BatchSession::Create(const Model& model, const SessionOptions& options, int64_t num_sequences,
                                          int64_t cache_tokens) noexcept {
  // Far more than a pass over the weights can serve.
  constexpr int64_t kMaxSequences = 4096;
  if (!model.weights_loaded()) {
    return MakeStatus(StatusCode::kFailedPrecondition, "a session needs the model's weights: call LoadWeights first");
  }
  HEADLANE_RETURN_IF_ERROR(internal::CheckSessionOptions(options));
  if (num_sequences < 1 || num_sequences > kMaxSequences) {
    return MakeStatus(StatusCode::kInvalidArgument, "num_sequences is %lld; it must be 1 .. %lld",
                      static_cast<long long>(num_sequences), static_cast<long long>(kMaxSequences));
  }
  if (cache_tokens < 0) {
    return MakeStatus(StatusCode::kInvalidArgument, "cache_tokens is %lld; it must be at least 0",
                      static_cast<long long>(cache_tokens));
  }
  return decoder_internal::GuardAllocation("making a session", [&]() -> Result<BatchSession> {
    auto impl = std::make_unique<internal::BatchSessionImpl>(model.impl(), options);
    HEADLANE_RETURN_IF_ERROR(impl->Init(num_sequences, cache_tokens));
    return BatchSession(std::move(impl));
  });
}

Status BatchSession::Prefill(std::span<const std::span<const int32_t>> prompts,
                             const ProgressCallback& progress) noexcept {
  return decoder_internal::GuardAllocation("reading prompts", [&] { return impl_->Prefill(prompts, progress); });
}

Status BatchSession::Step(std::span<const BatchToken> tokens) noexcept { return impl_->Step(tokens); }
std::span<const float> BatchSession::logits(int64_t sequence) const noexcept { return impl_->logits(sequence); }
int64_t BatchSession::length(int64_t sequence) const noexcept { return impl_->length(sequence); }
int64_t BatchSession::num_sequences() const noexcept { return impl_->num_sequences(); }
const SessionOptions& BatchSession::options() const noexcept { return impl_->core().options(); }
int BatchSession::num_workers() const noexcept { return impl_->core().num_workers(); }
SessionMemory BatchSession::memory() const noexcept { return impl_->memory(); }
const PhaseStats& BatchSession::prompt_stats() const noexcept { return impl_->prompt_stats; }
const PhaseStats& BatchSession::step_stats() const noexcept { return impl_->step_stats; }

void BatchSession::ResetStats() noexcept {
  impl_->prompt_stats = PhaseStats();
  impl_->step_stats = PhaseStats();
}

}  // namespace headlane
