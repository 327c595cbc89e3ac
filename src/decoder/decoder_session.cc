// Session of headlane/decoder.h: one running sequence, and what is fed to the forward pass.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "decoder/alloc_guard.h"
#include "decoder/session_core.h"
#include "decoder/session_file.h"
#include "headlane/decoder.h"
#include "headlane/ops.h"

namespace headlane {
namespace internal {

// Rows of logits that Score has at a time: enough for the head to be a matrix product, few enough for a large
// vocabulary.
constexpr int64_t kLogitRows = 16;

class SessionImpl {
 public:
  SessionImpl(const ModelImpl& model, const SessionOptions& options) : core_(model, options) {}

  Status Init();

  Status Prefill(std::span<const int32_t> ids, const ProgressCallback& progress) noexcept;
  Status Step(int32_t id) noexcept;
  Status Score(std::span<const int32_t> ids, std::span<double> losses, const ProgressCallback& progress) noexcept;
  Status FillRandom(int64_t length, uint64_t seed) noexcept;
  Status Truncate(int64_t length) noexcept;
  Status SaveCache(const std::string& path) const;
  Result<int64_t> LoadCache(const std::string& path, std::span<const int32_t> ids);

  std::span<const float> logits() const noexcept {
    if (logits_row_ < 0) return {};
    const int64_t vocab_size = core_.config().vocab_size;
    return {core_.logits() + logits_row_ * vocab_size, static_cast<size_t>(vocab_size)};
  }
  int64_t length() const noexcept { return length_; }
  SessionMemory memory() const noexcept;
  SessionCore& core() noexcept { return core_; }
  const SessionCore& core() const noexcept { return core_; }

  PhaseStats prompt_stats;
  PhaseStats step_stats;

 private:
  // Appends at most a chunk of checked ids.
  Status Forward(std::span<const int32_t> ids, PhaseStats& stats) noexcept;
  Status LogitsOfRow(int64_t row, PhaseStats& stats) noexcept;
  Status ScoreChunk(std::span<const int32_t> ids, std::span<const int32_t> targets, double* losses) noexcept;
  // Runs `append`, and takes back what it has appended when it fails.
  template <typename Append>
  Status AllOrNothing(const Append& append) noexcept;

  SessionCore core_;
  SequenceId sequence_;
  int64_t logits_row_ = -1;  // the row that logits() shows; -1: none
  int64_t length_ = 0;
  std::vector<int32_t> ids_;  // of the tokens; -1: made up. Capacity max_context.
};

Status SessionImpl::Init() {
  HEADLANE_RETURN_IF_ERROR(core_.Init(1, 0, kLogitRows));
  HEADLANE_ASSIGN_OR_RETURN(sequence_, core_.cache().CreateSequence());
  ids_.reserve(static_cast<size_t>(core_.options().max_context));
  return OkStatus();
}

SessionMemory SessionImpl::memory() const noexcept {
  SessionMemory memory = core_.memory();
  memory.kept_tokens = core_.KeptTokens(length_);
  return memory;
}

Status SessionImpl::Forward(std::span<const int32_t> ids, PhaseStats& stats) noexcept {
  const SequenceTokens tokens{sequence_, ids};
  HEADLANE_RETURN_IF_ERROR(core_.Forward(std::span<const SequenceTokens>(&tokens, 1), stats));
  length_ += static_cast<int64_t>(ids.size());
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  return OkStatus();
}

Status SessionImpl::LogitsOfRow(int64_t row, PhaseStats& stats) noexcept {
  logits_row_ = -1;
  HEADLANE_RETURN_IF_ERROR(core_.Logits(row, 1, core_.logits(), stats));
  logits_row_ = 0;
  return OkStatus();
}

template <typename Append>
Status SessionImpl::AllOrNothing(const Append& append) noexcept {
  const int64_t before = length_;
  const Status status = append();
  if (!status.ok() && length_ != before) {
    // A window may have passed what the old length needs: what is complete then stays.
    if (core_.cache().Truncate(sequence_, before).ok()) {
      length_ = before;
      ids_.resize(static_cast<size_t>(length_));
    } else {
      logits_row_ = -1;
    }
  }
  return status;
}

Status SessionImpl::Prefill(std::span<const int32_t> ids, const ProgressCallback& progress) noexcept {
  HEADLANE_RETURN_IF_ERROR(core_.CheckIds(ids));
  const int64_t n = static_cast<int64_t>(ids.size());
  HEADLANE_RETURN_IF_ERROR(core_.CheckRoom(length_, n));
  if (n == 0) return OkStatus();
  LapTimer timer;
  const Status status = AllOrNothing([&]() noexcept -> Status {
    int64_t chunk = 0;
    for (int64_t begin = 0; begin < n; begin += chunk) {
      chunk = std::min(core_.options().chunk, n - begin);
      HEADLANE_RETURN_IF_ERROR(
          Forward(ids.subspan(static_cast<size_t>(begin), static_cast<size_t>(chunk)), prompt_stats));
      if (progress && !progress(begin + chunk, n)) {
        return MakeStatus(StatusCode::kCancelled, "stopped after %lld of %lld tokens",
                          static_cast<long long>(begin + chunk), static_cast<long long>(n));
      }
    }
    return LogitsOfRow(chunk - 1, prompt_stats);
  });
  timer.Lap(prompt_stats.total);
  prompt_stats.calls += 1;
  return status;
}

Status SessionImpl::Step(int32_t id) noexcept {
  const std::span<const int32_t> ids(&id, 1);
  HEADLANE_RETURN_IF_ERROR(core_.CheckIds(ids));
  HEADLANE_RETURN_IF_ERROR(core_.CheckRoom(length_, 1));
  LapTimer timer;
  const Status status = AllOrNothing([&]() noexcept -> Status {
    return core_.InOneRegion(1, [&]() noexcept -> Status {
      HEADLANE_RETURN_IF_ERROR(Forward(ids, step_stats));
      return LogitsOfRow(0, step_stats);
    });
  });
  timer.Lap(step_stats.total);
  step_stats.calls += 1;
  return status;
}

// losses[i] = ln sum exp(logits of row i) - logit of targets[i]; targets is shorter by one when nothing follows the
// last row.
Status SessionImpl::ScoreChunk(std::span<const int32_t> ids, std::span<const int32_t> targets,
                               double* losses) noexcept {
  const int64_t vocab_size = core_.config().vocab_size;
  const int64_t n = static_cast<int64_t>(ids.size());
  const int64_t num_targets = static_cast<int64_t>(targets.size());
  HEADLANE_RETURN_IF_ERROR(Forward(ids, prompt_stats));
  for (int64_t row = 0; row < n; row += kLogitRows) {
    const int64_t num_rows = std::min(kLogitRows, n - row);
    HEADLANE_RETURN_IF_ERROR(core_.Logits(row, num_rows, core_.logits(), prompt_stats));
    ParallelRows(core_.executor(), std::min(num_rows, num_targets - row), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const float* logits = core_.logits() + i * vocab_size;
        losses[row + i] = static_cast<double>(LogSumExp(logits, vocab_size)) -
                          static_cast<double>(logits[targets[static_cast<size_t>(row + i)]]);
      }
    });
    logits_row_ = num_rows - 1;
  }
  return OkStatus();
}

Status SessionImpl::Score(std::span<const int32_t> ids, std::span<double> losses,
                          const ProgressCallback& progress) noexcept {
  HEADLANE_RETURN_IF_ERROR(core_.CheckIds(ids));
  const size_t n = ids.size();
  if (losses.size() != (n == 0 ? 0 : n - 1)) {
    return MakeStatus(StatusCode::kInvalidArgument,
                      "losses has %zu places for %zu tokens; it needs one less than tokens", losses.size(), n);
  }
  HEADLANE_RETURN_IF_ERROR(core_.CheckRoom(length_, static_cast<int64_t>(n)));
  if (n == 0) return OkStatus();
  LapTimer timer;
  logits_row_ = -1;
  const Status status = AllOrNothing([&]() noexcept -> Status {
    size_t chunk = 0;
    for (size_t begin = 0; begin < n; begin += chunk) {
      chunk = std::min(static_cast<size_t>(core_.options().chunk), n - begin);
      const std::span<const int32_t> targets = ids.subspan(begin + 1, std::min(chunk, n - begin - 1));
      HEADLANE_RETURN_IF_ERROR(ScoreChunk(ids.subspan(begin, chunk), targets, losses.data() + begin));
      if (progress && !progress(static_cast<int64_t>(begin + chunk), static_cast<int64_t>(n))) {
        return MakeStatus(StatusCode::kCancelled, "stopped after %zu of %zu tokens", begin + chunk, n);
      }
    }
    return OkStatus();
  });
  if (!status.ok()) logits_row_ = -1;
  timer.Lap(prompt_stats.total);
  prompt_stats.calls += 1;
  return status;
}

Status SessionImpl::FillRandom(int64_t length, uint64_t seed) noexcept {
  if (length < length_) {
    return MakeStatus(StatusCode::kOutOfRange, "can't fill up to %lld tokens: there are %lld already",
                      static_cast<long long>(length), static_cast<long long>(length_));
  }
  HEADLANE_RETURN_IF_ERROR(core_.CheckRoom(length_, length - length_));
  return AllOrNothing([&]() noexcept -> Status {
    while (length_ < length) {
      const int64_t n = std::min(core_.options().chunk, length - length_);
      HEADLANE_RETURN_IF_ERROR(core_.AppendRandom(sequence_, n, seed));
      length_ += n;
      ids_.resize(static_cast<size_t>(length_), -1);
      logits_row_ = -1;
    }
    return OkStatus();
  });
}

Status SessionImpl::Truncate(int64_t length) noexcept {
  if (length == length_) return OkStatus();
  HEADLANE_RETURN_IF_ERROR(core_.cache().Truncate(sequence_, length));
  length_ = length;
  ids_.resize(static_cast<size_t>(length_));
  logits_row_ = -1;
  return OkStatus();
}

Status SessionImpl::SaveCache(const std::string& path) const {
  const auto made_up = std::find(ids_.begin(), ids_.end(), -1);
  if (made_up != ids_.end()) {
    return MakeStatus(StatusCode::kFailedPrecondition, "token %lld is made up: it has no id to be found by",
                      static_cast<long long>(made_up - ids_.begin()));
  }
  return SaveSequence(core_.model(), core_.cache(), sequence_, ids_, path);
}

Result<int64_t> SessionImpl::LoadCache(const std::string& path, std::span<const int32_t> ids) {
  if (length_ > 0) {
    return MakeStatus(StatusCode::kFailedPrecondition,
                      "a saved cache goes into an empty session; this one has %lld tokens",
                      static_cast<long long>(length_));
  }
  // Makes room for the one that is restored.
  HEADLANE_RETURN_IF_ERROR(core_.cache().DropSequence(sequence_));
  Result<LoadedSequence> loaded = LoadSequence(core_.model(), core_.cache(), ids, path);
  if (!loaded.ok() || loaded->length == 0) {
    HEADLANE_ASSIGN_OR_RETURN(sequence_, core_.cache().CreateSequence());
    if (!loaded.ok()) return loaded.status();
    return 0;
  }
  sequence_ = loaded->id;
  length_ = loaded->length;
  ids_.assign(ids.begin(), ids.begin() + length_);
  return length_;
}

}  // namespace internal

Session::Session(std::unique_ptr<internal::SessionImpl> impl) noexcept : impl_(std::move(impl)) {}
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;
Session::~Session() = default;

Result<Session> Session::Create(const Model& model, const SessionOptions& options) noexcept {
  if (!model.weights_loaded()) {
    return MakeStatus(StatusCode::kFailedPrecondition, "a session needs the model's weights: call LoadWeights first");
  }
  HEADLANE_RETURN_IF_ERROR(internal::CheckSessionOptions(options));
  return decoder_internal::GuardAllocation("making a session", [&]() -> Result<Session> {
    auto impl = std::make_unique<internal::SessionImpl>(model.impl(), options);
    HEADLANE_RETURN_IF_ERROR(impl->Init());
    return Session(std::move(impl));
  });
}

Status Session::Prefill(std::span<const int32_t> ids, const ProgressCallback& progress) noexcept {
  return impl_->Prefill(ids, progress);
}

Result<std::span<const float>> Session::Step(int32_t id) noexcept {
  HEADLANE_RETURN_IF_ERROR(impl_->Step(id));
  return impl_->logits();
}

Status Session::Score(std::span<const int32_t> ids, std::span<double> losses,
                      const ProgressCallback& progress) noexcept {
  return impl_->Score(ids, losses, progress);
}

std::span<const float> Session::logits() const noexcept { return impl_->logits(); }
int64_t Session::length() const noexcept { return impl_->length(); }
Status Session::Truncate(int64_t length) noexcept { return impl_->Truncate(length); }
Status Session::FillRandom(int64_t length, uint64_t seed) noexcept { return impl_->FillRandom(length, seed); }

Status Session::SaveCache(const std::string& path) const noexcept {
  return decoder_internal::GuardAllocation("saving a cache", [&] { return impl_->SaveCache(path); });
}

Result<int64_t> Session::LoadCache(const std::string& path, std::span<const int32_t> ids) noexcept {
  return decoder_internal::GuardAllocation("loading a cache", [&] { return impl_->LoadCache(path, ids); });
}

Result<int64_t> Session::SavedLength(const std::string& path) noexcept {
  return decoder_internal::GuardAllocation("looking at a cache", [&] { return internal::SavedLength(path); });
}

void Session::Observe(LayerObserver observer) noexcept { impl_->core().Observe(std::move(observer)); }
const SessionOptions& Session::options() const noexcept { return impl_->core().options(); }
int Session::num_workers() const noexcept { return impl_->core().num_workers(); }
SessionMemory Session::memory() const noexcept { return impl_->memory(); }
const PhaseStats& Session::prompt_stats() const noexcept { return impl_->prompt_stats; }
const PhaseStats& Session::step_stats() const noexcept { return impl_->step_stats; }

void Session::ResetStats() noexcept {
  impl_->prompt_stats = PhaseStats();
  impl_->step_stats = PhaseStats();
}

}  // namespace headlane
