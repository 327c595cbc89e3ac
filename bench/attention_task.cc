#include "bench/attention_task.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "bench/memory_block.h"
#include "bench/statistics.h"

namespace headlane::bench {
namespace {

// The inputs and the implementation of a task, kept while its threads vary.
struct AttentionInputs {
  explicit AttentionInputs(const AttentionShape& shape) : source(shape) {}

  Source source;
  std::unique_ptr<AttentionRunner> runner;
  int64_t num_copies = 1;
  int64_t next_copy = 0;
  int64_t stored_bytes = 0;  // of one copy
  std::set<int> checked_threads;
};

// All memory that it will want, about.
double TaskBytes(const AttentionTask& task, const Implementation& implementation) {
  const ModelShape& model = task.shape.model;
  const double rows = static_cast<double>(task.shape.num_sequences * task.shape.q_len * model.num_q_heads);
  double bytes = KvBytes(task.shape) * static_cast<double>(task.num_copies) +
                 rows * static_cast<double>(model.qk_dim + model.v_dim) * 4;
  if (implementation.make == MakeOneDnnRunner) bytes += rows * static_cast<double>(task.shape.kv_len) * 4;
  return bytes;
}

Result<std::unique_ptr<AttentionInputs>> MakeInputs(Session& session, const AttentionTask& task,
                                                    const Implementation& implementation) {
  auto inputs = std::make_unique<AttentionInputs>(task.shape);
  inputs->num_copies = task.num_copies;
  HEADLANE_ASSIGN_OR_RETURN(
      std::shared_ptr<KeysValues> data,
      session.GetShared<KeysValues>(KeysValues::Key(task.shape, implementation.storage, task.num_copies), [&] {
        return KeysValues::Make(inputs->source, implementation.storage, task.num_copies);
      }));
  inputs->stored_bytes = data->bytes_per_copy();
  HEADLANE_ASSIGN_OR_RETURN(inputs->runner, implementation.make(inputs->source, std::move(data)));
  return inputs;
}

// Outputs are compared before they are timed: those of the first and the last copy.
Status Check(AttentionInputs& inputs, int threads) {
  if (inputs.checked_threads.count(threads) != 0) return OkStatus();
  for (const int64_t copy : std::set<int64_t>{0, inputs.num_copies - 1}) {
    HEADLANE_RETURN_IF_ERROR(inputs.runner->Run(copy));
    HEADLANE_RETURN_IF_ERROR(CheckOutputs(inputs.source, *inputs.runner, copy));
  }
  inputs.checked_threads.insert(threads);
  return OkStatus();
}

void RunCase(Session& session, benchmark::State& state, const Case& entry, const AttentionTask& task,
             const Implementation& implementation, bool check_after) {
  auto inputs = session.GetInputs<AttentionInputs>(CaseName(task, implementation),
                                                   [&] { return MakeInputs(session, task, implementation); });
  Status status = inputs.status();
  if (status.ok()) status = (*inputs)->runner->SetThreads(entry.threads);
  if (status.ok() && !check_after) status = Check(**inputs, entry.threads);
  if (!status.ok()) {
    Session::Fail(state, status);
    return;
  }
  AttentionInputs& all = **inputs;
  int64_t copy = 0;
  const auto run = [&] {
    copy = all.next_copy;
    all.next_copy = (copy + 1) % all.num_copies;
    return all.runner->Run(copy);
  };
  // A call that takes seconds is not made once more to be checked, but checked when it was timed.
  const std::function<Status()> check_last = [&] { return CheckOutputs(all.source, *all.runner, copy); };
  if (session.Time(state, entry, run, check_after ? check_last : nullptr) == 0) return;
  state.counters[kWorkspaceMb] = static_cast<double>(all.runner->workspace_bytes()) / 1e6;
  state.counters[kStoredMb] = static_cast<double>(all.stored_bytes) / 1e6;
  state.SetLabel(all.runner->remark());
}

}  // namespace

AttentionTask ColdTask(const ModelShape& model, int64_t num_sequences, int64_t q_len, int64_t kv_len, DType dtype) {
  AttentionTask task;
  task.shape = {model, num_sequences, q_len, kv_len, dtype};
  task.num_copies = ColdCopies(KvBytes(task.shape));
  task.work = AttentionWork(task.shape);
  return task;
}

AttentionTask PrefillTask(const ModelShape& model, int64_t length, DType dtype) {
  AttentionTask task;
  task.series = std::string("prefill/") + model.name;
  task.name = task.series + "/" + std::to_string(length);
  task.shape = {model, 1, length, length, dtype};
  task.work = PrefillWork(task.shape);
  task.work.bytes = 0;
  return task;
}

std::string CaseName(const AttentionTask& task, const Implementation& implementation) {
  const std::string type = task.shape.dtype == DType::kF32 ? "" : std::string("-") + DTypeName(task.shape.dtype);
  return task.name + "/" + implementation.name + type;
}

AttentionRegistrar::AttentionRegistrar(Session& session) : session_(session) {
  // A case may fill so much and leave the rest of the machine in peace.
  constexpr double kMostBytes = 3.5e9;
  memory_bytes_ = std::min(kMostBytes, 0.5 * static_cast<double>(AvailableMemoryBytes()));
}

void AttentionRegistrar::Add(const AttentionTask& task, const Implementation& implementation) {
  if (implementation.is_baseline && !session_.options().baselines) return;
  const bool is_onednn = implementation.make == MakeOneDnnRunner || implementation.make == MakeOneDnnGraphRunner;
  if (is_onednn && !HEADLANE_WITH_ONEDNN) return;
  if (const double bytes = TaskBytes(task, implementation); bytes > memory_bytes_) {
    if (!session_.options().quick && !session_.options().targets) {
      session_.RegisterSkipped(CaseName(task, implementation),
                               "needs " + std::to_string(static_cast<int64_t>(bytes / 1e6)) + " MB of memory");
    }
    return;
  }
  if (implementation.make == MakeNaiveRunner) return AddOne(task, implementation, 1);
  for (const int threads : session_.options().threads) AddOne(task, implementation, threads);
}

void AttentionRegistrar::AddBaselines(const AttentionTask& task) {
  Add(task, kOneDnn);
  Add(task, kOneDnnGraph);
}

void AttentionRegistrar::AddOne(const AttentionTask& task, const Implementation& implementation, int threads) {
  const std::string threads_part = "/threads:" + std::to_string(threads);
  Case entry;
  entry.name = CaseName(task, implementation) + threads_part;
  entry.task = task.name + "/" + DTypeName(task.shape.dtype) + threads_part;
  entry.series = task.series + CaseName(task, implementation).substr(task.name.size()) + threads_part;
  entry.variant = implementation.name;
  entry.length = task.shape.kv_len;
  entry.threads = threads;
  entry.work = task.work;
  if (!implementation.is_baseline) entry.requirement = task.requirement;
  if (!task.reference.empty()) entry.reference = task.reference + threads_part;
  Session::Selection selection;
  selection.quick = task.quick;
  selection.targets = task.targets || task.requirement != Requirement::kNone;
  // A single call of these can take seconds.
  constexpr double kMuch = 10e9, kVeryMuch = 100e9, kMuchForLoops = 0.05e9;
  const double flops = task.work.flops;
  const bool only_once =
      implementation.is_baseline && flops > (implementation.make == MakeNaiveRunner ? kMuchForLoops : kMuch);
  if (flops > kVeryMuch) selection.repetitions = 2;
  if (only_once) selection.repetitions = 1;
  session_.Register(entry, selection,
                    [&session = session_, task, implementation, check_after = only_once || flops > kVeryMuch](
                        benchmark::State& state, const Case& registered) {
                      RunCase(session, state, registered, task, implementation, check_after);
                    });
}

bool IsAnyOf(const ModelShape& model, std::initializer_list<const char*> names) {
  return std::any_of(names.begin(), names.end(),
                     [&](const char* name) { return std::string_view(model.name) == name; });
}

}  // namespace headlane::bench
