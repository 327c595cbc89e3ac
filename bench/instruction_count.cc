// headlane_instruction_count: calls the hot kernels on fixed inputs, between marks that a counter of instructions can
// see. It stands for speed on targets that cannot be timed.
//
// Separate from the benchmarks because it must run where they cannot: under callgrind, in an emulator of another
// processor, statically linked in a bare kernel. Called by tools/count_instructions.sh, which takes the difference
// between so many rounds and twice as many, so that starting up costs nothing.
//
// A mark is a call of HeadlaneCountMark(): a function of its own for callgrind (--dump-before), a system call that does
// nothing for the plugin of qemu. With --ticks the counter is the processor's time stamp instead, which counts
// instructions in Bochs.
#include <sys/prctl.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/tile_layout.h"
#include "bench/counted_case.h"
#include "bench/counted_weights.h"
#include "headlane/target.h"
#include "kernels/kernel_api.h"
#include "kernels/targets_for_test.h"

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

extern "C" {
// No static: callgrind knows it by its name.
[[gnu::noinline]] void HeadlaneCountMark();
void HeadlaneCountMark() {
  // No such operation exists, so it does nothing. tools/emulation/count_instructions_plugin.c knows the number.
  constexpr int kMark = 0x484C0001;
  prctl(kMark, 0, 0, 0, 0);
}
}

namespace headlane::bench {
namespace {

using internal::kBlockKeys;
using internal::KernelTable;
using internal::kTileKeys;
using internal::kTilesPerBlock;
using internal::KvKernels;

const char kUsage[] =
    R"(usage: headlane_instruction_count [--target NAME] [--add NAME] [--kernel PREFIX] [--rounds N] [--ticks | --list]
Calls each hot kernel N times and 2 N times between marks for a counter of instructions, and prints
  target NAME, compiler NAME VERSION, highway VERSION      one line each
  case NAME UNITS                                          in the order they are called; UNITS of one call
  --target NAME    one of `headlane-info`; several, comma-separated, one after the other; "all": those the machine has
  --add NAME       a target that counts as supported although the processor does not list it: for emulators that run more
  --kernel PREFIX  only cases whose name begins so
  --rounds N       1 .. 1000000, default 2
  --ticks          read the time stamp counter oneself: case NAME UNITS TICKS_OF_N TICKS_OF_2N, the least of some samples
  --list           names and units, calling nothing
)";

constexpr int64_t kDim = 128;
constexpr int64_t kMaxRows = 32;
constexpr DType kPlainTypes[] = {DType::kF32, DType::kF16, DType::kBF16};
constexpr DType kQuantizedTypes[] = {DType::kI8, DType::kF8E4M3, DType::kI4};

struct Options {
  std::string targets;
  std::string added;
  std::string kernel;
  int64_t rounds = 2;
  bool ticks = false;
  bool list = false;
};

// The operands of a block of 128 keys of 128 features, and all cases on them.
class Cases {
 public:
  explicit Cases(const KernelTable& table) : table_(table), linear_(table) {
    q_.Fill(1);
    rows_.Fill(2);
    scores_.Fill(3);
    weights_.Fill(4);
    for (int64_t r = 0; r < kMaxRows; ++r) {
      begin_[r] = 0;
      end_[r] = kBlockKeys;
      c_[r] = 0.5f;
      for (int64_t t = 0; t < kTilesPerBlock; ++t) live_[r * kTilesPerBlock + t] = 0xFFFF;
    }
    for (const DType dtype : kPlainTypes) MakeTiles(dtype);
    for (const DType dtype : kQuantizedTypes) MakeTiles(dtype);
    AddAll();
  }
  Cases(const Cases&) = delete;
  Cases& operator=(const Cases&) = delete;

  const std::vector<Case>& all() const { return cases_; }

 private:
  void Add(const std::string& name, int64_t units, std::function<void()> call) {
    cases_.push_back({name, static_cast<double>(units), std::move(call)});
  }

  internal::PackTileArgs Pack(void* tile, int64_t num_keys) {
    internal::PackTileArgs args{};
    args.rows = rows_.data();
    args.row_stride = kDim;
    args.dim_stride = 1;
    args.dim = kDim;
    args.num_keys = num_keys;
    args.tile = tile;
    args.non_finite = &non_finite_;
    return args;
  }

  void MakeTiles(DType dtype) {
    const KvKernels& kv = table_.kv[static_cast<int>(dtype)];
    for (int64_t t = 0; t < kTilesPerBlock; ++t) {
      internal::PackTileArgs args = Pack(nullptr, kTileKeys);
      args.rows = rows_.data() + t * kTileKeys * kDim;
      void*& k = k_typed_[static_cast<int>(dtype)][t];
      void*& v = v_typed_[static_cast<int>(dtype)][t];
      k = typed_.data() + ((static_cast<int>(dtype) * 2 + 0) * kTilesPerBlock + t) * kTileKeys * kDim;
      v = typed_.data() + ((static_cast<int>(dtype) * 2 + 1) * kTilesPerBlock + t) * kTileKeys * kDim;
      args.tile = k;
      kv.pack_k(args);
      args.tile = v;
      kv.pack_v(args);
    }
  }

  void AddAll() {
    for (const DType dtype : kPlainTypes) AddTyped(dtype);
    for (const DType dtype : kQuantizedTypes) AddTyped(dtype);
    for (const int64_t rows : {int64_t{1}, kMaxRows}) {
      Add("softmax/rows:" + std::to_string(rows), rows * kBlockKeys, [this, rows] { Softmax(rows); });
    }
    for (const int64_t rows : {int64_t{1}, int64_t{4}, kMaxRows}) {
      Add("linear/f32/rows:" + std::to_string(rows), rows * kBlockKeys, [this, rows] { Linear(rows); });
    }
    linear_.AddTo(&cases_);
  }

  void AddTyped(DType dtype) {
    const KvKernels& kv = table_.kv[static_cast<int>(dtype)];
    const std::string type = DTypeName(dtype);
    const bool quantized = IsQuantized(dtype);
    for (const int64_t rows : {int64_t{1}, int64_t{4}, kMaxRows}) {
      // So many are for f32's kernels, after widening.
      if (rows == kMaxRows && quantized) continue;
      const std::string suffix = "/" + type + "/rows:" + std::to_string(rows);
      // Few rows as in decoding, whose tiles come from memory; many as in prefill, whose tiles are in a cache.
      const bool stream = rows < kMaxRows;
      Add("qk" + suffix, rows * kBlockKeys, [=, this, &kv] { Qk(kv, dtype, rows, stream); });
      Add("pv" + suffix, rows * kBlockKeys, [=, this, &kv] { Pv(kv, dtype, rows, stream); });
      if (rows == kMaxRows || quantized) continue;
      Add("qk_rows" + suffix, rows * kBlockKeys, [=, this] { QkRows(dtype, rows); });
      Add("pv_rows" + suffix, rows * kBlockKeys, [=, this] { PvRows(dtype, rows); });
    }
    for (const int64_t keys : {int64_t{1}, kTileKeys}) {
      const std::string suffix = "/" + type + "/keys:" + std::to_string(keys);
      Add("pack_k" + suffix, keys, [=, this, &kv] { kv.pack_k(Pack(out_.data(), keys)); });
      Add("pack_v" + suffix, keys, [=, this, &kv] { kv.pack_v(Pack(out_.data(), keys)); });
    }
    if (kv.widen_k == nullptr) return;
    Add("widen_k/" + type, kTileKeys, [=, this, &kv] { kv.widen_k({K(dtype)[0], kDim, out_.data()}); });
    Add("widen_v/" + type, kTileKeys, [=, this, &kv] { kv.widen_v({V(dtype)[0], kDim, out_.data()}); });
  }

  const void* const* K(DType dtype) const { return k_typed_[static_cast<int>(dtype)]; }
  const void* const* V(DType dtype) const { return v_typed_[static_cast<int>(dtype)]; }

  void Qk(const KvKernels& kv, DType dtype, int64_t rows, bool stream) {
    internal::QkArgs args{};
    args.q = q_.data();
    args.q_pitch = kDim;
    args.rows = rows;
    args.qk_dim = kDim;
    args.k_tiles = K(dtype);
    args.num_tiles = kTilesPerBlock;
    args.s = out_.data();
    args.stream = stream;
    kv.qk(args);
  }

  void Pv(const KvKernels& kv, DType dtype, int64_t rows, bool stream) {
    internal::PvArgs args{};
    args.w = weights_.data();
    args.rows = rows;
    args.v_tiles = V(dtype);
    args.num_tiles = kTilesPerBlock;
    args.num_stripes = kDim / kTileKeys;
    args.c = c_;
    args.o = out_.data();
    args.o_pitch = kDim;
    args.stream = stream;
    kv.pv(args);
  }

  void QkRows(DType dtype, int64_t rows) {
    internal::QkRowsArgs args{};
    args.q = q_.data();
    args.q_pitch = kDim;
    args.rows = rows;
    args.qk_dim = kDim;
    args.k = V(dtype)[0];  // any finite numbers of the type
    args.k_dtype = dtype;
    args.row_stride = kDim;
    args.num_heads = 1;
    args.head_stride = kDim;
    args.num_keys = kBlockKeys;
    args.scratch = scratch_.data();
    args.s = out_.data();
    table_.qk_rows(args);
  }

  void PvRows(DType dtype, int64_t rows) {
    internal::PvRowsArgs args{};
    args.w = weights_.data();
    args.rows = rows;
    args.v = V(dtype)[0];
    args.v_dtype = dtype;
    args.row_stride = kDim;
    args.num_heads = 1;
    args.head_stride = kDim;
    args.num_keys = kBlockKeys;
    args.v_dim = kDim;
    args.c = c_;
    args.o = out_.data();
    args.o_pitch = kDim;
    args.live = live_;
    table_.pv_rows(args);
  }

  void Softmax(int64_t rows) {
    // Every round steps from the same state: scores, maximum and sums are put back first, which is part of the count.
    std::memcpy(out_.data(), scores_.data(), static_cast<size_t>(rows * kBlockKeys) * sizeof(float));
    for (int64_t r = 0; r < rows; ++r) m_[r] = -1.0f;
    internal::SoftmaxArgs args{};
    args.s = out_.data();
    args.rows = rows;
    args.num_tiles = kTilesPerBlock;
    args.begin = begin_;
    args.end = end_;
    args.m = m_;
    args.l = l_.data();
    args.c = c_out_;
    table_.softmax.softmax(args);
  }

  void Linear(int64_t rows) {
    internal::LinearArgs args{};
    args.x = q_.data();
    args.x_pitch = kDim;
    args.rows = rows;
    args.k_len = kDim;
    args.w = static_cast<const float*>(K(DType::kF32)[0]);
    args.w_tile_stride = kTileKeys * kDim;
    args.num_tiles = kTilesPerBlock;
    args.y = out_.data();
    args.y_pitch = kBlockKeys;
    args.num_features = kBlockKeys;
    table_.linear_f32(args);
  }

  const KernelTable& table_;
  CountedWeights linear_;
  Floats q_{kMaxRows * kDim}, rows_{kBlockKeys * kDim}, scores_{kMaxRows * kBlockKeys}, weights_{kMaxRows * kBlockKeys};
  Floats out_{kMaxRows * kBlockKeys}, l_{kMaxRows * kTileKeys}, scratch_{2 * kTileKeys * kDim};
  Floats typed_{kNumDTypes * 2 * kTilesPerBlock * kTileKeys * kDim};
  void* k_typed_[kNumDTypes][kTilesPerBlock];
  void* v_typed_[kNumDTypes][kTilesPerBlock];
  int32_t begin_[kMaxRows], end_[kMaxRows];
  float c_[kMaxRows], c_out_[kMaxRows], m_[kMaxRows];
  uint16_t live_[kMaxRows * kTilesPerBlock];
  bool non_finite_ = false;
  std::vector<Case> cases_;
};

void Repeat(const Case& entry, int64_t rounds) {
  for (int64_t i = 0; i < rounds; ++i) entry.call();
}

#if defined(__x86_64__)
constexpr bool kHaveTicks = true;
uint64_t Ticks() { return __rdtsc(); }
#else
constexpr bool kHaveTicks = false;
uint64_t Ticks() { return 0; }
#endif

// Of one call. Interrupts, one in 100000 instructions there, lengthen some samples and never shorten one. Calls that
// are nearly as long would meet them in every sample or in none, as the period falls: what is waited in between
// differs, in all by more than that.
uint64_t LeastTicks(const Case& entry) {
  constexpr int kSamples = 40;
  uint64_t with = UINT64_MAX, without = UINT64_MAX;
  for (int i = 0; i < kSamples; ++i) {
    [[maybe_unused]] volatile int waited = 0;
    for (int wait = 0; wait < 61 * i; ++wait) waited = wait;
    const uint64_t begin = Ticks();
    Repeat(entry, 0);
    const uint64_t middle = Ticks();
    Repeat(entry, 1);
    const uint64_t end = Ticks();
    without = std::min(without, middle - begin);
    with = std::min(with, end - middle);
  }
  return with > without ? with - without : 0;
}

void PrintCompiler() {
#if defined(__clang__)
  std::printf("compiler clang++ %d.%d.%d\n", __clang_major__, __clang_minor__, __clang_patchlevel__);
#else
  std::printf("compiler g++ %d.%d.%d\n", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#endif
  std::printf("highway %s\n", HEADLANE_HIGHWAY_VERSION);
}

void CountTarget(const Options& options) {
  std::printf("target %s\n", ActiveTarget().name);
  Cases cases(internal::ActiveKernels());
  for (const Case& entry : cases.all()) {
    if (entry.name.rfind(options.kernel, 0) != 0) continue;
    std::printf("case %s %.0f", entry.name.c_str(), entry.units);
    if (!options.list) {
      entry.call();
      if (options.ticks) {
        const uint64_t once = LeastTicks(entry) * static_cast<uint64_t>(options.rounds);
        std::printf(" %llu %llu", static_cast<unsigned long long>(once), static_cast<unsigned long long>(2 * once));
      } else {
        HeadlaneCountMark();
        Repeat(entry, options.rounds);
        HeadlaneCountMark();
        Repeat(entry, 2 * options.rounds);
        HeadlaneCountMark();
      }
    }
    std::printf("\n");
  }
  std::fflush(stdout);
}

std::vector<std::string> TargetNames(const std::string& list) {
  std::vector<std::string> names;
  if (list == "all") {
    TargetInfo infos[32];
    const int num = std::min(ListTargets(infos, 32), 32);
    for (int i = 0; i < num; ++i) {
      if (infos[i].supported) names.emplace_back(infos[i].name);
    }
    return names;
  }
  std::string_view rest = list;
  for (;;) {
    const size_t comma = rest.find(',');
    names.emplace_back(rest.substr(0, comma));
    if (comma == std::string_view::npos) return names;
    rest.remove_prefix(comma + 1);
  }
}

bool Parse(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : nullptr;
    if (argument == "--ticks") {
      options->ticks = true;
    } else if (argument == "--list") {
      options->list = true;
    } else if (value == nullptr) {
      return false;
    } else if (argument == "--target") {
      options->targets = argv[++i];
    } else if (argument == "--add") {
      options->added = argv[++i];
    } else if (argument == "--kernel") {
      options->kernel = argv[++i];
    } else if (argument == "--rounds") {
      const char* const end = value + std::strlen(value);
      const auto [stop, error] = std::from_chars(value, end, options->rounds);
      if (error != std::errc() || stop != end || options->rounds < 1 || options->rounds > 1000000) return false;
      ++i;
    } else {
      return false;
    }
  }
  return !options->ticks || kHaveTicks;
}

int Main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--help") == 0) {
    std::fputs(kUsage, stdout);
    return 0;
  }
  Options options;
  if (!Parse(argc, argv, &options)) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  if (!options.added.empty()) {
    if (const Status status = internal::AddTargetForTest(options.added.c_str()); !status.ok()) {
      std::fprintf(stderr, "headlane_instruction_count: %s\n", status.c_str());
      return 2;
    }
  }
  PrintCompiler();
  for (const std::string& name : TargetNames(options.targets)) {
    if (const Status status = ForceTarget(name.c_str()); !status.ok()) {
      std::fprintf(stderr, "headlane_instruction_count: %s\n", status.c_str());
      return 2;
    }
    CountTarget(options);
  }
  return 0;
}

}  // namespace
}  // namespace headlane::bench

int main(int argc, char** argv) { return headlane::bench::Main(argc, argv); }
