// headlane-generate: writes text, token by token, with a model file or a synthetic model.
#include <algorithm>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "headlane/decoder.h"
#include "tools/common/tool.h"
#include "tools/generate.h"

namespace headlane::tools {
namespace {

constexpr int64_t kMaxTokens = int64_t{1} << 24;

// Continues until a stop token or max_tokens; the text goes to standard output while it comes, unless it is for --json.
Status Generate(const GenerateOptions& options, const Model& model, Session& session, Generation& out,
                RunFigures& figures) {
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
  if (!options.load_cache.empty()) {
    HEADLANE_ASSIGN_OR_RETURN(figures.reused_tokens, session.LoadCache(options.load_cache, out.prompt_ids));
  }
  {
    ProgressLine progress("reading the prompt", "tokens");
    const std::span<const int32_t> rest =
        std::span<const int32_t>(out.prompt_ids).subspan(static_cast<size_t>(figures.reused_tokens));
    HEADLANE_RETURN_IF_ERROR(session.Prefill(rest, progress.Callback()));
  }
  out.first_logits = LogitsJson(session.logits());
  while (static_cast<int64_t>(out.ids.size()) < options.max_tokens) {
    HEADLANE_ASSIGN_OR_RETURN(const int32_t id, sampler.Next(session.logits()));
    out.ids.push_back(id);
    if (out.ids.size() == 1) figures.first_token_seconds = Now() - start;
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
    figures.step_seconds.push_back(Now() - step_start);
  }
  show(stream.Finish());
  out.last_logits = LogitsJson(session.logits());
  std::sort(figures.step_seconds.begin(), figures.step_seconds.end());
  if (!options.save_cache.empty()) HEADLANE_RETURN_IF_ERROR(session.SaveCache(options.save_cache));
  return OkStatus();
}

Json ResultJson(const GenerateOptions& options, const Model& model, const RunFigures* figures, const Generation& g) {
  Json json = {{"model", ModelJson(model)}};
  json.Merge(GenerationJson(g));
  json["timings"] = TimingsJson(options, model, figures);
  return json;
}

Status Run(const GenerateOptions& options) {
  if (!options.prompt && options.prompt_file.empty() && options.prompts_file.empty()) {
    return MakeStatus(StatusCode::kInvalidArgument,
                      "--prompt, --prompt-file or --prompts-file is required (--help says what there is)");
  }
  HEADLANE_ASSIGN_OR_RETURN(Model model, OpenModel(options.model));
  if (!options.prompts_file.empty()) return GenerateBatch(options, model);
  std::string text = options.prompt.value_or("");
  if (!options.prompt_file.empty()) {
    HEADLANE_ASSIGN_OR_RETURN(text, ReadWholeFile(options.prompt_file));
  }
  if (text.empty() && options.max_tokens > 0) {
    return MakeStatus(StatusCode::kInvalidArgument,
                      "the prompt is empty: there is nothing to continue (only --max-tokens 0 goes with it)");
  }
  Generation g;
  HEADLANE_ASSIGN_OR_RETURN(g.prompt_ids, EncodePrompt(options, model, text));
  if (text.empty()) {
    if (options.json) PrintJson(ResultJson(options, model, nullptr, g));
    return OkStatus();
  }

  RunFigures figures;
  HEADLANE_ASSIGN_OR_RETURN(figures.options,
                            MakeSessionOptions(options, model, static_cast<int64_t>(g.prompt_ids.size())));
  if (!options.load_cache.empty()) {
    // Before the weights, which take their time; and it has to fit even if only its beginning is of use.
    HEADLANE_ASSIGN_OR_RETURN(const int64_t saved, Session::SavedLength(options.load_cache));
    figures.options.max_context = std::max(figures.options.max_context, saved);
  }
  const double start = Now();
  HEADLANE_RETURN_IF_ERROR(LoadModel(options.model, options.threads, model));
  figures.load_seconds = Now() - start;
  HEADLANE_ASSIGN_OR_RETURN(Session session, Session::Create(model, figures.options));
  HEADLANE_RETURN_IF_ERROR(Generate(options, model, session, g, figures));
  figures.options = session.options();
  figures.memory = session.memory();
  figures.num_workers = session.num_workers();
  figures.prompt_stats = session.prompt_stats();
  figures.step_stats = session.step_stats();
  if (options.json) {
    PrintJson(ResultJson(options, model, &figures, g));
  } else {
    if (!g.text.empty()) std::printf("\n");
    PrintFigures(model, figures);
  }
  return OkStatus();
}

int Main(int argc, char** argv) {
  GenerateOptions options;
  Arguments arguments(
      "headlane-generate",
      "Writes text with a llama-architecture model, token by token. The text goes to standard output, progress and a "
      "table of figures to standard error. The same arguments give the same text on any number of threads, with any "
      "--chunk, and on any machine with FMA.");
  AddModelOptions(arguments, options.model);

  arguments.Text("-p,--prompt", options.prompt, "The prompt");
  arguments.Text("-f,--prompt-file", options.prompt_file, "The prompt, byte by byte, from a file (-: standard input)");
  arguments.Text("--prompts-file", options.prompts_file,
                 "Several prompts, one per line, decoded as one batch: each has the text of its own run, and what they "
                 "begin with alike is computed and stored once");
  arguments.Flag("--chat", options.chat, "The prompt is a user's message, in the model's chat format (default)");
  arguments.Flag("--raw", options.raw, "The prompt is the text to continue; control tokens in it are recognised");
  arguments.Flag("--literal", options.literal,
                 "The prompt is the text to continue; control tokens in it are plain characters");
  arguments.Text("--system", options.system, "With --chat: the system message instead of the model's own");
  arguments.Excludes("--prompt-file", {"--prompt"});
  arguments.Excludes("--prompts-file", {"--prompt", "--prompt-file"});
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

  AddCacheOptions(arguments, options.cache);
  arguments.Text("--save-cache", options.save_cache,
                 "Save tokens, keys and values at the end to this file, for --load-cache");
  arguments.Text(
      "--load-cache", options.load_cache,
      "Take the beginning of the prompt from this file, as far as it agrees: it is not computed again, and the "
      "text is the same. Of the same model and types of the cache");
  arguments.NotEmpty("--save-cache");
  arguments.NotEmpty("--load-cache");
  arguments.Excludes("--save-cache", {"--prompts-file"});
  arguments.Excludes("--load-cache", {"--prompts-file"});

  arguments.Number("-t,--threads", options.threads, 0, kMaxThreads, "Threads; 0: as many as OpenMP would use");
  arguments.Number("--chunk", options.chunk, 1, kMaxTokens, "Tokens of the prompt that go through the layers together");
  arguments.Flag(
      "--json", options.json,
      "One JSON object instead of text and table: model, prompt_ids, generated_ids (the end token included), text, "
      "stop (end or length), first_logits and last_logits (best: 8 x [id, logit]; hash of the whole row's bits; "
      "null without a prompt), timings; with --prompts-file `prompts`, a list of the same per prompt");
  return RunTool(
      arguments, argc, argv,
      "  headlane-generate --model model.gguf --prompt \"Why is the sky blue?\"\n"
      "  headlane-generate --model model.gguf --raw --prompt \"Once upon a time\" --temperature 0.8 --seed 7\n"
      "  headlane-generate --model model.gguf --prompts-file questions.txt --kv-type int8\n"
      "  headlane-generate --synthetic smollm2-135m --prompt hello --max-tokens 20 --threads 2 --json\n",
      [&] { return Run(options); });
}

}  // namespace
}  // namespace headlane::tools

int main(int argc, char** argv) {
  return headlane::tools::RunMain("headlane-generate", argc, argv, &headlane::tools::Main);
}
