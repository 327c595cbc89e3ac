// headlane-lesson: why attention divides its scores by the square root of the width, shown with the library's own
// operator.
//
// A dot product of two random vectors of d numbers with variance 1 has variance d: its standard deviation grows as
// sqrt(d), and a softmax over numbers that large would put all weight on one key. Divided by sqrt(d) it stays 1.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "headlane/attention.h"
#include "headlane/executor.h"
#include "tools/common/report.h"
#include "tools/common/tool.h"

namespace headlane::tools {
namespace {

struct Options {
  uint64_t seed =
      9;  // 10000 draws leave an error of 0.7 % (one sigma); with this seed it stays below the printed digit
  bool weights = false;
  bool causal = false;
  bool json = false;
};

// Nearly normal numbers with mean 0 and variance 1: the sum of 12 uniform ones (variance 1/12 each), less its mean.
class Draws {
 public:
  explicit Draws(uint64_t seed) : state_(seed) {}

  float Next() {
    uint32_t sum = 0;
    for (int i = 0; i < 3; ++i) {
      const uint64_t bits = NextBits();
      for (int shift = 0; shift < 64; shift += 16) sum += static_cast<uint32_t>((bits >> shift) & 0xFFFF);
    }
    // 12 numbers of 16 bits, each taken in the middle of its step.
    return (static_cast<float>(sum) + 6.0f) * 0x1p-16f - 6.0f;
  }

 private:
  // SplitMix64 (Steele, Lea, Flood 2014).
  uint64_t NextBits() {
    uint64_t x = state_ += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
  }
  uint64_t state_;
};

double StandardDeviation(const std::vector<double>& values) {
  double mean = 0;
  for (const double value : values) mean += value / static_cast<double>(values.size());
  double variance = 0;
  for (const double value : values) variance += (value - mean) * (value - mean) / static_cast<double>(values.size());
  return std::sqrt(variance);
}

struct Spread {
  int64_t dim;
  double unscaled;
  double scaled;
};

// Of `count` pairs of one query and one key. A row that sees a single key has lse = its score, so the operator's scores
// can be read off: once with scale 1, once with its default.
Result<Spread> MeasureSpread(int64_t dim, int64_t count, Draws& draws) {
  constexpr int64_t kPairsAtOnce = 500;
  std::vector<double> unscaled;
  std::vector<double> scaled;
  std::vector<float> q(static_cast<size_t>(kPairsAtOnce * dim));
  std::vector<float> k(q.size());
  std::vector<float> v(static_cast<size_t>(kPairsAtOnce));
  std::vector<float> out(v.size());
  std::vector<float> lse(v.size());
  for (int64_t begin = 0; begin < count; begin += kPairsAtOnce) {
    const int64_t n = std::min(kPairsAtOnce, count - begin);
    for (float& x : q) x = draws.Next();
    for (float& x : k) x = draws.Next();
    std::vector<SequenceSpec> pairs(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) {
      SequenceSpec& pair = pairs[static_cast<size_t>(i)];
      pair.q_len = 1;
      pair.kv_len = 1;
      pair.batch = i;
    }
    AttentionSpec spec;
    spec.num_q_heads = 1;
    spec.num_kv_heads = 1;
    spec.qk_dim = dim;
    spec.v_dim = 1;
    AttentionArgs args;
    args.q = BatchHeadsTokensDim(static_cast<const float*>(q.data()), n, 1, 1, dim);
    args.k = BatchHeadsTokensDim(static_cast<const float*>(k.data()), n, 1, 1, dim);
    args.v = BatchHeadsTokensDim(static_cast<const float*>(v.data()), n, 1, 1, 1);
    args.out = BatchHeadsTokensDim(out.data(), n, 1, 1, 1);
    args.lse = {lse.data(), 1, 1, 1};
    spec.scale = 1.0f;
    HEADLANE_RETURN_IF_ERROR(Attention(spec, pairs, args, SerialExecutor()));
    unscaled.insert(unscaled.end(), lse.begin(), lse.begin() + n);
    spec.scale.reset();
    HEADLANE_RETURN_IF_ERROR(Attention(spec, pairs, args, SerialExecutor()));
    scaled.insert(scaled.end(), lse.begin(), lse.begin() + n);
  }
  return Spread{dim, StandardDeviation(unscaled), StandardDeviation(scaled)};
}

using Matrix = std::vector<std::vector<double>>;

// softmax(Q K^T / sqrt(d)) V of one head.
Result<Matrix> SmallAttention(const Matrix& q, const Matrix& k, const Matrix& v, Causality causality) {
  const auto flat = [](const Matrix& m) {
    std::vector<float> values;
    for (const auto& row : m) values.insert(values.end(), row.begin(), row.end());
    return values;
  };
  const std::vector<float> flat_q = flat(q), flat_k = flat(k), flat_v = flat(v);
  const auto rows = [](const Matrix& m) { return static_cast<int64_t>(m.size()); };
  const auto columns = [](const Matrix& m) { return static_cast<int64_t>(m[0].size()); };
  std::vector<float> out(static_cast<size_t>(rows(q) * columns(v)));
  AttentionSpec spec;
  spec.num_q_heads = 1;
  spec.num_kv_heads = 1;
  spec.qk_dim = columns(q);
  spec.v_dim = columns(v);
  spec.mask.causality = causality;
  SequenceSpec sequence;
  sequence.q_len = rows(q);
  sequence.kv_len = rows(k);
  AttentionArgs args;
  args.q = TokensHeadsDim(flat_q.data(), rows(q), 1, columns(q));
  args.k = TokensHeadsDim(flat_k.data(), rows(k), 1, columns(k));
  args.v = TokensHeadsDim(flat_v.data(), rows(v), 1, columns(v));
  args.out = TokensHeadsDim(out.data(), rows(q), 1, columns(v));
  HEADLANE_RETURN_IF_ERROR(Attention(spec, std::span<const SequenceSpec>(&sequence, 1), args, SerialExecutor()));
  Matrix result(q.size());
  for (size_t r = 0; r < q.size(); ++r) {
    const auto begin = out.begin() + static_cast<std::ptrdiff_t>(r * v[0].size());
    result[r].assign(begin, begin + static_cast<std::ptrdiff_t>(v[0].size()));
  }
  return result;
}

// A matrix of numbers rounded to three decimals, as numpy prints it: the fewest digits that tell each number, points
// aligned.
std::string FormatMatrix(const Matrix& m) {
  struct Cell {
    std::string whole;     // up to the point
    std::string fraction;  // behind it, without trailing zeros
  };
  std::vector<std::vector<Cell>> cells;
  size_t whole_width = 0;
  size_t fraction_width = 0;
  for (const auto& row : m) {
    cells.emplace_back();
    for (const double value : row) {
      const std::string text = Format("%.3f", value);
      const size_t point = text.find('.');
      Cell cell{text.substr(0, point), text.substr(point + 1)};
      cell.fraction.erase(cell.fraction.find_last_not_of('0') + 1);
      whole_width = std::max(whole_width, cell.whole.size());
      fraction_width = std::max(fraction_width, cell.fraction.size());
      cells.back().push_back(cell);
    }
  }
  std::string out;
  for (size_t r = 0; r < cells.size(); ++r) {
    out += r == 0 ? "[[" : "\n [";
    for (size_t i = 0; i < cells[r].size(); ++i) {
      const Cell& cell = cells[r][i];
      if (i > 0) out += ' ';
      out += std::string(whole_width - cell.whole.size(), ' ') + cell.whole + '.' + cell.fraction +
             std::string(fraction_width - cell.fraction.size(), ' ');
    }
    out += ']';
  }
  return out + "]\n";
}

Status Run(const Options& options) {
  constexpr int64_t kPairs = 10000;
  Draws draws(options.seed);
  std::vector<Spread> spreads;
  for (const int64_t dim : {int64_t{4}, int64_t{1024}}) {
    HEADLANE_ASSIGN_OR_RETURN(const Spread spread, MeasureSpread(dim, kPairs, draws));
    spreads.push_back(spread);
  }
  const Matrix q = {{1, 1}, {0, 2}};
  const Matrix k = {{1, 0}, {0, 1}};
  const Matrix v = {{10, 0}, {0, 10}};
  const Matrix identity = {{1, 0}, {0, 1}};  // as values it lets the weights through
  const Causality causality = options.causal ? Causality::kBottomRight : Causality::kFull;
  HEADLANE_ASSIGN_OR_RETURN(const Matrix out, SmallAttention(q, k, v, causality));
  HEADLANE_ASSIGN_OR_RETURN(const Matrix weights, SmallAttention(q, k, identity, causality));
  // Under the mask the weights are what there is to see.
  const bool show_weights = options.weights || options.causal;
  if (options.json) {
    Json json = {{"pairs", kPairs}, {"seed", options.seed}, {"spread", Json::MakeArray()}};
    for (const Spread& s : spreads)
      json["spread"].Append({{"d", s.dim}, {"unscaled", s.unscaled}, {"scaled", s.scaled}});
    json["causal"] = options.causal;
    json["attention"] = out;
    json["weights"] = weights;
    PrintJson(json);
    return OkStatus();
  }
  for (const Spread& s : spreads) std::printf("%lld %.1f %.1f\n", static_cast<long long>(s.dim), s.unscaled, s.scaled);
  std::fputs(FormatMatrix(out).c_str(), stdout);
  if (show_weights) std::fputs(FormatMatrix(weights).c_str(), stdout);
  return OkStatus();
}

int Main(int argc, char** argv) {
  Options options;
  Arguments arguments(
      "headlane-lesson",
      "Why the scores of attention are scaled. For d = 4 and d = 1024 it draws 10000 pairs of a query and a key with "
      "unit variance and prints d, the standard deviation of their dot products, and that of the dot products divided "
      "by sqrt(d). Then the attention of Q = [[1,1],[0,2]], K = [[1,0],[0,1]], V = [[10,0],[0,10]], rounded to three "
      "decimals. All of it runs through the library's attention operator.");
  arguments.Seed("--seed", options.seed, "Of the draws; another one may move a last digit");
  arguments.Flag("--weights", options.weights, "Print the weights too, behind the result; each row's sum is one");
  arguments.Flag(
      "--causal", options.causal,
      "Mask keys behind the query's own position before the softmax; prints the weights too, where hidden keys have 0");
  arguments.Flag("--json", options.json, "One JSON object, nothing rounded");
  return RunTool(arguments, argc, argv,
                 "  headlane-lesson\n"
                 "  headlane-lesson --causal --weights\n",
                 [&] { return Run(options); });
}

}  // namespace
}  // namespace headlane::tools

int main(int argc, char** argv) {
  return headlane::tools::RunMain("headlane-lesson", argc, argv, &headlane::tools::Main);
}
