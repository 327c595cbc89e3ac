// Linear layers: y = x * W^T, with weights that stay in memory as they are stored.
//
// A layer is one matrix or several side by side (parts), each in a format of its own: q, k and v as one pass over
// memory. Weights are repacked once, into as many bytes as they had, and expanded in registers. With kTile each output
// is one chain of FMAs over in_features, on the weights as weight_format.h defines them: the same bits for any rows,
// threads, parts, formats of equal weights, and SIMD targets with FMA.
//
// RMS-norm's scale is not part of a layer: it multiplies x and rounds before the products, and moving it behind the sum
// would change bits. Norm the rows before; a row is so short that each worker of a team can do it for itself.
#ifndef HEADLANE_LINEAR_H_
#define HEADLANE_LINEAR_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "headlane/executor.h"
#include "headlane/status.h"
#include "headlane/weight_format.h"

namespace headlane {

enum class LinearBackend : int32_t {
  // Our own cache-blocked GEMM: each output is one chain of FMAs over in_features, the same bits for any rows and
  // threads.
  kTile = 0,
  // oneDNN's matmul on f32 weights: no promise of bits. Unsupported in a build without oneDNN.
  kOneDnn,
  // The same, with weights and inputs rounded to bf16 and sums in f32. Unsupported where the processor has no
  // instructions for that (AVX512_BF16, AMX).
  kOneDnnBf16,
};

// What block-quantised weights are multiplied with. F32, F16 and BF16 weights always take f32 activations.
enum class LinearPrecision : int32_t {
  kExact = 0,
  // Activations of 8 bits, and integer dot products: faster, and less accurate. Never chosen unless asked for. kTile
  // only. The order of operations, which gives the same bits for any rows, threads, parts and SIMD targets with FMA:
  //
  //   x of 32 inputs:  a = the largest |x|;  codes c = x * (127 / a) to nearest even;  scale s = a / 127
  //                    a < 2^-100: codes and scale are 0.  A value that is not finite: codes 0, scale NaN
  //   y = 0; for the groups of weights that share a scale w (32 inputs; 16 of Q6_K), in ascending order:
  //     y = fma(float(sum of c * (q - z)), w * s, y)
  //     y = fma(fma(z, w, m), s * float(sum of c), y)       formats with a minimum m only
  //
  // q: the codes of the weights and z their middle: 8 of 4 bits, 16 of 5, 32 of 6, 0 of Q8_0's, which have signs. w = d
  // (d * s of K formats), m = m (-(dmin * t)), as in weight_format.h. Integer sums are exact; all else rounds to f32.
  kInt8,
};

// "exact", "int8".
const char* LinearPrecisionName(LinearPrecision precision) noexcept;

// "tile", "onednn", "onednn-bf16".
const char* LinearBackendName(LinearBackend backend) noexcept;
// False for oneDNN's in a build without oneDNN.
bool HasLinearBackend(LinearBackend backend) noexcept;

// Hands out the rows of a weight matrix while a layer packs them: writes in_features floats of output feature `row` to
// `out`. May be called from several threads at once, each row once, in any order.
struct WeightRows {
  const void* context = nullptr;
  Status (*read)(const void* context, int64_t row, float* out) noexcept = nullptr;
};

// The rows of a part as they are stored, StoredRowBytes(format, in_features) each. Either `data`, or `read`.
struct StoredRows {
  const void* data = nullptr;  // any alignment; used during Create only
  int64_t data_bytes = 0;      // at least those of all rows
  int64_t row_stride = 0;      // bytes from row to row; 0: one behind the other

  // Writes the bytes of `row` to `out`, which is 8-byte aligned. May be called from several threads at once, each row
  // once, in any order.
  const void* context = nullptr;
  Status (*read)(const void* context, int64_t row, void* out) noexcept = nullptr;
};

struct LinearPart {
  int64_t out_features = 0;
  WeightFormat format = WeightFormat::kF32;
  StoredRows rows;              // not used by CreateFromPacked
  const float* bias = nullptr;  // optional, [out_features]; copied
};

// What becomes of the sums s (with the bias added, if there is one).
enum class LinearOutput : int32_t {
  kStore = 0,  // y = s; the parts' features one behind the other
  kAdd,        // y = y + s, as AddRows of the residual stream
  kSwiGlu,     // y = silu(s of part 0) * (s of part 1), as SiluMul (ops.h); two parts of equal out_features
};

struct LinearSpec {
  LinearBackend backend = LinearBackend::kTile;
  int64_t in_features = 0;
  std::span<const LinearPart> parts;  // at least one
  LinearOutput output = LinearOutput::kStore;
  LinearPrecision precision = LinearPrecision::kExact;
};

// Operands of one run: x [rows][in_features], y [rows][out_features]; strides in elements. y must not overlap x.
struct LinearOperands {
  const float* x = nullptr;
  int64_t x_stride = 0;
  int64_t rows = 0;
  float* y = nullptr;
  int64_t y_stride = 0;
  // Linear::ScratchBytes(rows) at a 64-byte aligned address, or nothing: the run then allocates what it needs.
  std::span<std::byte> scratch = {};
};

namespace internal {
class LinearImpl;
}

class Linear {
 public:
  // Packs the weights, on the executor's threads. Errors: InvalidArgument (sizes, missing rows or rows that are shorter
  // than they must be, in_features no whole number of a format's blocks), Unsupported (format, backend),
  // ResourceExhausted, and whatever a part's `read` returns. Nothing is allocated before everything is checked. kInt8
  // is Unsupported by kOneDnn.
  static Result<Linear> Create(const LinearSpec& spec, Executor& executor) noexcept;

  // One part of f32 rows. Requires: 0 < in_features, 0 < out_features.
  static Result<Linear> Create(LinearBackend backend, int64_t out_features, int64_t in_features, const WeightRows& rows,
                               Executor& executor) noexcept;

  // A layer over bytes that packed() of a layer with the same spec gave, kept elsewhere: a mapped file. They are not
  // copied and must outlive the layer, at a 64-byte aligned address. kTile only. Errors: InvalidArgument (another size
  // or alignment), as Create. What the bytes hold is not checked: any bytes are weights.
  static Result<Linear> CreateFromPacked(const LinearSpec& spec, std::span<const std::byte> packed) noexcept;

  // The same as Create, with weights that `tiles`, a layer of kTile with the same parts, has already: spec.parts' rows
  // are not looked at. For a layer that runs on two backends. Errors: as Create, InvalidArgument (other sizes).
  static Result<Linear> CreateFromTiles(const LinearSpec& spec, const Linear& tiles, Executor& executor) noexcept;

  // What packed() of such a layer will have; checks the spec as Create does, but for the rows.
  static Result<int64_t> PackedBytes(const LinearSpec& spec) noexcept;
  // Names the layout: version, formats, sizes and precision. Packed bytes are good for a spec with the same number
  // only.
  static uint64_t PackedLayout(const LinearSpec& spec) noexcept;

  Linear(Linear&&) noexcept;
  Linear& operator=(Linear&&) noexcept;
  ~Linear();

  // Errors: InvalidArgument (null data, strides shorter than a row, negative rows, scratch too small or not aligned),
  // Internal (oneDNN failed), Unsupported (oneDNN in a child after fork(), in a build without OpenMP). Allocation: none
  // with kTile, which takes up to 128 KiB of each worker's stack. Threads: the executor's; the same layer may run at
  // the same time on kTile.
  Status Run(const float* x, int64_t x_stride, int64_t rows, float* y, int64_t y_stride,
             Executor& executor) const noexcept;
  Status Run(const LinearOperands& operands, Executor& executor) const noexcept;

  // The same for a team of threads that is there already, with kTile: a run is NumItems(rows, num_workers) items, which
  // may be done by any threads in any order, each once, and are done when all calls have returned (the caller's
  // barrier). num_workers is how finely the run is cut; the bits do not depend on it. RunWorker takes items from
  // `next`, which must be 0 before the first worker, until none is left. Both run in the default floating-point
  // environment. Errors: as Run; Unsupported (oneDNN's), OutOfRange (items that do not exist).
  int64_t NumItems(int64_t rows, int num_workers) const noexcept;
  Status RunItems(const LinearOperands& operands, int num_workers, int64_t begin, int64_t end) const noexcept;
  Status RunWorker(const LinearOperands& operands, int num_workers, std::atomic<int64_t>& next) const noexcept;

  // Writes the in_features weights of a feature, counted over the parts, exactly: the rows of an embedding that is the
  // output layer too. kTile only. Errors: OutOfRange, Unsupported. Allocation: none. Threads: any.
  Status ReadWeights(int64_t feature, float* out) const noexcept;

  // What LinearOperands::scratch must have for so many rows; 0: nothing (kTile). Saturates at INT64_MAX.
  int64_t ScratchBytes(int64_t rows) const noexcept;

  int64_t in_features() const noexcept;
  // Of y: of one part for kSwiGlu, else of all.
  int64_t out_features() const noexcept;
  LinearBackend backend() const noexcept;
  // Bytes of weights that one run reads from memory.
  size_t weight_bytes() const noexcept;
  // The weights, as they may be stored; empty for oneDNN's. Valid as long as the layer (and where it is moved to).
  std::span<const std::byte> packed() const noexcept;
  LinearPrecision precision() const noexcept;
  // The implementation in a few words, for tables: "tile AVX2", "tile int8 AVX2", "onednn brgemm:avx2", ...
  const char* implementation() const noexcept;

 private:
  explicit Linear(std::unique_ptr<internal::LinearImpl> impl) noexcept;
  std::unique_ptr<internal::LinearImpl> impl_;
};

}  // namespace headlane

#endif  // HEADLANE_LINEAR_H_
