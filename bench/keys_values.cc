#include "bench/keys_values.h"

#include <algorithm>
#include <mutex>

#include "bench/thread_team.h"
#include "headlane/view.h"

namespace headlane::bench {
namespace {

// Calls work(i) for i in 0 .. n - 1 on all processors.
template <typename Work>
void InParallel(int64_t n, const Work& work) {
  const int64_t processors = std::max(1u, std::thread::hardware_concurrency());
  ThreadTeam team(static_cast<int>(std::clamp<int64_t>(n, 1, processors)));
  std::atomic<int64_t> next{0};
  team.Run([&](int) {
    for (int64_t i = next++; i < n; i = next++) work(i);
  });
}

}  // namespace

Result<std::shared_ptr<KeysValues>> KeysValues::Make(const Source& source, Storage storage, int64_t num_copies) {
  std::shared_ptr<KeysValues> data(new KeysValues(storage, num_copies));
  HEADLANE_RETURN_IF_ERROR(storage == Storage::kCache ? data->FillCache(source) : data->FillTensors(source));
  return data;
}

std::string KeysValues::Key(const AttentionShape& shape, Storage storage, int64_t num_copies) {
  return std::string(shape.model.name) + "/" + std::to_string(shape.num_sequences) + "/" +
         std::to_string(shape.kv_len) + "/" + DTypeName(shape.dtype) + "/" + std::to_string(static_cast<int>(storage)) +
         "/" + std::to_string(num_copies);
}

int64_t KeysValues::bytes_per_copy() const {
  return cache_ ? cache_->usage().used_bytes / num_copies_ : k_bytes_ + v_bytes_;
}

Status KeysValues::FillCache(const Source& source) {
  const AttentionShape& shape = source.shape();
  const ModelShape& model = shape.model;
  KVCacheSpec spec;
  spec.num_layers = num_copies_;
  spec.num_kv_heads = model.num_kv_heads;
  spec.qk_dim = model.qk_dim;
  spec.v_dim = model.v_dim;
  spec.k_dtype = spec.v_dtype = shape.dtype;
  spec.values_in_keys = model.values_in_keys;
  spec.max_sequences = shape.num_sequences;
  const int64_t pages = (shape.kv_len + spec.page_tokens - 1) / spec.page_tokens;
  spec.max_tokens = shape.num_sequences * pages * spec.page_tokens;
  HEADLANE_ASSIGN_OR_RETURN(KVCache cache, KVCache::Create(spec));
  for (int64_t s = 0; s < shape.num_sequences; ++s) {
    HEADLANE_ASSIGN_OR_RETURN(const SequenceId id, cache.CreateSequence());
    HEADLANE_RETURN_IF_ERROR(cache.Reserve(id, shape.kv_len));
    sequences_.push_back(id);
  }
  std::mutex mutex;
  Status failed;
  InParallel(shape.num_sequences * num_copies_, [&](int64_t i) {
    const int64_t s = i / num_copies_, copy = i % num_copies_;
    for (int64_t begin = 0; begin < shape.kv_len; begin += Source::kChunkTokens) {
      const int64_t n = std::min(Source::kChunkTokens, shape.kv_len - begin);
      ConstTensorView v;
      if (!model.values_in_keys) {
        v = TokensHeadsDim(source.Value(copy, s, begin, 0), n, model.num_kv_heads, model.v_dim);
      }
      const Status status =
          cache.Write(sequences_[static_cast<size_t>(s)], copy,
                      TokensHeadsDim(source.Key(copy, s, begin), n, model.num_kv_heads, model.qk_dim), v, begin);
      if (status.ok()) continue;
      const std::lock_guard<std::mutex> lock(mutex);
      failed = status;
      return;
    }
  });
  HEADLANE_RETURN_IF_ERROR(failed);
  for (const SequenceId id : sequences_) HEADLANE_RETURN_IF_ERROR(cache.Commit(id, shape.kv_len));
  cache_.emplace(std::move(cache));
  return OkStatus();
}

Status KeysValues::FillTensors(const Source& source) {
  const AttentionShape& shape = source.shape();
  const ModelShape& model = shape.model;
  const int64_t token_heads_bytes = shape.num_sequences * shape.kv_len * model.num_kv_heads * DTypeBytes(shape.dtype);
  k_bytes_ = token_heads_bytes * model.qk_dim;
  v_bytes_ = model.values_in_keys ? 0 : token_heads_bytes * model.v_dim;
  if (!k_.Allocate(num_copies_ * k_bytes_) || !v_.Allocate(num_copies_ * v_bytes_)) {
    return MakeStatus(StatusCode::kResourceExhausted, "no memory for %lld copies of %lld bytes of keys and values",
                      static_cast<long long>(num_copies_), static_cast<long long>(k_bytes_ + v_bytes_));
  }
  const auto layout = storage_ == Storage::kTokensHeads ? Source::Layout::kTokensHeads : Source::Layout::kHeadsTokens;
  InParallel(num_copies_, [&](int64_t copy) {
    source.CopyKeys(copy, layout, k(copy));
    if (!model.values_in_keys) source.CopyValues(copy, layout, v(copy));
  });
  return OkStatus();
}

}  // namespace headlane::bench
