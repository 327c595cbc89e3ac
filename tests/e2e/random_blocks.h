// Tensors of any stored type with random codes: what quantised files look like, without quantising anything.
//
// Separate from tiny_model, which is about shapes and the forward pass. Sizes of blocks and places of scales are
// written down here again; what the weights are comes from the file's reader, which has vectors of its own.
#ifndef HEADLANE_TESTS_E2E_RANDOM_BLOCKS_H_
#define HEADLANE_TESTS_E2E_RANDOM_BLOCKS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "decoder/dequant.h"
#include "e2e/tiny_model.h"

namespace headlane::testing {

// The types that a model may have.
inline constexpr TensorType kStoredTypes[] = {
    TensorType::kF32,  TensorType::kF16,  TensorType::kBF16, TensorType::kQ8_0, TensorType::kQ4_0, TensorType::kQ4_1,
    TensorType::kQ5_0, TensorType::kQ5_1, TensorType::kQ4_K, TensorType::kQ5_K, TensorType::kQ6_K};

// Gives the tensor's rows random blocks of `type`, weights of about 1 / sqrt(row_len), and their values as the reader
// expands them. Requires: a row is a whole number of blocks.
void StoreAs(TensorType type, uint64_t seed, TinyModel::Tensor& tensor);

// A model whose layers suit every type, with features that don't fill the last tile.
TinyModel StoredModel(TensorType type, uint64_t seed);
// The same with another type for each matrix, as files have whose makers weigh one layer against another.
TinyModel MixedModel(uint64_t seed);

}  // namespace headlane::testing

#endif  // HEADLANE_TESTS_E2E_RANDOM_BLOCKS_H_
