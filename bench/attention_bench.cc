// Prefill, decode and few rows (speculative verification) on the shapes of known models.
#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "bench/attention_runner.h"
#include "bench/memory_block.h"
#include "bench/session.h"

namespace headlane::bench {
namespace {

// The inputs and the implementation of a task, kept while its threads vary.
struct AttentionInputs {
  explicit AttentionInputs(const AttentionShape& shape) : source(shape) {}

  Source source;
  std::unique_ptr<AttentionRunner> runner;
  int64_t num_copies = 1;
  int64_t next_copy = 0;
  std::set<int> checked_threads;
};

struct Variant {
  const char* name;
  RunnerResult (*make)(const Source& source, int64_t num_copies);
};
constexpr Variant kPlain{"plain", MakePlainRunner};
constexpr Variant kCache{"cache", MakeCacheRunner};
constexpr Variant kNaive{"naive", MakeNaiveRunner};
constexpr Variant kOneDnn{"onednn", MakeOneDnnRunner};

struct Task {
  std::string name;  // "decode/llama-3-8b/4096/b1"
  std::string series;
  AttentionShape shape;
  int64_t num_copies = 1;
  int64_t length = 0;
  Work work;
  bool quick = false;
};

// All memory that a variant of the task will want, about.
double TaskBytes(const Task& task, const Variant& variant) {
  const ModelShape& model = task.shape.model;
  const double rows = static_cast<double>(task.shape.num_sequences * task.shape.q_len * model.num_q_heads);
  double bytes = KvBytes(task.shape) * static_cast<double>(task.num_copies) +
                 rows * static_cast<double>(model.qk_dim + model.v_dim) * 4;
  if (variant.name == kOneDnn.name) bytes += rows * static_cast<double>(task.shape.kv_len) * 4;
  return bytes;
}

Result<std::unique_ptr<AttentionInputs>> MakeInputs(const Task& task, const Variant& variant) {
  auto inputs = std::make_unique<AttentionInputs>(task.shape);
  inputs->num_copies = task.num_copies;
  HEADLANE_ASSIGN_OR_RETURN(inputs->runner, variant.make(inputs->source, task.num_copies));
  return inputs;
}

// Outputs are compared before they are timed: those of the first and the last copy.
Status Check(AttentionInputs& inputs, int threads) {
  HEADLANE_RETURN_IF_ERROR(inputs.runner->SetThreads(threads));
  if (inputs.checked_threads.count(threads) != 0) return OkStatus();
  for (const int64_t copy : std::set<int64_t>{0, inputs.num_copies - 1}) {
    HEADLANE_RETURN_IF_ERROR(inputs.runner->Run(copy));
    HEADLANE_RETURN_IF_ERROR(CheckOutputs(inputs.source, *inputs.runner, copy));
  }
  inputs.checked_threads.insert(threads);
  return OkStatus();
}

void RunCase(Session& session, benchmark::State& state, const Case& entry, const Task& task, const Variant& variant) {
  auto inputs =
      session.GetInputs<AttentionInputs>(task.name + "/" + variant.name, [&] { return MakeInputs(task, variant); });
  Status status = inputs.status();
  if (status.ok()) status = Check(**inputs, entry.threads);
  if (!status.ok()) {
    state.SkipWithError(status.c_str());
    return;
  }
  AttentionInputs& all = **inputs;
  const double seconds = session.Time(state, entry, [&] {
    const int64_t copy = all.next_copy;
    all.next_copy = (copy + 1) % all.num_copies;
    return all.runner->Run(copy);
  });
  if (seconds > 0) state.counters[kWorkspaceMb] = static_cast<double>(all.runner->workspace_bytes()) / 1e6;
}

class Registrar {
 public:
  explicit Registrar(Session& session) : session_(session) {
    // A case may fill so much and leave the rest of the machine in peace.
    constexpr double kMostBytes = 3.5e9;
    memory_bytes_ = std::min(kMostBytes, 0.5 * static_cast<double>(AvailableMemoryBytes()));
  }

  void Add(const Task& task, const Variant& variant, int threads) {
    const bool baseline = variant.name == kOneDnn.name || variant.name == kNaive.name;
    if (baseline && !session_.options().baselines) return;
    if (variant.name == kOneDnn.name && !HEADLANE_WITH_ONEDNN) return;
    const std::string threads_part = "/threads:" + std::to_string(threads);
    const std::string variant_part = std::string("/") + variant.name + threads_part;
    Case entry;
    entry.name = task.name + variant_part;
    entry.task = task.name + threads_part;
    entry.series = task.series + variant_part;
    entry.variant = variant.name;
    entry.length = task.length;
    entry.threads = threads;
    entry.work = task.work;
    if (const double bytes = TaskBytes(task, variant); bytes > memory_bytes_) {
      if (!session_.options().quick) {
        session_.RegisterSkipped(task.name + "/" + variant.name,
                                 "needs " + std::to_string(static_cast<int64_t>(bytes / 1e6)) + " MB of memory");
      }
      return;
    }
    // A baseline's single call can take seconds.
    constexpr double kMuch = 30e9;
    session_.Register(entry, task.quick, baseline && task.work.flops > kMuch,
                      [&session = session_, task, variant](benchmark::State& state, const Case& registered) {
                        RunCase(session, state, registered, task, variant);
                      });
  }

  void AddForAllThreads(const Task& task, const Variant& variant) {
    for (const int threads : session_.options().threads) Add(task, variant, threads);
  }

 private:
  Session& session_;
  double memory_bytes_;
};

bool Is(const ModelShape& model, std::initializer_list<const char*> names) {
  return std::any_of(names.begin(), names.end(), [&](const char* name) { return std::string(model.name) == name; });
}

void RegisterPrefill(Session& session, Registrar& registrar) {
  for (const ModelShape& model : kModelShapes) {
    for (const int64_t length : {128, 512, 2048, 4096, 8192}) {
      Task task;
      task.series = std::string("prefill/") + model.name;
      task.name = task.series + "/" + std::to_string(length);
      task.shape = {model, 1, length, length};
      task.length = length;
      task.work = PrefillWork(task.shape);
      task.work.bytes = 0;  // read once and used thousands of times: the multiply-adds are the limit
      const bool llama = Is(model, {"llama-3-8b"});
      task.quick = llama && (length == 512 || length == 2048);
      const int most_threads = session.options().threads.front();
      if (length == 8192) {  // for the scaling of cost only
        if (llama) registrar.Add(task, kCache, most_threads);
        continue;
      }
      constexpr int64_t kLongestNaive = 128;
      constexpr int64_t kLongestBaseline = 2048;
      if (length <= kLongestNaive) registrar.Add(task, kNaive, 1);
      if (length <= kLongestBaseline) {
        registrar.AddForAllThreads(task, kOneDnn);
      } else {
        registrar.Add(task, kOneDnn, most_threads);
      }
      registrar.AddForAllThreads(task, kCache);
      registrar.AddForAllThreads(task, kPlain);
    }
  }
}

Task DecodeTask(const ModelShape& model, int64_t num_sequences, int64_t q_len, int64_t kv_len) {
  Task task;
  task.shape = {model, num_sequences, q_len, kv_len};
  task.num_copies = ColdCopies(KvBytes(task.shape));
  task.length = kv_len;
  task.work = AttentionWork(task.shape);
  return task;
}

void RegisterDecode(Registrar& registrar) {
  for (const ModelShape& model : kModelShapes) {
    for (const int64_t batch : {1, 8}) {
      for (const int64_t kv_len : {512, 4096, 16384, 65536}) {
        if (batch > 1 && kv_len > 16384) continue;
        Task task = DecodeTask(model, batch, 1, kv_len);
        const std::string batch_part = "/b" + std::to_string(batch);
        task.series = std::string("decode/") + model.name + batch_part;
        task.name = std::string("decode/") + model.name + "/" + std::to_string(kv_len) + batch_part;
        const bool middle = kv_len == 4096 || kv_len == 16384;
        task.quick = batch == 1 && middle && Is(model, {"llama-3-8b"});
        if (batch == 1 && kv_len == 512) registrar.Add(task, kNaive, 1);
        if (middle) registrar.AddForAllThreads(task, kOneDnn);
        registrar.AddForAllThreads(task, kCache);
        if (batch == 1 && middle) registrar.AddForAllThreads(task, kPlain);
      }
    }
  }
}

void RegisterRows(Registrar& registrar) {
  for (const ModelShape& model : kModelShapes) {
    if (!Is(model, {"llama-3-8b", "smollm2-135m"})) continue;
    for (const int64_t rows : {2, 4, 8, 16, 32}) {
      constexpr int64_t kKeys = 4096;
      Task task = DecodeTask(model, 1, rows, kKeys);
      task.name = std::string("rows/") + model.name + "/" + std::to_string(kKeys) + "/rows:" + std::to_string(rows);
      task.series = task.name;
      task.quick = Is(model, {"llama-3-8b"}) && (rows == 4 || rows == 16);
      registrar.AddForAllThreads(task, kOneDnn);
      registrar.AddForAllThreads(task, kCache);
    }
  }
}

}  // namespace

void RegisterAttention(Session& session) {
  Registrar registrar(session);
  RegisterPrefill(session, registrar);
  RegisterDecode(registrar);
  RegisterRows(registrar);
}

}  // namespace headlane::bench
