// headlane-generate: writes text, token by token, with a model file or a synthetic model.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "headlane/decoder.h"
#include "headlane/target.h"
#include "tools/common/model_options.h"
#include "tools/common/report.h"
#include "tools/common/tool.h"

namespace headlane::tools {
namespace {

constexpr int64_t kMaxTokens = int64_t{1} << 24;

struct Options {
  ModelOptions model;
  std::optional<std::string> prompt;
  std::string prompt_file;
  bool chat = false, raw = false, literal = false;
  std::optional<std::string> system;
  int64_t max_tokens = 256;
  SamplingOptions sampling;
  int threads = 0;
  int64_t chunk = SessionOptions().chunk;
  bool json = false;

  PromptMode mode() const { return raw ? PromptMode::kRaw : literal ? PromptMode::kLiteral : PromptMode::kChat; }
};

// The 8 best of a row of logits, ties by the lower id, and a hash of its bits.
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

struct Generation {
  std::vector<int32_t> prompt_ids;
  std::vector<int32_t> ids;
  std::string text;
  bool ended = false;
  Json first_logits, last_logits;
  double load_seconds = 0;
  double first_token_seconds = 0;  // from the start of the prompt
  std::vector<double> step_seconds;
};

// Continues until a stop token or max_tokens; the text goes to standard output while it comes, unless it is for --json.
Status Generate(const Options& options, const Model& model, Session& session, Generation& out) {
  HEADLANE_ASSIGN_OR_RETURN(TokenSampler sampler, TokenSampler::Create(model.info().vocab_size, options.sampling));
  TextStream::Options stream_options;
  HEADLANE_ASSIGN_OR_RETURN(TextStream stream, TextStream::Create(model, stream_options));
  const auto show = [&](std::string_view piece) {
    out.text += piece;
    if (options.json || piece.empty()) return;
    std::fwrite(piece.data(), 1, piece.size(), stdout);
    std::fflush(stdout);
  };

  const double start = Now();
  {
    ProgressLine progress("reading the prompt", "tokens");
    HEADLANE_RETURN_IF_ERROR(session.Prefill(out.prompt_ids, progress.Callback()));
  }
  out.first_logits = LogitsJson(session.logits());
  while (static_cast<int64_t>(out.ids.size()) < options.max_tokens) {
    HEADLANE_ASSIGN_OR_RETURN(const int32_t id, sampler.Next(session.logits()));
    out.ids.push_back(id);
    if (out.ids.size() == 1) out.first_token_seconds = Now() - start;
    if (model.IsStop(id)) {
      out.ended = true;
      break;
    }
    HEADLANE_ASSIGN_OR_RETURN(const std::string_view piece, stream.Push(id));
    show(piece);
    // The last token is not fed back: nobody asks for what follows it.
    if (static_cast<int64_t>(out.ids.size()) == options.max_tokens) break;
    const double step_start = Now();
    HEADLANE_RETURN_IF_ERROR(session.Step(id).status());
    out.step_seconds.push_back(Now() - step_start);
  }
  show(stream.Finish());
  out.last_logits = LogitsJson(session.logits());
  std::sort(out.step_seconds.begin(), out.step_seconds.end());
  return OkStatus();
}

Json ResultJson(const Options& options, const Model& model, const Session* session, const Generation& g) {
  Json json = {{"model", ModelJson(model)},
               {"prompt_ids", g.prompt_ids},
               {"generated_ids", g.ids},
               {"text", g.text},
               {"stop", g.ended ? "end" : "length"},
               {"first_logits", g.first_logits},
               {"last_logits", g.last_logits}};
  Json timings = {{"target", ActiveTarget().name}, {"linear", options.model.linear}};
  if (session != nullptr) {
    const SessionMemory memory = session->memory();
    timings.Merge({{"threads", session->num_workers()},
                   {"linear_implementation", model.linear_implementation()},
                   {"load_seconds", g.load_seconds},
                   {"time_to_first_token_seconds", g.first_token_seconds},
                   {"prompt", PhaseJson(session->prompt_stats())},
                   {"decode", PhaseJson(session->step_stats())},
                   {"step_p50_ms", 1e3 * Quantile(g.step_seconds, 0.5)},
                   {"step_p99_ms", 1e3 * Quantile(g.step_seconds, 0.99)},
                   {"kv_bytes", session->length() * memory.kv_bytes_per_token},
                   {"kv_bytes_per_token", memory.kv_bytes_per_token},
                   {"kv_cache_bytes", memory.cache_bytes},
                   {"scratch_bytes", memory.scratch_bytes},
                   {"weight_bytes", model.weight_bytes()}});
  }
  json["timings"] = timings;
  return json;
}

void PrintSummary(const Model& model, const Session& session, const Generation& g) {
  const ModelInfo& info = model.info();
  const SessionMemory memory = session.memory();
  const PhaseStats phases[] = {session.prompt_stats(), session.step_stats()};
  std::vector<std::vector<std::string>> rows = {{"", "prompt", "decode"}};
  for (auto& row : PhaseRows(phases)) rows.push_back(std::move(row));
  std::fflush(stdout);
  std::fprintf(stderr, "\n");
  PrintTable(stderr, rows, true);
  std::fprintf(stderr, "\n");
  PrintTable(
      stderr,
      {{"model", Format("%s, %.1f M parameters, %s", info.name.c_str(), 1e-6 * static_cast<double>(info.num_parameters),
                        info.weight_type.c_str())},
       {"weights in memory",
        FormatBytes(static_cast<double>(model.weight_bytes())) + ", loaded in " + Format("%.2f s", g.load_seconds)},
       {"KV cache", Format("%s for %lld tokens, %lld bytes each (%s allocated)",
                           FormatBytes(static_cast<double>(session.length() * memory.kv_bytes_per_token)).c_str(),
                           static_cast<long long>(session.length()), static_cast<long long>(memory.kv_bytes_per_token),
                           FormatBytes(static_cast<double>(memory.cache_bytes)).c_str())},
       {"time to first token", Format("%.1f ms", 1e3 * g.first_token_seconds)},
       {"decode step",
        Format("p50 %.2f ms, p99 %.2f ms", 1e3 * Quantile(g.step_seconds, 0.5), 1e3 * Quantile(g.step_seconds, 0.99))},
       {"threads", Format("%d", session.num_workers())},
       {"SIMD target", ActiveTarget().name},
       {"linear layers", model.linear_implementation()}},
      false);
}

Status Run(const Options& options) {
  if (!options.prompt && options.prompt_file.empty()) {
    return MakeStatus(StatusCode::kInvalidArgument,
                      "--prompt or --prompt-file is required (--help says what there is)");
  }
  HEADLANE_ASSIGN_OR_RETURN(Model model, OpenModel(options.model));
  std::string text = options.prompt.value_or("");
  if (!options.prompt_file.empty()) {
    HEADLANE_ASSIGN_OR_RETURN(text, ReadWholeFile(options.prompt_file));
  }
  if (text.empty() && options.max_tokens > 0) {
    return MakeStatus(StatusCode::kInvalidArgument,
                      "the prompt is empty: there is nothing to continue (only --max-tokens 0 goes with it)");
  }
  Generation g;
  const std::string_view system = options.system ? std::string_view(*options.system) : std::string_view();
  HEADLANE_ASSIGN_OR_RETURN(g.prompt_ids, model.Encode(text, options.mode(), options.system ? &system : nullptr));
  if (text.empty()) {
    if (options.json) PrintJson(ResultJson(options, model, nullptr, g));
    return OkStatus();
  }

  SessionOptions session_options;
  session_options.max_context = static_cast<int64_t>(g.prompt_ids.size()) + options.max_tokens;
  session_options.chunk = options.chunk;
  session_options.threads = options.threads;
  if (session_options.max_context > model.info().context_length) {
    std::fprintf(stderr, "note: %lld tokens of prompt and text are more than the %lld the model was trained for\n",
                 static_cast<long long>(session_options.max_context),
                 static_cast<long long>(model.info().context_length));
  }
  const double start = Now();
  HEADLANE_RETURN_IF_ERROR(LoadModel(options.model, options.threads, model));
  g.load_seconds = Now() - start;
  HEADLANE_ASSIGN_OR_RETURN(Session session, Session::Create(model, session_options));
  HEADLANE_RETURN_IF_ERROR(Generate(options, model, session, g));
  if (options.json) {
    PrintJson(ResultJson(options, model, &session, g));
  } else {
    if (!g.text.empty()) std::printf("\n");
    PrintSummary(model, session, g);
  }
  return OkStatus();
}

int Main(int argc, char** argv) {
  Options options;
  Arguments arguments(
      "headlane-generate",
      "Writes text with a llama-architecture model, token by token. The text goes to standard output, progress and a "
      "table of figures to standard error. The same arguments give the same text on any number of threads, with any "
      "--chunk, and on any machine with FMA.");
  AddModelOptions(arguments, options.model);

  arguments.Text("-p,--prompt", options.prompt, "The prompt");
  arguments.Text("-f,--prompt-file", options.prompt_file, "The prompt, byte by byte, from a file (-: standard input)");
  arguments.Flag("--chat", options.chat, "The prompt is a user's message, in the model's chat format (default)");
  arguments.Flag("--raw", options.raw, "The prompt is the text to continue; control tokens in it are recognised");
  arguments.Flag("--literal", options.literal,
                 "The prompt is the text to continue; control tokens in it are plain characters");
  arguments.Text("--system", options.system, "With --chat: the system message instead of the model's own");
  arguments.Excludes("--prompt-file", {"--prompt"});
  arguments.Excludes("--raw", {"--chat", "--literal"});
  arguments.Excludes("--literal", {"--chat"});
  arguments.Excludes("--system", {"--raw", "--literal"});

  arguments.Number("-n,--max-tokens", options.max_tokens, 0, kMaxTokens,
                   "Most tokens to generate; 0: read the prompt only");
  arguments.Number("--temperature", options.sampling.temperature, 0, 1000,
                   "0: always the most likely token; above: drawn from p^(1/T)");
  arguments.Number("--top-k", options.sampling.top_k, 0, INT32_MAX,
                   "Draw from the K most likely tokens only; 0: from all");
  arguments.Number("--top-p", options.sampling.top_p, 0, 1,
                   "Draw from the most likely tokens that make up a share P in (0, 1] only");
  arguments.Seed("--seed", options.sampling.seed, "Of the draws; the same seed draws the same text");

  arguments.Number("-t,--threads", options.threads, 0, kMaxThreads, "Threads; 0: as many as OpenMP would use");
  arguments.Number("--chunk", options.chunk, 1, kMaxTokens, "Tokens of the prompt that go through the layers together");
  arguments.Flag(
      "--json", options.json,
      "One JSON object instead of text and table: model, prompt_ids, generated_ids (the end token included), text, "
      "stop (end or length), first_logits and last_logits (best: 8 x [id, logit]; hash of the whole row's bits; "
      "null without a prompt), timings");
  return RunTool(
      arguments, argc, argv,
      "  headlane-generate --model model.gguf --prompt \"Why is the sky blue?\"\n"
      "  headlane-generate --model model.gguf --raw --prompt \"Once upon a time\" --temperature 0.8 --seed 7\n"
      "  headlane-generate --synthetic smollm2-135m --prompt hello --max-tokens 20 --threads 2 --json\n",
      [&] { return Run(options); });
}

}  // namespace
}  // namespace headlane::tools

int main(int argc, char** argv) {
  return headlane::tools::RunMain("headlane-generate", argc, argv, &headlane::tools::Main);
}
