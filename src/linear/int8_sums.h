// Sums of a layer with activations of 8 bits (LinearPrecision::kInt8): quantises rows block by block, and multiplies.
//
// Separate from tile_linear.cc, which decides who computes what and what becomes of sums: here is what that precision
// needs besides, and nothing that could change a bit but the kernels. Called by tile_linear.cc.
#ifndef HEADLANE_SRC_LINEAR_INT8_SUMS_H_
#define HEADLANE_SRC_LINEAR_INT8_SUMS_H_

#include <cstdint>
#include <span>

#include "headlane/linear.h"
#include "headlane/weight_format.h"
#include "kernels/kernel_api.h"

namespace headlane::internal {

// Rows that are multiplied with a panel at a time, at most; a multiple of what kernels take at once.
inline constexpr int64_t kInt8MaxRows = 40;

// Memory of one thread for as long as it works on one run of a layer: on its stack. Quantised rows stay until others
// are asked for.
class Int8Scratch {
 public:
  // Inputs of a panel, and of the rows that are quantised at a time.
  static constexpr int64_t kMaxPanelInputs = 768;
  static constexpr int64_t kMaxCodes = 12288;

  // Rows [row_begin, row_begin + rows) of x, inputs [k_begin, k_begin + k_len). Requires: rows * k_len <= kMaxCodes.
  const Int8Rows& Quantize(const KernelTable& kernels, const Int8Operand& operand, const LinearOperands& operands,
                           int64_t row_begin, int64_t rows, int64_t k_begin, int64_t k_len);

  // 64-byte aligned, of kMaxPanelInputs.
  uint8_t* panel() { return panel_; }
  static constexpr int64_t kPanelBytes = kMaxPanelInputs / 32 * kInt8PanelBytes;

 private:
  struct Key {
    int64_t row_begin = -1, rows = 0, k_begin = 0, k_len = 0;
    int32_t group = 0, center = 0;
    bool operator==(const Key&) const = default;
  };

  alignas(64) uint8_t panel_[kPanelBytes];
  alignas(64) int8_t codes_[kMaxCodes];
  alignas(64) int32_t pairs_[kMaxCodes / 2];
  alignas(64) Int8Group groups_[kMaxCodes / 16];
  Int8Rows rows_ = {codes_, pairs_, groups_, 0, 0};
  Key key_;
};

// Tiles of one part, and where their sums go.
struct Int8Run {
  WeightFormat format;
  const Int8Kernels* kernels;
  const uint8_t* tiles;
  int64_t tile_bytes;
  int64_t num_tiles;
  int64_t num_features;  // that exist
  float* sums;           // of the first row; of more rows than one num_tiles * 16 are written
};

// sums [rows][pitch] = x * w^T of each run. rows: 1 .. kInt8MaxRows.
void Int8Sums(const KernelTable& kernels, const LinearOperands& operands, int64_t row_begin, int64_t rows,
              int64_t in_features, std::span<const Int8Run> runs, int64_t pitch, Int8Scratch& scratch);

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_LINEAR_INT8_SUMS_H_
