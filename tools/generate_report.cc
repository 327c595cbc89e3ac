// What headlane-generate prints besides text, and how its options become a session's.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "headlane/target.h"
#include "tools/common/report.h"
#include "tools/generate.h"

namespace headlane::tools {

Result<std::vector<int32_t>> EncodePrompt(const GenerateOptions& options, const Model& model, std::string_view text) {
  const PromptMode mode = options.raw ? PromptMode::kRaw : options.literal ? PromptMode::kLiteral : PromptMode::kChat;
  const std::string_view system = options.system ? std::string_view(*options.system) : std::string_view();
  return model.Encode(text, mode, options.system ? &system : nullptr);
}

Result<SessionOptions> MakeSessionOptions(const GenerateOptions& options, const Model& model, int64_t prompt_tokens) {
  SessionOptions session;
  session.max_context = prompt_tokens + options.max_tokens;
  session.chunk = options.chunk;
  session.threads = options.threads;
  HEADLANE_RETURN_IF_ERROR(SetCacheOptions(options.cache, session));
  if (session.max_context > model.info().context_length) {
    std::fprintf(stderr, "note: %lld tokens of prompt and text are more than the %lld the model was trained for\n",
                 static_cast<long long>(session.max_context), static_cast<long long>(model.info().context_length));
  }
  return session;
}

Json LogitsJson(std::span<const float> logits) {
  if (logits.empty()) return nullptr;
  std::vector<int32_t> ids(logits.size());
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
  const size_t count = std::min<size_t>(8, ids.size());
  std::partial_sort(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count), ids.end(),
                    [&](int32_t a, int32_t b) {
                      const float x = logits[static_cast<size_t>(a)];
                      const float y = logits[static_cast<size_t>(b)];
                      return x != y ? x > y : a < b;
                    });
  Json best = Json::MakeArray();
  for (size_t i = 0; i < count; ++i) {
    const double logit = static_cast<double>(logits[static_cast<size_t>(ids[i])]);
    best.Append({ids[i], std::round(logit * 1e6) / 1e6});
  }
  return {{"best", best}, {"hash", HashBits(logits)}};
}

Json GenerationJson(const Generation& g) {
  return {{"prompt_ids", g.prompt_ids},         {"generated_ids", g.ids},         {"text", g.text},
          {"stop", g.ended ? "end" : "length"}, {"first_logits", g.first_logits}, {"last_logits", g.last_logits}};
}

Json TimingsJson(const GenerateOptions& options, const Model& model, const RunFigures* figures) {
  Json timings = {{"target", ActiveTarget().name}, {"linear", options.model.linear}};
  if (figures == nullptr) return timings;
  const SessionMemory& memory = figures->memory;
  timings.Merge({{"threads", figures->num_workers},
                 {"linear_implementation", model.linear_implementation()},
                 {"load_seconds", figures->load_seconds},
                 {"time_to_first_token_seconds", figures->first_token_seconds},
                 {"prompt", PhaseJson(figures->prompt_stats)},
                 {"reused_prompt_tokens", figures->reused_tokens},
                 {"decode", PhaseJson(figures->step_stats)},
                 {"step_p50_ms", 1e3 * Quantile(figures->step_seconds, 0.5)},
                 {"step_p99_ms", 1e3 * Quantile(figures->step_seconds, 0.99)},
                 {"kv_bytes", memory.kept_tokens * memory.kv_bytes_per_token},
                 {"kv_bytes_per_token", memory.kv_bytes_per_token},
                 {"kv_cache_bytes", memory.cache_bytes},
                 {"kv_cache", CacheJson(figures->options, memory)},
                 {"scratch_bytes", memory.scratch_bytes},
                 {"weight_bytes", model.weight_bytes()}});
  return timings;
}

void PrintFigures(const Model& model, const RunFigures& figures) {
  const ModelInfo& info = model.info();
  const SessionMemory& memory = figures.memory;
  const PhaseStats phases[] = {figures.prompt_stats, figures.step_stats};
  std::vector<std::vector<std::string>> rows = {{"", "prompt", "decode"}};
  for (auto& row : PhaseRows(phases)) rows.push_back(std::move(row));
  std::fflush(stdout);
  std::fprintf(stderr, "\n");
  PrintTable(stderr, rows, true);
  std::fprintf(stderr, "\n");
  const auto bytes = [](int64_t number) { return FormatBytes(static_cast<double>(number)); };
  const std::string copies =
      model.weight_copy_bytes() > 0 ? " (" + bytes(model.weight_copy_bytes()) + " of it copies for prompts)" : "";
  rows = {
      {"model", Format("%s, %.1f M parameters, %s", info.name.c_str(), 1e-6 * static_cast<double>(info.num_parameters),
                       info.weight_type.c_str())},
      {"weights in memory",
       bytes(model.weight_bytes()) + copies + ", loaded in " + Format("%.2f s", figures.load_seconds)},
      {"KV cache",
       Format("%s, %lld bytes per token: %s for %lld tokens (%s in pages, %s allocated)",
              CacheTypes{figures.options.k_dtype, figures.options.v_dtype, figures.options.rotates()}.Name().c_str(),
              static_cast<long long>(memory.kv_bytes_per_token),
              bytes(memory.kept_tokens * memory.kv_bytes_per_token).c_str(), static_cast<long long>(memory.kept_tokens),
              bytes(memory.cache_used_bytes).c_str(), bytes(memory.cache_bytes).c_str())}};
  if (figures.reused_tokens > 0) {
    rows.push_back({"prompt tokens reused", Format("%lld", static_cast<long long>(figures.reused_tokens))});
  }
  rows.push_back({"scratch memory", bytes(memory.scratch_bytes)});
  rows.push_back({"time to first token", Format("%.1f ms", 1e3 * figures.first_token_seconds)});
  rows.push_back({"decode step", Format("p50 %.2f ms, p99 %.2f ms", 1e3 * Quantile(figures.step_seconds, 0.5),
                                        1e3 * Quantile(figures.step_seconds, 0.99))});
  rows.push_back({"threads", Format("%d", figures.num_workers)});
  rows.push_back({"SIMD target", ActiveTarget().name});
  rows.push_back({"linear layers", model.linear_implementation()});
  PrintTable(stderr, rows, false);
}

}  // namespace headlane::tools
