// A session's tokens in a file: which model and which ids, and behind that what the cache saves of itself.
//
// Separate from the session, which decides when, and from the cache's format (kv_file.h), which knows no models. Called
// by decoder_session.cc.
//
// Format, version 1, in the machine's byte order: "HLTOKEN\n", uint32 0x01020304, uint32 version, uint64 identity of
// the model (model_identity.h), int64 bytes of its file, int64 number of tokens, int32 ids, uint64 hash of all before;
// then one sequence of as many tokens as RestoreSequences reads it, up to the end.
#ifndef HEADLANE_SRC_DECODER_SESSION_FILE_H_
#define HEADLANE_SRC_DECODER_SESSION_FILE_H_

#include <cstdint>
#include <span>
#include <string>

#include "decoder/decoder_impl.h"
#include "headlane/kv_cache.h"
#include "headlane/status.h"

namespace headlane::internal {

struct LoadedSequence {
  SequenceId id;       // none when length is 0
  int64_t length = 0;  // tokens that agree with those asked for
};

// As Session::SaveCache and LoadCache; the cache has room for one more sequence, or is as before. All throw
// std::bad_alloc.
Status SaveSequence(const ModelImpl& model, const KVCache& cache, SequenceId sequence, std::span<const int32_t> ids,
                    const std::string& path);
Result<LoadedSequence> LoadSequence(const ModelImpl& model, KVCache& cache, std::span<const int32_t> ids,
                                    const std::string& path);
Result<int64_t> SavedLength(const std::string& path);

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_DECODER_SESSION_FILE_H_
