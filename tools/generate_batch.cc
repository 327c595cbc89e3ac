// headlane-generate --prompts-file: several prompts as one batch; what they begin with alike is computed once.
#include <algorithm>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "tools/common/report.h"
#include "tools/common/tool.h"
#include "tools/generate.h"

namespace headlane::tools {
namespace {

// Lines without their ends; the last one may have none.
Result<std::vector<std::string>> ReadPrompts(const std::string& path) {
  HEADLANE_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
  std::vector<std::string> prompts;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.empty()) {
      return MakeStatus(StatusCode::kInvalidArgument, "line %zu of '%.100s' is empty: a prompt is one line",
                        prompts.size() + 1, path.c_str());
    }
    prompts.push_back(std::move(line));
    begin = end + 1;
  }
  if (prompts.empty()) {
    return MakeStatus(StatusCode::kInvalidArgument, "'%.100s' has no prompts", path.c_str());
  }
  return prompts;
}

// Tokens of the pages that a batch can need: those that all prompts fill together, and what each needs behind them.
int64_t CacheTokens(const std::vector<Generation>& generations, int64_t max_tokens, int64_t page) {
  const std::vector<int32_t>& first = generations.front().prompt_ids;
  size_t common = first.size();
  for (const Generation& g : generations) {
    const size_t most = std::min(common, g.prompt_ids.size());
    common = static_cast<size_t>(
        std::mismatch(first.begin(), first.begin() + static_cast<std::ptrdiff_t>(most), g.prompt_ids.begin()).first -
        first.begin());
  }
  const int64_t shared_pages = static_cast<int64_t>(common) / page;
  int64_t pages = shared_pages;
  for (const Generation& g : generations) {
    pages += (static_cast<int64_t>(g.prompt_ids.size()) + max_tokens + page - 1) / page - shared_pages;
  }
  return pages * page;
}

// A prompt that is being continued.
struct Running {
  TokenSampler sampler;
  TextStream stream;
};

Status Decode(const GenerateOptions& options, const Model& model, BatchSession& session,
              std::vector<Generation>& generations, RunFigures& figures) {
  std::vector<Running> running;
  std::vector<std::span<const int32_t>> prompts;
  for (const Generation& g : generations) {
    // Each as if it were alone: its own draws from the same seed.
    HEADLANE_ASSIGN_OR_RETURN(TokenSampler sampler, TokenSampler::Create(model.info().vocab_size, options.sampling));
    HEADLANE_ASSIGN_OR_RETURN(TextStream stream, TextStream::Create(model, TextStream::Options()));
    running.push_back({std::move(sampler), std::move(stream)});
    prompts.emplace_back(g.prompt_ids);
    figures.reused_tokens += static_cast<int64_t>(g.prompt_ids.size());
  }
  const double start = Now();
  {
    ProgressLine progress("reading the prompts", "tokens");
    HEADLANE_RETURN_IF_ERROR(session.Prefill(prompts, progress.Callback()));
  }
  figures.reused_tokens -= session.prompt_stats().tokens;
  for (size_t i = 0; i < generations.size(); ++i) {
    generations[i].first_logits = LogitsJson(session.logits(static_cast<int64_t>(i)));
  }
  ProgressLine progress("decoding", "steps");
  std::vector<BatchToken> tokens;
  for (int64_t step = 0; step < options.max_tokens; ++step) {
    tokens.clear();
    for (size_t i = 0; i < generations.size(); ++i) {
      Generation& g = generations[i];
      if (g.ended) continue;
      const auto sequence = static_cast<int64_t>(i);
      HEADLANE_ASSIGN_OR_RETURN(const int32_t id, running[i].sampler.Next(session.logits(sequence)));
      g.ids.push_back(id);
      g.ended = model.IsStop(id);
      if (g.ended) continue;
      HEADLANE_ASSIGN_OR_RETURN(const std::string_view piece, running[i].stream.Push(id));
      g.text += piece;
      tokens.push_back({sequence, id});
    }
    if (step == 0) figures.first_token_seconds = Now() - start;
    // The last tokens are not fed back: nobody asks for what follows them.
    if (tokens.empty() || step + 1 == options.max_tokens) break;
    const double step_start = Now();
    HEADLANE_RETURN_IF_ERROR(session.Step(tokens));
    figures.step_seconds.push_back(Now() - step_start);
    progress.Callback()(step + 1, options.max_tokens);
  }
  for (size_t i = 0; i < generations.size(); ++i) {
    generations[i].text += running[i].stream.Finish();
    generations[i].last_logits = LogitsJson(session.logits(static_cast<int64_t>(i)));
  }
  std::sort(figures.step_seconds.begin(), figures.step_seconds.end());
  return OkStatus();
}

}  // namespace

Status GenerateBatch(const GenerateOptions& options, Model& model) {
  HEADLANE_ASSIGN_OR_RETURN(const std::vector<std::string> texts, ReadPrompts(options.prompts_file));
  std::vector<Generation> generations(texts.size());
  int64_t longest = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    HEADLANE_ASSIGN_OR_RETURN(generations[i].prompt_ids, EncodePrompt(options, model, texts[i]));
    longest = std::max(longest, static_cast<int64_t>(generations[i].prompt_ids.size()));
  }
  RunFigures figures;
  HEADLANE_ASSIGN_OR_RETURN(figures.options, MakeSessionOptions(options, model, longest));
  const double start = Now();
  HEADLANE_RETURN_IF_ERROR(LoadModel(options.model, options.threads, model));
  figures.load_seconds = Now() - start;
  // With a window each sequence needs its ring; without one, no more than all will have.
  const int64_t cache_tokens =
      options.cache.window > 0 ? 0 : CacheTokens(generations, options.max_tokens, options.cache.page);
  HEADLANE_ASSIGN_OR_RETURN(
      BatchSession session,
      BatchSession::Create(model, figures.options, static_cast<int64_t>(texts.size()), cache_tokens));
  HEADLANE_RETURN_IF_ERROR(Decode(options, model, session, generations, figures));
  figures.options = session.options();
  figures.memory = session.memory();
  figures.num_workers = session.num_workers();
  figures.prompt_stats = session.prompt_stats();
  figures.step_stats = session.step_stats();
  if (options.json) {
    Json prompts = Json::MakeArray();
    for (const Generation& g : generations) prompts.Append(GenerationJson(g));
    PrintJson({{"model", ModelJson(model)}, {"prompts", prompts}, {"timings", TimingsJson(options, model, &figures)}});
    return OkStatus();
  }
  for (size_t i = 0; i < texts.size(); ++i) {
    std::printf("%s[%zu] %s\n%s\n", i > 0 ? "\n" : "", i + 1, texts[i].c_str(), generations[i].text.c_str());
  }
  PrintFigures(model, figures);
  return OkStatus();
}

}  // namespace headlane::tools
