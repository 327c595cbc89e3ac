// Attention cases for Google Benchmark: the same work given to several implementations, checked, timed and reported
// alike. Used by the files that list shapes.
#ifndef HEADLANE_BENCH_ATTENTION_TASK_H_
#define HEADLANE_BENCH_ATTENTION_TASK_H_

#include <string>

#include "bench/attention_runner.h"
#include "bench/session.h"

namespace headlane::bench {

struct AttentionTask {
  std::string name;    // "decode/llama-3-8b/4096/b1"
  std::string series;  // the same but for the length
  AttentionShape shape;
  int64_t num_copies = 1;
  Work work;
  bool quick = false;
  Requirement requirement = Requirement::kNone;
  bool targets = false;        // a part of --targets without a requirement: others are compared with it
  std::string reference = {};  // CaseName() of the case that this one's time is compared with, without its threads
};

// Of some rows at the end of sequences, out of memory that is in no cache.
AttentionTask ColdTask(const ModelShape& model, int64_t num_sequences, int64_t q_len, int64_t kv_len, DType dtype);
// Of whole prompts, bound by multiply-adds: keys and values are read once and used thousands of times.
AttentionTask PrefillTask(const ModelShape& model, int64_t length, DType dtype);

// "decode/llama-3-8b/4096/b1/cache-f16", to which "/threads:2" is added.
std::string CaseName(const AttentionTask& task, const Implementation& implementation);

class AttentionRegistrar {
 public:
  explicit AttentionRegistrar(Session& session);

  // With each number of threads of the options. Baselines are left out where the options or the build say so, and what
  // would take more memory than a good part of the machine's.
  void Add(const AttentionTask& task, const Implementation& implementation);
  // Unfused oneDNN and oneDNN Graph.
  void AddBaselines(const AttentionTask& task);

 private:
  void AddOne(const AttentionTask& task, const Implementation& implementation, int threads);

  Session& session_;
  double memory_bytes_;
};

bool IsAnyOf(const ModelShape& model, std::initializer_list<const char*> names);

}  // namespace headlane::bench

#endif  // HEADLANE_BENCH_ATTENTION_TASK_H_
