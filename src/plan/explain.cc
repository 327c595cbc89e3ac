// A plan in words, for the person who asks why a step takes as long as it does.
#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <string>
#include <vector>

#include "base/blocking.h"
#include "plan/summary.h"

namespace headlane::internal {
namespace {

using LL = long long;

__attribute__((format(printf, 2, 3))) void Add(std::string* text, const char* format, ...) {
  char line[400];
  std::va_list args;
  va_start(args, format);
  std::vsnprintf(line, sizeof(line), format, args);
  va_end(args);
  *text += line;
}

void AddBytes(std::string* text, double bytes) {
  const char* const units[] = {"kB", "MB", "GB", "TB"};
  if (bytes >= 1000) {
    int unit = -1;
    double scaled = bytes;
    while (scaled >= 1000 && unit < 3) {
      scaled /= 1000;
      ++unit;
    }
    Add(text, "%.3g %s (%.0f bytes)", scaled, units[unit], bytes);
  } else {
    Add(text, "%.0f bytes", bytes);
  }
}

void AddRange(std::string* text, int64_t least, int64_t most) {
  if (least == most) {
    Add(text, "%lld", static_cast<LL>(least));
  } else {
    Add(text, "%lld to %lld", static_cast<LL>(least), static_cast<LL>(most));
  }
}

void AddProblem(std::string* text, const PlanImpl& plan) {
  const Problem& p = plan.problem();
  Add(text, "attention plan, numerics version %d\n", kNumericsVersion);
  Add(text,
      "problem: %lld query heads on %lld KV heads (groups of %lld), keys of %lld and values of %lld features, scale %g",
      static_cast<LL>(p.num_q_heads), static_cast<LL>(p.num_kv_heads), static_cast<LL>(p.group),
      static_cast<LL>(p.qk_dim), static_cast<LL>(p.v_dim), static_cast<double>(p.scale));
  if (p.softcap > 0) Add(text, ", softcap %g", static_cast<double>(p.softcap));
  const char* const causality[] = {"none", "causal, the last row at the last key", "causal, the first row at key 0"};
  Add(text, "\nmask: %s", causality[static_cast<int>(p.mask.causality)]);
  if (p.mask.window >= 0) Add(text, "; window of %lld", static_cast<LL>(p.mask.window));
  if (p.mask.window_right >= 0) Add(text, "; %lld to the right", static_cast<LL>(p.mask.window_right));
  if (p.mask.chunk > 0) Add(text, "; chunks of %lld", static_cast<LL>(p.mask.chunk));
  if (p.mask.num_always_visible > 0) {
    Add(text, "; the first %lld always visible", static_cast<LL>(p.mask.num_always_visible));
  }
  if (p.keys_in != KeysIn::kTensors) {
    const char* const stores[] = {"", "a cache with pages", "the caller's pages of tiles",
                                  "the caller's pages of rows"};
    Add(text, "\nkeys and values: from %s of %lld tokens, keys in %s", stores[static_cast<int>(p.keys_in)],
        static_cast<LL>(plan.page_tokens()), DTypeName(p.k_dtype));
    if (!p.values_in_keys) Add(text, ", values in %s", DTypeName(p.v_dtype));
    if (p.rotate) Add(text, ", both rotated");
    if (p.keys_in == KeysIn::kRowPages) Add(text, "; packed on the way");
  } else {
    Add(text, "\nkeys and values: plain tensors, packed on the way; bytes as of f32");
  }
  if (p.values_in_keys) Add(text, "; values are the first %lld features of the keys", static_cast<LL>(p.v_dim));
  *text += "\n";
}

void AddSequences(std::string* text, const PlanImpl& plan, const PlanSummary& summary) {
  int64_t q_tokens = 0, longest = 0, without = 0, trees = 0, prefixes = 0, placed = 0;
  for (const SequenceSpec& s : plan.sequences()) {
    q_tokens += s.q_len;
    longest = std::max(longest, s.kv_len);
    without += s.q_len == 0 ? 1 : 0;
    trees += s.tree.bits != nullptr ? 1 : 0;
    prefixes += s.prefix_len > 0 ? 1 : 0;
    placed += s.q_pos ? 1 : 0;
  }
  Add(text, "sequences: %zu with %lld query tokens, %lld rows; longest of %lld keys", plan.sequences().size(),
      static_cast<LL>(q_tokens), static_cast<LL>(summary.num_rows), static_cast<LL>(longest));
  if (without > 0) Add(text, "; %lld without queries", static_cast<LL>(without));
  if (trees > 0) Add(text, "; %lld with a tree", static_cast<LL>(trees));
  if (prefixes > 0) Add(text, "; %lld with a prefix", static_cast<LL>(prefixes));
  if (placed > 0) Add(text, "; %lld with positions of their own", static_cast<LL>(placed));
  *text += "\n";
}

// Consecutive sequences of the same choice.
struct Choice {
  enum Kind { kNothing, kDecode, kTile } kind;
  int64_t begin, end;
  int64_t least_rows, most_rows;  // of a KV head
};

std::vector<Choice> Choices(const PlanImpl& plan) {
  std::vector<Choice> choices;
  int64_t index = 0;
  for (const SequenceSpec& sequence : plan.sequences()) {
    const int64_t rows = plan.problem().RowsPerKvHead(sequence.q_len);
    const Choice::Kind kind = rows == 0 ? Choice::kNothing : rows <= kDecodeRows ? Choice::kDecode : Choice::kTile;
    if (choices.empty() || choices.back().kind != kind) choices.push_back({kind, index, index, rows, rows});
    Choice& last = choices.back();
    last.end = ++index;
    last.least_rows = std::min(last.least_rows, rows);
    last.most_rows = std::max(last.most_rows, rows);
  }
  return choices;
}

void AddChoices(std::string* text, const PlanImpl& plan) {
  constexpr size_t kMost = 16;
  const std::vector<Choice> choices = Choices(plan);
  for (size_t i = 0; i < std::min(choices.size(), kMost); ++i) {
    const Choice& c = choices[i];
    Add(text, "  sequences[%lld", static_cast<LL>(c.begin));
    if (c.end - c.begin > 1) Add(text, " .. %lld", static_cast<LL>(c.end - 1));
    Add(text, "]: ");
    AddRange(text, c.least_rows, c.most_rows);
    Add(text, " rows per KV head: ");
    switch (c.kind) {
      case Choice::kNothing:
        Add(text, "no kernel, there is nothing to compute\n");
        break;
      case Choice::kDecode:
        Add(text,
            "decode, all rows share one pass over the keys; not tile, whose sub-blocks of %lld rows pay off from %lld "
            "rows on\n",
            static_cast<LL>(kSubRows), static_cast<LL>(kDecodeRows + 1));
        break;
      case Choice::kTile:
        Add(text,
            "tile, sub-blocks of %lld rows pass over keys that stay in L2; not decode, which would read the keys for "
            "every %lld rows again\n",
            static_cast<LL>(kSubRows), static_cast<LL>(kDecodeRows));
        break;
    }
  }
  if (choices.size() > kMost) Add(text, "  and %zu more groups of sequences\n", choices.size() - kMost);
}

// For the most rows of a kernel call of each kind.
void AddRegisterBlocks(std::string* text, const PlanImpl& plan) {
  int64_t most_decode = 0, most_tile = 0;
  for (const RowBlock& block : plan.work().blocks) {
    int64_t& most = block.decode() ? most_decode : most_tile;
    most = std::max<int64_t>(most, block.sub_rows);
  }
  const KernelTable& kernels = plan.kernels();
  const Problem& problem = plan.problem();
  for (const bool is_decode : {true, false}) {
    const int64_t rows = is_decode ? most_decode : most_tile;
    if (rows == 0) continue;
    // Quantised keys have kernels of their own for few rows; for more they are widened.
    const auto own = kernels.kv[static_cast<int>(problem.k_dtype)].register_block;
    const bool is_own = own != nullptr && !problem.values_in_keys && is_decode && rows <= kMaxQuantizedRows;
    const RegisterBlock block = is_own ? own(rows) : kernels.register_block(rows);
    Add(text,
        "  %s: up to %lld rows a call, register blocks of %lld rows x %lld vectors of %lld lanes: %lld of %lld "
        "registers\n",
        is_decode ? "decode" : "tile", static_cast<LL>(rows), static_cast<LL>(block.rows), static_cast<LL>(block.cols),
        static_cast<LL>(block.lanes), static_cast<LL>(block.used_registers), static_cast<LL>(block.num_registers));
  }
}

void AddWork(std::string* text, const PlanImpl& plan, const PlanSummary& summary) {
  const Work& work = plan.work();
  int64_t num_cut = 0, num_states = 0, num_splits = 0, least_rows = 0, most_rows = 0, most_heads = 1;
  for (const RowBlock& block : work.blocks) {
    num_cut += block.cut() ? 1 : 0;
    num_states += block.cut() ? block.NumStates() : 0;
    num_splits += block.num_splits;
    least_rows = least_rows == 0 ? block.num_rows : std::min<int64_t>(least_rows, block.num_rows);
    most_rows = std::max<int64_t>(most_rows, block.num_rows);
    most_heads = std::max<int64_t>(most_heads, block.num_heads);
  }
  double cost = 0;
  for (const WorkItem& item : work.items) cost += item.cost;
  Add(text, "row blocks: %zu of ", work.blocks.size());
  AddRange(text, least_rows, most_rows);
  Add(text, " rows");
  if (most_heads > 1) Add(text, " (up to %lld KV heads together)", static_cast<LL>(most_heads));
  Add(text, ", %lld at most; %lld are cut along the keys, into %lld items that leave %lld states\n",
      static_cast<LL>(std::max(plan.limits().tile_rows, kDecodeRows)), static_cast<LL>(num_cut),
      static_cast<LL>(work.num_items_of_cut_blocks), static_cast<LL>(num_states));
  const double tile_bytes = static_cast<double>(plan.tile_bytes());
  Add(text, "tiles: %.0f of %lld keys; blocks of %lld keys; %lld splits of %lld\n",
      tile_bytes == 0 ? 0 : summary.touched_kv_bytes / tile_bytes, static_cast<LL>(kTileKeys),
      static_cast<LL>(kBlockKeys), static_cast<LL>(num_splits), static_cast<LL>(kSplitKeys));
  Add(text, "items: %lld (%lld decode, %lld tile) for %d workers", static_cast<LL>(summary.num_items),
      static_cast<LL>(summary.num_decode_items), static_cast<LL>(summary.num_tile_items), plan.limits().num_workers);
  if (cost > 0) Add(text, "; the longest is %.2g %% of the work", 100 * work.items.front().cost / cost);
  *text += "\n";
}

void AddWorkspace(std::string* text, const PlanImpl& plan) {
  std::vector<WorkspacePart> parts, slot_parts;
  DescribeWorkspace(plan.problem(), plan.limits(), plan.room(), &parts, &slot_parts);
  Add(text, "workspace: ");
  AddBytes(text, static_cast<double>(plan.layout().bytes));
  *text += "\n";
  for (const WorkspacePart& part : parts) Add(text, "  %s %lld\n", part.name, static_cast<LL>(part.bytes));
  if (slot_parts.empty()) return;
  Add(text, "  each of %lld slots %lld:", static_cast<LL>(plan.layout().num_slots),
      static_cast<LL>(plan.layout().slot.bytes));
  const char* separator = " ";
  for (const WorkspacePart& part : slot_parts) {
    Add(text, "%s%s %lld", separator, part.name, static_cast<LL>(part.bytes));
    separator = ", ";
  }
  *text += "\n";
}

void AddRoofline(std::string* text, const PlanSummary& summary, const MachinePeaks& peaks) {
  Add(text, "bytes of keys and values: ");
  AddBytes(text, summary.kv_bytes);
  Add(text, " seen, ");
  AddBytes(text, summary.touched_kv_bytes);
  Add(text, " touched\nFLOPs: %.0f useful, %.0f done", summary.flops, summary.touched_flops);
  if (summary.touched_flops > 0) Add(text, " (%.3g %% useful)", 100 * summary.flops / summary.touched_flops);
  *text += "\n";
  if (summary.kv_bytes > 0) {
    Add(text, "arithmetic intensity: %.3g FLOPs per byte\n", summary.flops / summary.kv_bytes);
  }
  if (peaks.gflop_per_s <= 0 || peaks.gb_per_s <= 0) {
    Add(text, "roofline: needs the machine's GFLOP/s and GB/s\n");
    return;
  }
  const double memory = summary.kv_bytes / peaks.gb_per_s * 1e-3, arithmetic = summary.flops / peaks.gflop_per_s * 1e-3;
  Add(text,
      "roofline: %.4g us to read at %.4g GB/s, %.4g us to compute at %.4g GFLOP/s: bound by %s, %.4g us at best\n",
      memory, peaks.gb_per_s, arithmetic, peaks.gflop_per_s, memory >= arithmetic ? "memory" : "arithmetic",
      std::max(memory, arithmetic));
}

}  // namespace

std::string Explain(const PlanImpl& plan, const MachinePeaks& peaks) {
  const PlanSummary summary = Summarize(plan);
  std::string text;
  AddProblem(&text, plan);
  AddSequences(&text, plan, summary);
  Add(&text, "kernels: %s on %s\n", summary.kernel, summary.target);
  AddRegisterBlocks(&text, plan);
  AddChoices(&text, plan);
  AddWork(&text, plan, summary);
  AddRoofline(&text, summary, peaks);
  AddWorkspace(&text, plan);
  return text;
}

}  // namespace headlane::internal
