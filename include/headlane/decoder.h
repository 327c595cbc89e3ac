// A minimal decoder around the attention operator: model files, text, and a session that turns tokens into logits.
//
//   Model      what a file (or a synthetic shape) holds: shape, vocabulary, and, once loaded, packed weights
//   Session    one running conversation: KV cache, plan and scratch memory of one model;  BatchSession  several at once
//   TextStream tokens to text that can be shown at once;  TokenSampler  logits to the next token
//
// Same bits: a token's logits depend on the ids before it, on the weights, and on the cache's types and window; not on
// threads, on how a prompt is cut into chunks and calls, on what else is in a batch, or on the page size
// (LinearBackend::kTile, Numerics::kReproducible, targets with FMA).
//
// A part of its own (CMake target headlane::decoder), so that engines that only want attention need not link it. Files
// are untrusted: every length is checked before anything is allocated from it.
#ifndef HEADLANE_DECODER_H_
#define HEADLANE_DECODER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headlane/attention.h"
#include "headlane/dtype.h"
#include "headlane/executor.h"
#include "headlane/linear.h"
#include "headlane/status.h"

namespace headlane {

// Called now and then on the calling thread: `done` of `total` units, which the call that takes it names. Return false
// to stop: the call gives Cancelled, and what it was filling is as before. Must not throw.
using ProgressCallback = std::function<bool(int64_t done, int64_t total)>;

// What a model is, for tables and for sizing. Lengths in tokens, widths in features.
struct ModelInfo {
  std::string name;          // as the file calls it, or the synthetic shape's name
  std::string architecture;  // "llama"
  std::string weight_type;   // type that most weights have in the file: "Q4_1", "F16", ...; "synthetic"
  int64_t num_layers = 0;
  int64_t width = 0;  // of the residual stream
  int64_t ff_width = 0;
  int64_t num_q_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t qk_dim = 0;
  int64_t v_dim = 0;
  int64_t vocab_size = 0;
  int64_t context_length =
      0;  // what the model was trained for. A session may be longer; the text then suffers, nothing else.
  int64_t num_parameters = 0;
  int64_t file_bytes = 0;  // 0 for a synthetic model
  bool tied_head = false;  // the output head is the embedding
};

// What a text given to Model::Encode means.
enum class PromptMode : int32_t {
  kChat = 0,  // one user message in the model's own chat format; control tokens spelled in it are plain characters
  kRaw,       // the text as it is, control tokens in it recognised
  kLiteral,   // the text as it is, control tokens in it are plain characters
};

struct LoadOptions {
  LinearBackend linear = LinearBackend::kTile;
  // kFastest, with kTile: loading measures each shape of layer on oneDNN, too, and where that is faster for many rows
  // (prompts), keeps a copy for these; Model::layer_choices says so. Then no promise of bits, across loads neither;
  // single tokens still go through our tiles. Load with as many threads as sessions will have.
  Numerics numerics = Numerics::kReproducible;
  // kInt8, with kTile and kReproducible: faster, and less accurate than the file's weights allow; the same bits for any
  // threads and chunks all the same. Only where the file has block-quantised weights.
  LinearPrecision precision = LinearPrecision::kExact;
  int threads = 0;               // 0: as many as OpenMP would use. Ignored when `executor` is given.
  Executor* executor = nullptr;  // the caller's own
  ProgressCallback progress;     // units: parameters
  // A file that keeps the weights as they are packed in memory (kTile, of a model file): mapped if it was made from
  // this very model file (size, time, hash) by a version that packs alike; else written anew, for the next start. ""
  // for none. Model::packed_weights says what became of it; a file that is no good, or can't be written, is no error.
  std::string packed_weights_path;
  // f32 in memory in place of what is stored, several times as large: the same bits, for comparison.
  bool expand = false;
};

// What became of LoadOptions::packed_weights_path.
struct PackedWeights {
  bool mapped = false;   // the weights are those of the file
  bool written = false;  // they were packed, and the file has them now
  // Why not, where it was tried: NotFound, DataLoss (truncated or damaged), FailedPrecondition (of another model file
  // or layout; or the system's reason), Unsupported (version).
  Status not_mapped;
  Status not_written;
};

// What LoadWeights measured of one shape of layers, and chose (Numerics::kFastest).
struct LayerChoice {
  struct Candidate {
    LinearBackend backend = LinearBackend::kTile;
    std::string implementation;  // Linear::implementation(); "" if the layer could not be had
    Status status;               // why not: Unsupported, ResourceExhausted
    double seconds = 0;          // that `rows` rows take; 0: not measured
  };

  std::string layer;  // "qkv", "o", "gate_up", "down"
  int64_t num_layers = 0;
  int64_t in_features = 0;
  int64_t out_features = 0;
  int64_t rows = 0;                   // of the runs that were measured
  std::vector<Candidate> candidates;  // tiles first
  LinearBackend many_rows = LinearBackend::kTile;
  int64_t from_rows = 0;  // passes of so many rows and more run on it; 0 for kTile
  int64_t bytes = 0;      // of the copies of all these layers; 0 for kTile
};

namespace internal {
class BatchSessionImpl;
class ModelImpl;
class SessionImpl;
class TextStreamImpl;
class TokenSamplerImpl;
}  // namespace internal

// Threads: const calls from any, at the same time; LoadWeights alone.
class Model {
 public:
  // Maps a GGUF file, reads its metadata and vocabulary, and checks that every tensor is there in the right shape;
  // loads no weights. Architecture: "llama". Errors: NotFound (no such file, key or tensor), DataLoss (damaged; a shape
  // or number that contradicts another: names both), Unsupported (architecture, tensor type, tokenizer, RoPE scaling:
  // names it and what is supported), ResourceExhausted.
  static Result<Model> Open(const std::string& path) noexcept;

  // A model with pseudo-random weights from `seed` and a made-up vocabulary: for measuring speed, and where no file can
  // be had. `shape` is a name from SyntheticShapeNames(), optionally with a number of layers behind a colon
  // ("llama-3-8b:4"). Errors: InvalidArgument (no such shape: lists them; layers).
  static Result<Model> Synthetic(std::string_view shape, uint64_t seed = 0) noexcept;

  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;
  ~Model();

  // Packs all weights, as they are stored (kTile), in as many bytes. The process then holds them once: the model file's
  // pages are given back. On an error nothing is loaded. Errors: ResourceExhausted, Cancelled, Unsupported (backend),
  // FailedPrecondition (loaded already), InvalidArgument (options that exclude each other), Internal (oneDNN failed).
  Status LoadWeights(const LoadOptions& options = {}) noexcept;
  bool weights_loaded() const noexcept;

  const ModelInfo& info() const noexcept;
  // Bytes of packed weights in memory, copies included; 0 before LoadWeights.
  int64_t weight_bytes() const noexcept;
  // Of these, copies of layers for many rows (Numerics::kFastest).
  int64_t weight_copy_bytes() const noexcept;
  // Per shape of layer, in the order in which a pass meets them first. Empty for kReproducible, and before LoadWeights.
  std::span<const LayerChoice> layer_choices() const noexcept;
  PackedWeights packed_weights() const noexcept;
  // Linear::implementation() of the layers, for tables; "" before LoadWeights.
  const char* linear_implementation() const noexcept;

  // Ids of a text. `system`: kChat only; null takes the one that the model's format puts there by itself. Errors:
  // Unsupported (kChat, and the file has no chat format that we know), InvalidArgument (a byte that the vocabulary
  // can't express; `system` outside of kChat).
  Result<std::vector<int32_t>> Encode(std::string_view text, PromptMode mode,
                                      const std::string_view* system = nullptr) const noexcept;
  // Bytes of a whole sequence of ids, control tokens as they are spelled. Errors: OutOfRange (id).
  Result<std::string> Decode(std::span<const int32_t> ids) const noexcept;
  // Ends a generation. False for an id outside of the vocabulary.
  bool IsStop(int32_t id) const noexcept;

  // For the library itself.
  const internal::ModelImpl& impl() const noexcept { return *impl_; }

 private:
  explicit Model(std::unique_ptr<internal::ModelImpl> impl) noexcept;
  std::unique_ptr<internal::ModelImpl> impl_;
};

// "smollm2-135m", "llama-3.2-1b", ...: in the order of their size.
std::span<const char* const> SyntheticShapeNames() noexcept;

struct SessionOptions {
  int64_t max_context = 4096;   // tokens that a sequence may have; its memory is allocated at once
  int64_t chunk = 512;          // tokens of a prompt that go through the layers together
  int64_t page_tokens = 128;    // as KVCacheSpec
  DType k_dtype = DType::kF32;  // of the cached keys, and
  DType v_dtype = DType::kF32;  // of the cached values: any of the six
  // Both are stored rotated, as KVCacheSpec::rotate. No value: where keys are int4, which lose three times as much
  // otherwise.
  std::optional<bool> rotate = std::nullopt;
  // Every layer sees only the newest so many tokens, and the first num_sinks; 0: all. The cache then keeps, besides
  // these, what `rollback` needs and room for a chunk, however long the text becomes.
  int64_t window = 0;
  int64_t num_sinks = 0;
  int64_t rollback = 0;          // with a window: how many of the newest tokens Truncate can take back; 0: chunk
  int threads = 0;               // 0: as many as OpenMP would use. Ignored when `executor` is given.
  Executor* executor = nullptr;  // the caller's own; must outlive the session

  constexpr bool rotates() const noexcept { return rotate.value_or(k_dtype == DType::kI4); }
};

// Where time went, in seconds, and what was read for it. `total` is all of a call; rest = total - attention - append -
// linear.
struct PhaseStats {
  int64_t tokens = 0;
  int64_t calls = 0;
  double total = 0;
  double attention = 0;     // planning included
  double append = 0;        // rotating queries and keys; keys and values into the cache
  double linear = 0;        // the output head included
  double kv_bytes = 0;      // read by attention
  double weight_bytes = 0;  // read by linear layers, once per chunk or step
  // Done by them: a multiply-add is 2; of attention those of keys that a row sees.
  double attention_flops = 0;
  double linear_flops = 0;

  double rest() const noexcept { return total - attention - append - linear; }
};

// All of it is allocated when the session is made.
struct SessionMemory {
  int64_t cache_bytes = 0;       // of the cache: max_context, or what the window needs, in whole pages
  int64_t cache_used_bytes = 0;  // of pages that hold tokens; a page that sequences share counts once
  int64_t kv_bytes_per_token = 0;
  int64_t page_bytes = 0;
  int64_t kept_tokens = 0;    // tokens that are in these pages, shared ones once; behind a window only those it needs
  int64_t scratch_bytes = 0;  // activations, logits, attention's workspace

  // What used pages have room for besides: less than a page per sequence, and one more where a window cuts the other
  // end.
  int64_t waste_bytes() const noexcept { return cache_used_bytes - kept_tokens * kv_bytes_per_token; }
};

// What one layer's attention is given for the tokens of a pass, rotated, before the cache rounds it. One sequence after
// the other: `positions` says where each token stands. Valid during the call.
struct LayerRows {
  int64_t layer = 0;
  std::span<const int64_t> positions;  // [tokens]
  float scale = 0;                     // of the scores
  const float* q = nullptr;            // [tokens][num_q_heads][qk_dim]
  const float* k = nullptr;            // [tokens][num_kv_heads][qk_dim]
  const float* v = nullptr;            // [tokens][num_kv_heads][v_dim]
};
// Called on the session's calling thread. Must not throw.
using LayerObserver = std::function<void(const LayerRows&)>;

// Threads: one call at a time. The model must outlive it.
class Session {
 public:
  // Allocates everything that the session will ever use. Errors: FailedPrecondition (the model's weights are not
  // loaded), InvalidArgument (an option: names it), ResourceExhausted.
  static Result<Session> Create(const Model& model, const SessionOptions& options = {}) noexcept;

  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;
  ~Session();

  // Appends `ids` in chunks; logits() is then the last one's row. Nothing is computed for no ids. On an error the
  // session is as before; but if it is stopped behind more tokens than `rollback` of a window, the chunks that were
  // complete stay, and length() says so. Progress in tokens, after each chunk. Errors: OutOfRange (an id: names its
  // index and the vocabulary's size), ResourceExhausted (more than max_context), Cancelled. Allocation: none.
  Status Prefill(std::span<const int32_t> ids, const ProgressCallback& progress = nullptr) noexcept;

  // Appends one token; the result is logits(). Errors: as Prefill. Allocation: none.
  Result<std::span<const float>> Step(int32_t id) noexcept;

  // Logits [vocab_size] that follow the last token; empty when there is none (nothing appended, or just truncated).
  // Valid until the next call that changes the session.
  std::span<const float> logits() const noexcept;

  // Appends `ids` and gives how badly each was predicted: losses[i] = -ln p(ids[i + 1] | all before), losses
  // [ids.size() - 1] (none for no ids). Progress in tokens. Errors: as Prefill, and InvalidArgument (size of losses).
  // Allocation: none.
  Status Score(std::span<const int32_t> ids, std::span<double> losses,
               const ProgressCallback& progress = nullptr) noexcept;

  // Tokens so far.
  int64_t length() const noexcept;
  // Back to `length` tokens. Errors: OutOfRange, FailedPrecondition (more than `rollback` behind a window). Allocation:
  // none.
  Status Truncate(int64_t length) noexcept;
  // Pseudo-random keys and values up to `length` tokens, for measuring at a depth without computing it. Errors:
  // OutOfRange (length below the present one), ResourceExhausted.
  Status FillRandom(int64_t length, uint64_t seed) noexcept;

  // Saves the tokens so far, ids, keys and values as they are stored, to a file that appears under its name when it is
  // complete. Errors: FailedPrecondition (tokens of FillRandom, which have no ids; the file: with the system's reason),
  // NotFound (its folder), ResourceExhausted. Allocates.
  Status SaveCache(const std::string& path) const noexcept;
  // Puts what such a file has of the beginning of `ids` into an empty session: at most ids.size() - 1 tokens, so that
  // one is left whose logits can be computed. Gives their number, and 0 where nothing agrees, or where the file's
  // window has passed what these tokens see. Going on from there has the bits of a session that computed them. The file
  // is not trusted. Errors: FailedPrecondition (there are tokens already), InvalidArgument (another model, or a cache
  // of another kind: names it), Unsupported (version), DataLoss (damaged), NotFound, ResourceExhausted and OutOfRange
  // (more saved tokens than max_context). The session is empty then. Allocates.
  Result<int64_t> LoadCache(const std::string& path, std::span<const int32_t> ids) noexcept;
  // How many tokens such a file has, which a session that loads it must have room for. Errors: as LoadCache.
  static Result<int64_t> SavedLength(const std::string& path) noexcept;

  // Calls `observer` for every layer of every pass from now on; null ends it.
  void Observe(LayerObserver observer) noexcept;

  const SessionOptions& options() const noexcept;
  int num_workers() const noexcept;
  SessionMemory memory() const noexcept;
  // What Prefill and Score did, and what Step did, since Create or ResetStats.
  const PhaseStats& prompt_stats() const noexcept;
  const PhaseStats& step_stats() const noexcept;
  void ResetStats() noexcept;

 private:
  explicit Session(std::unique_ptr<internal::SessionImpl> impl) noexcept;
  std::unique_ptr<internal::SessionImpl> impl_;
};

// The next token of one sequence of a batch.
struct BatchToken {
  int64_t sequence = 0;
  int32_t id = 0;
};

// Several conversations of one model that are decoded together: one pass over the weights serves them all, and what
// their prompts have in common is computed once and stored once. Each has the bits of its solo run in a Session.
//
// Threads: one call at a time. The model must outlive it.
class BatchSession {
 public:
  // Sequences 0 .. num_sequences - 1, all empty, each with options.max_context. Allocates everything that the session
  // will ever use. `cache_tokens`: what the cache holds for all of them together, shared tokens counted once, each
  // sequence from its first page of its own in whole pages; 0: max_context for each. Errors: as Session::Create, and
  // InvalidArgument (num_sequences, cache_tokens).
  static Result<BatchSession> Create(const Model& model, const SessionOptions& options, int64_t num_sequences,
                                     int64_t cache_tokens = 0) noexcept;

  BatchSession(BatchSession&&) noexcept;
  BatchSession& operator=(BatchSession&&) noexcept;
  ~BatchSession();

  // Gives every sequence its prompt, in place of what it had; logits(i) are then those of its last token. A run of
  // tokens that prompts begin with is computed once for all that have it, and its pages are shared. On an error all
  // sequences are empty. Progress in tokens that are computed. Errors: as Session::Prefill (names the prompt), and
  // InvalidArgument (prompts.size() is not num_sequences; an empty prompt). Allocates.
  Status Prefill(std::span<const std::span<const int32_t>> prompts,
                 const ProgressCallback& progress = nullptr) noexcept;

  // Appends one token each to some of the sequences, in one pass; their logits are then what follows it, and the others
  // keep theirs. On an error nothing has changed. Errors: as Session::Step, OutOfRange (sequence), InvalidArgument (a
  // sequence twice). Allocation: none.
  Status Step(std::span<const BatchToken> tokens) noexcept;

  // Logits [vocab_size] that follow the sequence's last token; empty when there is none, or no such sequence. Valid
  // until the next call that changes the session.
  std::span<const float> logits(int64_t sequence) const noexcept;
  // Tokens of a sequence so far; 0 when there is no such sequence.
  int64_t length(int64_t sequence) const noexcept;
  int64_t num_sequences() const noexcept;

  const SessionOptions& options() const noexcept;
  int num_workers() const noexcept;
  SessionMemory memory() const noexcept;
  // Tokens are those that were computed.
  const PhaseStats& prompt_stats() const noexcept;
  const PhaseStats& step_stats() const noexcept;
  void ResetStats() noexcept;

 private:
  explicit BatchSession(std::unique_ptr<internal::BatchSessionImpl> impl) noexcept;
  std::unique_ptr<internal::BatchSessionImpl> impl_;
};

// Greedy, or drawn from a seed: the same logits, options and seed give the same tokens on every machine.
struct SamplingOptions {
  float temperature = 0.0f;  // 0: greedy (the lower id among equal logits), and the rest is ignored
  int32_t top_k = 0;         // only the k best; 0: all
  float top_p = 1.0f;        // then only the best that have this share of the probability together; 1: all
  uint64_t seed = 0;
};

class TokenSampler {
 public:
  // Errors: InvalidArgument (names the option), ResourceExhausted.
  static Result<TokenSampler> Create(int64_t vocab_size, const SamplingOptions& options) noexcept;

  TokenSampler(TokenSampler&&) noexcept;
  TokenSampler& operator=(TokenSampler&&) noexcept;
  ~TokenSampler();

  // Errors: InvalidArgument (wrong number of logits, a NaN, all -inf). Allocation: none. Threads: one call at a time.
  Result<int32_t> Next(std::span<const float> logits) noexcept;

 private:
  explicit TokenSampler(std::unique_ptr<internal::TokenSamplerImpl> impl) noexcept;
  std::unique_ptr<internal::TokenSamplerImpl> impl_;
};

// Text of a generation, token by token. Pieces are whole characters: an incomplete one is held back, and bytes that are
// no UTF-8 come as U+FFFD, so that every piece is valid UTF-8. The model must outlive it.
class TextStream {
 public:
  struct Options {
    bool at_start = false;  // the first id begins the text (a SentencePiece vocabulary then drops its leading space)
    bool show_control = false;  // control tokens as they are spelled, instead of nothing
  };
  static Result<TextStream> Create(const Model& model, const Options& options) noexcept;

  TextStream(TextStream&&) noexcept;
  TextStream& operator=(TextStream&&) noexcept;
  ~TextStream();

  // What became showable; valid until the next call. Errors: OutOfRange (id), ResourceExhausted.
  Result<std::string_view> Push(int32_t id) noexcept;
  // What is still held back, at the end.
  std::string_view Finish() noexcept;

 private:
  explicit TextStream(std::unique_ptr<internal::TextStreamImpl> impl) noexcept;
  std::unique_ptr<internal::TextStreamImpl> impl_;
};

}  // namespace headlane

#endif  // HEADLANE_DECODER_H_
