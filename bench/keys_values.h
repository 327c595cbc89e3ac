// Keys and values of all copies of a case, in one of the forms that implementations read.
//
// Separate from the runners so that several of them, and several lengths of queries, can share what takes long to fill.
#ifndef HEADLANE_BENCH_KEYS_VALUES_H_
#define HEADLANE_BENCH_KEYS_VALUES_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/memory_block.h"
#include "bench/source.h"
#include "headlane/kv_cache.h"
#include "headlane/status.h"

namespace headlane::bench {

enum class Storage {
  kCache,        // the library's, each copy a layer
  kTokensHeads,  // plain tensors [num_sequences][kv_len][num_kv_heads][dim]
  kHeadsTokens,  // plain tensors [num_sequences][num_kv_heads][kv_len][dim]
};

class KeysValues {
 public:
  // Errors: ResourceExhausted, and those of the cache.
  static Result<std::shared_ptr<KeysValues>> Make(const Source& source, Storage storage, int64_t num_copies);
  // The same for sources whose keys and values are the same, whatever the queries.
  static std::string Key(const AttentionShape& shape, Storage storage, int64_t num_copies);

  Storage storage() const { return storage_; }
  int64_t num_copies() const { return num_copies_; }
  // Of one copy, in whole pages where there are pages.
  int64_t bytes_per_copy() const;

  // kCache only.
  const KVCache& cache() const { return *cache_; }
  const std::vector<SequenceId>& sequences() const { return sequences_; }

  // The others only. Elements of the source's type; with latent attention v is k.
  void* k(int64_t copy) { return k_.bytes_at(copy * k_bytes_); }
  void* v(int64_t copy) { return v_bytes_ == 0 ? k(copy) : v_.bytes_at(copy * v_bytes_); }

 private:
  KeysValues(Storage storage, int64_t num_copies) : storage_(storage), num_copies_(num_copies) {}
  Status FillCache(const Source& source);
  Status FillTensors(const Source& source);

  Storage storage_;
  int64_t num_copies_;
  std::optional<KVCache> cache_;
  std::vector<SequenceId> sequences_;
  MemoryBlock k_, v_;
  int64_t k_bytes_ = 0;  // of one copy
  int64_t v_bytes_ = 0;
};

}  // namespace headlane::bench

#endif  // HEADLANE_BENCH_KEYS_VALUES_H_
