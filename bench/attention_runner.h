// One implementation of attention on the inputs of a Source: the library, and what it is set beside.
//
// The benchmarks know only this interface, so that all are checked, timed and reported in the same way.
#ifndef HEADLANE_BENCH_ATTENTION_RUNNER_H_
#define HEADLANE_BENCH_ATTENTION_RUNNER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "bench/keys_values.h"
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
  // How much further from the exact result than the library's proven bound it may be: so many times, and so much.
  virtual double tolerance() const { return 1; }
  virtual double absolute_tolerance() const { return 0; }
  // What the report should say about how it computes; empty for nothing.
  virtual std::string remark() const { return ""; }
};

using RunnerResult = Result<std::unique_ptr<AttentionRunner>>;

struct Implementation {
  const char* name;
  Storage storage;
  bool is_baseline;
  // The runner keeps a reference to `source` and a share of `data`, which was made from a source with the same keys and
  // values in `storage`. Errors: ResourceExhausted (memory), Unsupported (element type, modifiers), and of the
  // implementation.
  RunnerResult (*make)(const Source& source, std::shared_ptr<KeysValues> data);
};

RunnerResult MakeHeadlaneRunner(const Source& source, std::shared_ptr<KeysValues> data);
// Loops as in the formula, on one thread: Unsupported for more.
RunnerResult MakeNaiveRunner(const Source& source, std::shared_ptr<KeysValues> data);
// oneDNN: matmul, softmax, matmul, with all scores in memory between them. Unsupported in a build without oneDNN.
RunnerResult MakeOneDnnRunner(const Source& source, std::shared_ptr<KeysValues> data);
// oneDNN's Graph API: matmul, scale, mask, softmax, matmul, given to it as one pattern. Unsupported in a build without
// oneDNN, or whose oneDNN has no Graph API, and where it makes several partitions of the pattern.
RunnerResult MakeOneDnnGraphRunner(const Source& source, std::shared_ptr<KeysValues> data);

inline constexpr Implementation kCache{"cache", Storage::kCache, false, MakeHeadlaneRunner};
inline constexpr Implementation kPlain{"plain", Storage::kTokensHeads, false, MakeHeadlaneRunner};
inline constexpr Implementation kNaive{"naive", Storage::kHeadsTokens, true, MakeNaiveRunner};
inline constexpr Implementation kOneDnn{"onednn", Storage::kHeadsTokens, true, MakeOneDnnRunner};
inline constexpr Implementation kOneDnnGraph{"onednn-graph", Storage::kHeadsTokens, true, MakeOneDnnGraphRunner};

// For baselines, which know causal attention only. Errors: Unsupported.
Status RefuseModifiers(const AttentionShape& shape, const char* who);

// Compares rows of the last run with the double-precision reference: the first and last and those at the borders
// between tiles, blocks and splits; first and last head, first and last sequence. Errors: Internal, which names the
// place and both numbers.
Status CheckOutputs(const Source& source, const AttentionRunner& runner, int64_t copy);

}  // namespace headlane::bench

#endif  // HEADLANE_BENCH_ATTENTION_RUNNER_H_
