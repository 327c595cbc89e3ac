// headlane-perplexity: how well a model predicts a text.
#include <cmath>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "headlane/decoder.h"
#include "headlane/target.h"
#include "tools/attention_error.h"
#include "tools/common/cache_options.h"
#include "tools/common/model_options.h"
#include "tools/common/report.h"
#include "tools/common/tool.h"

namespace headlane::tools {
namespace {

struct Options {
  ModelOptions model;
  std::string text_file;
  std::string types = "f32";
  int64_t page = SessionOptions().page_tokens;
  int64_t window = 0;
  bool attention_error = false;
  int threads = 0;
  int64_t chunk = SessionOptions().chunk;
  bool json = false;
};

struct Score {
  CacheTypes types;
  double mean_loss = 0;
  double perplexity = 0;
  int64_t bytes_per_token = 0;
  int num_workers = 0;
  PhaseStats stats;
};

Result<Score> ScoreText(const Options& options, const Model& model, std::span<const int32_t> ids, CacheTypes types) {
  SessionOptions session_options;
  session_options.max_context = static_cast<int64_t>(ids.size());
  session_options.chunk = options.chunk;
  session_options.threads = options.threads;
  session_options.k_dtype = types.k;
  session_options.v_dtype = types.v;
  session_options.rotate = types.rotate;
  session_options.page_tokens = options.page;
  session_options.window = options.window;
  HEADLANE_ASSIGN_OR_RETURN(Session session, Session::Create(model, session_options));
  std::vector<double> losses(ids.size() - 1);
  {
    ProgressLine progress("reading the text, " + types.Name() + " cache", "tokens");
    HEADLANE_RETURN_IF_ERROR(session.Score(ids, losses, progress.Callback()));
  }
  double sum = 0;
  for (const double loss : losses) sum += loss;
  Score score;
  score.types = types;
  score.mean_loss = sum / static_cast<double>(losses.size());
  score.perplexity = std::exp(score.mean_loss);
  score.bytes_per_token = session.memory().kv_bytes_per_token;
  score.num_workers = session.num_workers();
  score.stats = session.prompt_stats();
  return score;
}

double ChangePercent(double value, double reference) { return 100 * (value / reference - 1); }

void PrintScores(size_t num_tokens, const std::vector<Score>& scores) {
  const Score& first = scores.front();
  if (scores.size() == 1) {
    PrintTable(
        stdout,
        {{"tokens", Format("%zu", num_tokens)},
         {"mean loss", Format("%.6f", first.mean_loss)},
         {"perplexity", Format("%.4f", first.perplexity)},
         {"tokens per second", Format("%.1f", Ratio(static_cast<double>(first.stats.tokens), first.stats.total))}},
        false);
    return;
  }
  std::vector<std::vector<std::string>> rows = {
      {"KV cache", "bytes per token", "mean loss", "change", "perplexity", "change"}};
  for (const Score& score : scores) {
    rows.push_back(
        {score.types.Name(), Format("%lld", static_cast<long long>(score.bytes_per_token)),
         Format("%.6f", score.mean_loss), Format("%+.3f %%", ChangePercent(score.mean_loss, first.mean_loss)),
         Format("%.4f", score.perplexity), Format("%+.3f %%", ChangePercent(score.perplexity, first.perplexity))});
  }
  std::printf("%zu tokens\n\n", num_tokens);
  PrintTable(stdout, rows, true);
}

Json ScoresJson(const Model& model, size_t num_tokens, const std::vector<Score>& scores) {
  const Score& first = scores.front();
  Json json = {{"tokens", num_tokens},
               {"mean_loss", first.mean_loss},
               {"perplexity", first.perplexity},
               {"model", ModelJson(model)},
               {"timings",
                {{"target", ActiveTarget().name},
                 {"threads", first.num_workers},
                 {"linear_implementation", model.linear_implementation()},
                 {"prompt", PhaseJson(first.stats)}}}};
  Json types = Json::MakeArray();
  for (const Score& score : scores) {
    types.Append({{"k_type", DTypeName(score.types.k)},
                  {"v_type", DTypeName(score.types.v)},
                  {"rotated", score.types.rotate},
                  {"bytes_per_token", score.bytes_per_token},
                  {"mean_loss", score.mean_loss},
                  {"perplexity", score.perplexity},
                  {"loss_change_percent", ChangePercent(score.mean_loss, first.mean_loss)},
                  {"perplexity_change_percent", ChangePercent(score.perplexity, first.perplexity)}});
  }
  json["kv_types"] = types;
  return json;
}

// The f32 cache is not among the types: it is what the others are compared with.
Status AddAttentionErrors(const Options& options, const Model& model, std::span<const int32_t> ids,
                          std::vector<CacheTypes> types, Json* json) {
  std::erase(types, CacheTypes());
  std::vector<AttentionError> on_model;
  {
    ProgressLine progress("attention with rounded keys and values", "layers");
    HEADLANE_ASSIGN_OR_RETURN(on_model, ModelAttentionErrors(model, ids, types, options.threads, progress.Callback()));
  }
  const auto n = static_cast<int64_t>(ids.size());
  HEADLANE_ASSIGN_OR_RETURN(const std::vector<AttentionError> on_random,
                            RandomAttentionErrors(model, n, 1, types, options.threads));
  std::vector<std::vector<std::string>> rows = {
      {"KV cache", "text: rms", "worst layer", "largest", "random: rms", "largest"}};
  Json list = Json::MakeArray();
  for (size_t i = 0; i < types.size(); ++i) {
    const AttentionError& text = on_model[i];
    const AttentionError& random = on_random[i];
    const auto percent = [](double share) { return Format("%.4f %%", 100 * share); };
    rows.push_back({types[i].Name(), percent(text.rms()), percent(text.worst_rms), percent(text.max()),
                    percent(random.rms()), percent(random.max())});
    list.Append({{"k_type", DTypeName(types[i].k)},
                 {"v_type", DTypeName(types[i].v)},
                 {"rotated", types[i].rotate},
                 {"text", {{"rms", text.rms()}, {"worst_layer_rms", text.worst_rms}, {"largest", text.max()}}},
                 {"random", {{"rms", random.rms()}, {"largest", random.max()}}}});
  }
  if (json != nullptr) {
    (*json)["attention_errors"] = list;
    return OkStatus();
  }
  std::printf("\nerror of attention's output, as a share of the outputs' root mean square\n\n");
  PrintTable(stdout, rows, true);
  return OkStatus();
}

Status Run(const Options& options) {
  HEADLANE_ASSIGN_OR_RETURN(std::vector<CacheTypes> types, ParseCacheTypes(options.types));
  HEADLANE_ASSIGN_OR_RETURN(Model model, OpenModel(options.model));
  HEADLANE_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(options.text_file));
  HEADLANE_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, model.Encode(text, PromptMode::kLiteral));
  if (ids.size() < 2) {
    return MakeStatus(StatusCode::kInvalidArgument, "'%.100s' has %zu tokens; it takes 2 to predict one",
                      options.text_file.c_str(), ids.size());
  }
  HEADLANE_RETURN_IF_ERROR(LoadModel(options.model, options.threads, model));
  // Several are compared with f32.
  if (types.size() > 1) {
    std::erase(types, CacheTypes());
    types.insert(types.begin(), CacheTypes());
  }
  std::vector<Score> scores;
  for (const CacheTypes type : types) {
    HEADLANE_ASSIGN_OR_RETURN(const Score score, ScoreText(options, model, ids, type));
    scores.push_back(score);
  }
  if (!options.json) {
    PrintScores(ids.size(), scores);
    return options.attention_error ? AddAttentionErrors(options, model, ids, types, nullptr) : OkStatus();
  }
  Json json = ScoresJson(model, ids.size(), scores);
  if (options.attention_error) HEADLANE_RETURN_IF_ERROR(AddAttentionErrors(options, model, ids, types, &json));
  PrintJson(json);
  return OkStatus();
}

int Main(int argc, char** argv) {
  Options options;
  Arguments arguments(
      "headlane-perplexity",
      "The mean loss of a model over a text, in nats per token, and the perplexity exp(mean loss). The text is taken "
      "literally, in one pass; the first token is not predicted. With several types of the KV cache: a table that "
      "compares them with f32.");
  AddModelOptions(arguments, options.model);
  arguments.RequiredText("-f,--text-file", options.text_file, "The text, byte by byte (-: standard input)");
  arguments.Text(
      "--kv-type", options.types,
      "Types of the KV cache, with commas between: f32, f16, bf16, int8, fp8, int4; two with a slash for keys "
      "and values apart (int8/int4), each stored as it is; +rotate behind it: stored rotated (int4+rotate); all: each "
      "of them");
  arguments.Number("--page", options.page, 16, 256,
                   "Tokens of a page of the cache, a multiple of 16; changes no result");
  arguments.Number("--window", options.window, 0, int64_t{1} << 24,
                   "Every layer sees only the newest so many tokens; 0: all");
  arguments.Flag("--attention-error", options.attention_error,
                 "How much each type of the cache changes attention's output, on the text and on random data");
  arguments.Number("-t,--threads", options.threads, 0, kMaxThreads, "Threads; 0: as many as OpenMP would use");
  arguments.Number("--chunk", options.chunk, 1, int64_t{1} << 24,
                   "Tokens that go through the layers together; changes no result");
  arguments.Flag("--json", options.json,
                 "One JSON object: tokens, mean_loss, perplexity, model, timings, kv_types (per type: bytes_per_token, "
                 "losses and changes in percent), attention_errors");
  return RunTool(arguments, argc, argv,
                 "  headlane-perplexity --model model.gguf --text-file text.txt\n"
                 "  headlane-perplexity --model model.gguf --text-file - --json < text.txt\n"
                 "  headlane-perplexity --model model.gguf --text-file text.txt --kv-type all --attention-error\n",
                 [&] { return Run(options); });
}

}  // namespace
}  // namespace headlane::tools

int main(int argc, char** argv) {
  return headlane::tools::RunMain("headlane-perplexity", argc, argv, &headlane::tools::Main);
}
