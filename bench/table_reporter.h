// The benchmark's report for people: one line per case, and what only shows when cases are put side by side.
#ifndef HEADLANE_BENCH_TABLE_REPORTER_H_
#define HEADLANE_BENCH_TABLE_REPORTER_H_

#include <benchmark/benchmark.h>

#include <map>
#include <string>
#include <vector>

#include "bench/session.h"

namespace headlane::bench {

class TableReporter final : public benchmark::BenchmarkReporter {
 public:
  // `priority`: TopPriority's outcome. `filtered`: only some cases were asked for, so others need no excuse.
  TableReporter(Session& session, const std::string& priority, bool filtered)
      : session_(session), priority_(priority), filtered_(filtered) {}

  bool ReportContext(const Context& context) override;
  void ReportRuns(const std::vector<Run>& runs) override;
  void Finalize() override;

  int num_failures() const { return num_failures_; }

 private:
  struct Line {
    std::vector<double> milliseconds;
    std::map<std::string, std::vector<double>> counters;
    std::string error;
    std::string label;
  };

  void PrintHeading(const std::string& group);
  void PrintLine(const std::string& name, const Line& line);
  void PrintScaling();
  void PrintRequirements();
  void PrintLimits();

  // A figure that is required, and whether it was reached. Empty requirement: none.
  struct Verdict {
    Requirement requirement = Requirement::kNone;
    double required = 0;  // percent at least, or ratio at most
    double reached = 0;   // 0: failed or refused
    bool passed = false;
  };
  Verdict Judge(const std::string& name, const Line& line) const;

  Session& session_;
  std::string priority_;
  bool filtered_;
  std::string group_;
  int name_width_ = 0;
  int num_failures_ = 0;
  int num_refused_ = 0;
  int num_disturbed_ = 0;
  std::map<std::string, Line> lines_;
  std::map<std::string, Verdict> verdicts_;  // by case or series
};

}  // namespace headlane::bench

#endif  // HEADLANE_BENCH_TABLE_REPORTER_H_
