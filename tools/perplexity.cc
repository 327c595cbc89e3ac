// headlane-perplexity: how well a model predicts a text.
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "headlane/decoder.h"
#include "headlane/target.h"
#include "tools/common/model_options.h"
#include "tools/common/report.h"
#include "tools/common/tool.h"

namespace headlane::tools {
namespace {

struct Options {
  ModelOptions model;
  std::string text_file;
  int threads = 0;
  int64_t chunk = SessionOptions().chunk;
  bool json = false;
};

Status Run(const Options& options) {
  HEADLANE_ASSIGN_OR_RETURN(Model model, OpenModel(options.model));
  HEADLANE_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(options.text_file));
  HEADLANE_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, model.Encode(text, PromptMode::kLiteral));
  if (ids.size() < 2) {
    return MakeStatus(StatusCode::kInvalidArgument, "'%.100s' has %zu tokens; it takes 2 to predict one",
                      options.text_file.c_str(), ids.size());
  }
  HEADLANE_RETURN_IF_ERROR(LoadModel(options.model, options.threads, model));
  SessionOptions session_options;
  session_options.max_context = static_cast<int64_t>(ids.size());
  session_options.chunk = options.chunk;
  session_options.threads = options.threads;
  HEADLANE_ASSIGN_OR_RETURN(Session session, Session::Create(model, session_options));

  std::vector<double> losses(ids.size() - 1);
  {
    ProgressLine progress("reading the text", "tokens");
    HEADLANE_RETURN_IF_ERROR(session.Score(ids, losses, progress.Callback()));
  }
  double sum = 0;
  for (const double loss : losses) sum += loss;
  const double mean_loss = sum / static_cast<double>(losses.size());
  const double perplexity = std::exp(mean_loss);
  if (options.json) {
    PrintJson({{"tokens", ids.size()},
               {"mean_loss", mean_loss},
               {"perplexity", perplexity},
               {"model", ModelJson(model)},
               {"timings",
                {{"target", ActiveTarget().name},
                 {"threads", session.num_workers()},
                 {"linear_implementation", model.linear_implementation()},
                 {"prompt", PhaseJson(session.prompt_stats())}}}});
    return OkStatus();
  }
  const PhaseStats& stats = session.prompt_stats();
  PrintTable(stdout,
             {{"tokens", Format("%zu", ids.size())},
              {"mean loss", Format("%.6f", mean_loss)},
              {"perplexity", Format("%.4f", perplexity)},
              {"tokens per second", Format("%.1f", Ratio(static_cast<double>(stats.tokens), stats.total))}},
             false);
  return OkStatus();
}

int Main(int argc, char** argv) {
  Options options;
  Arguments arguments(
      "headlane-perplexity",
      "The mean loss of a model over a text, in nats per token, and the perplexity exp(mean loss). The text is taken "
      "literally, in one pass; the first token is not predicted.");
  AddModelOptions(arguments, options.model);
  arguments.RequiredText("-f,--text-file", options.text_file, "The text, byte by byte (-: standard input)");
  arguments.Number("-t,--threads", options.threads, 0, kMaxThreads, "Threads; 0: as many as OpenMP would use");
  arguments.Number("--chunk", options.chunk, 1, int64_t{1} << 24,
                   "Tokens that go through the layers together; changes no result");
  arguments.Flag("--json", options.json, "One JSON object: tokens, mean_loss, perplexity, model, timings");
  return RunTool(arguments, argc, argv,
                 "  headlane-perplexity --model model.gguf --text-file text.txt\n"
                 "  headlane-perplexity --model model.gguf --text-file - --json < text.txt\n",
                 [&] { return Run(options); });
}

}  // namespace
}  // namespace headlane::tools

int main(int argc, char** argv) {
  return headlane::tools::RunMain("headlane-perplexity", argc, argv, &headlane::tools::Main);
}
