// Which model a saved cache belongs to: a number from what determines its keys and values.
//
// Separate from the model, which knows nothing of saved caches. Called by session_file.cc.
#ifndef HEADLANE_SRC_DECODER_MODEL_IDENTITY_H_
#define HEADLANE_SRC_DECODER_MODEL_IDENTITY_H_

#include <cstdint>

#include "decoder/decoder_impl.h"
#include "headlane/status.h"

namespace headlane::internal {

// Of the shape, the numbers of its norms and rotations, and some rows of every matrix, as f32: the same for the file
// under another name and however the weights stand in memory; another for a model that was trained further, and for
// linear layers, their precision, or targets with bits of their own. Reads some rows of each matrix. Errors:
// ResourceExhausted.
Result<uint64_t> ModelIdentity(const ModelImpl& model) noexcept;

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_DECODER_MODEL_IDENTITY_H_
