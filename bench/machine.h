// What the benchmarks say about the machine that they ran on, and how they ask it not to be disturbed.
#ifndef HEADLANE_BENCH_MACHINE_H_
#define HEADLANE_BENCH_MACHINE_H_

#include <string>

namespace headlane::bench {

std::string ProcessorName();

// While alive, the scheduler prefers this process, so that a timed stretch is not cut up by whatever else the machine
// runs. Where the kernel groups processes by session, what counts is the whole session's weight: all programs started
// from the same terminal gain with this one, until its end (a signal that ends it included). Takes root.
class TopPriority {
 public:
  TopPriority();
  ~TopPriority();
  TopPriority(const TopPriority&) = delete;
  TopPriority& operator=(const TopPriority&) = delete;

  // In a few words, for the report.
  const std::string& outcome() const { return outcome_; }

 private:
  std::string outcome_;
};

// Processor time that all threads of this process have used.
double ProcessCpuSeconds();

}  // namespace headlane::bench

#endif  // HEADLANE_BENCH_MACHINE_H_
