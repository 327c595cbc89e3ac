// One implementation of attention on the inputs of a Source: the library in its storages, and what it is set beside.
//
// The benchmarks know only this interface, so that all are checked, timed and reported in the same way.
#ifndef HEADLANE_BENCH_ATTENTION_RUNNER_H_
#define HEADLANE_BENCH_ATTENTION_RUNNER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "bench/source.h"
#include "headlane/status.h"

namespace headlane::bench {

class AttentionRunner {
 public:
  virtual ~AttentionRunner() = default;

  // Before the first Run, and between runs. Errors: of the implementation.
  virtual Status SetThreads(int threads) = 0;
  // The whole call on the keys and values of copy 0 .. num_copies - 1.
  virtual Status Run(int64_t copy) = 0;
  // v_dim floats of the last run.
  virtual const float* Output(int64_t sequence, int64_t row, int64_t head) const = 0;
  // Scratch memory beside inputs and outputs, for as many threads as set.
  virtual int64_t workspace_bytes() const = 0;
  // How much further from the exact result than the library's proven bound it may be.
  virtual double tolerance() const { return 1; }
};

using RunnerResult = Result<std::unique_ptr<AttentionRunner>>;

// All keep a reference to `source`. Errors: ResourceExhausted (memory), and of the implementation.
RunnerResult MakePlainRunner(const Source& source, int64_t num_copies);  // [tokens, heads, dim] tensors
RunnerResult MakeCacheRunner(const Source& source, int64_t num_copies);  // copies are the layers of one cache
// Loops as in the formula, on one thread: Unsupported for more.
RunnerResult MakeNaiveRunner(const Source& source, int64_t num_copies);
// oneDNN: matmul, softmax, matmul, with all scores in memory between them. Unsupported in a build without oneDNN.
RunnerResult MakeOneDnnRunner(const Source& source, int64_t num_copies);

// Compares rows of the last run with the double-precision reference: the first and last and those at the borders
// between tiles, blocks and splits; first and last head, first and last sequence. Errors: Internal, which names the
// place and both numbers.
Status CheckOutputs(const Source& source, const AttentionRunner& runner, int64_t copy);

}  // namespace headlane::bench

#endif  // HEADLANE_BENCH_ATTENTION_RUNNER_H_
