// The seam between scalar code and SIMD: plain argument structs and tables of function pointers, one table per SIMD
// target.
//
// A kernel computes a part of a result on the calling thread, allocates nothing and reads no global. It knows tiles,
// rows and lanes; it does not know sequences, pages, masks or heads: those are lowered to pointers and intervals before
// it is called.
//
// K tile: [qk_dim][16], lane = key.   V tile: [stripes][16 keys][16], lane = feature, stripes = ceil(v_dim / 16), the
// last stripe padded with zeros.   Both 64-byte aligned, in f32, f16 or bf16. In bf16 pairs are interleaved, so that a
// vector of 32-bit lanes widens by a shift and a mask: K [ceil(qk_dim / 2)][16][2 features], V [stripes][8][16][2
// keys]. Quantised (int8, fp8, int4): the codes in the order of f32, two in a byte for int4, then the scales
// (base/tile_layout.h); an element is code * scale, which is exact in f32.
#ifndef HEADLANE_SRC_KERNELS_KERNEL_API_H_
#define HEADLANE_SRC_KERNELS_KERNEL_API_H_

#include <cstddef>
#include <cstdint>

#include "base/blocking.h"
#include "headlane/dtype.h"
#include "headlane/weight_format.h"

namespace headlane::internal {

// Scores of one block: s[r][t * 16 + lane] = fma chain over d ascending of q[r][d] * k[d].
struct QkArgs {
  const float* q;  // [rows][q_pitch], already times the scale
  int64_t q_pitch;
  int64_t rows;
  int64_t qk_dim;
  const void* const* k_tiles;  // [num_tiles] K tiles, of the kernel's element type
  int64_t num_tiles;           // 1 .. 8
  float* s;                    // [rows][kBlockKeys]: lanes from num_tiles * 16 on are not written
  bool stream;                 // the tiles come from memory, not from a cache: read them in order of address, and ahead
  const void* next = nullptr;  // optional: what is read after these tiles, most likely
};

// What changes the scores between the products and the softmax, in this order: s = softcap * tanh(s / softcap); s = s +
// bias; s = fma(slope, float(position of the key - position of the row), s).
struct ScoreArgs {
  float* s;  // [rows][kBlockKeys], lanes [0, num_tiles * 16)
  int64_t rows;
  int64_t num_tiles;          // 1 .. 8
  float softcap;              // 0: none
  const float* bias;          // optional [rows][kBlockKeys]
  const float* slopes;        // optional [rows]
  const int64_t* row_offset;  // with slopes: [rows] a reference position minus the row's
  const int32_t* key_offset;  // with slopes: [num_tiles * 16] the key's position minus the reference position
};

// One online-softmax step over one block: masks, new maximum, rescaling of l, weights in place of scores.
struct SoftmaxArgs {
  float* s;  // [rows][kBlockKeys], in: scores, out: weights (0 where hidden) in lanes [0, num_tiles * 16)
  int64_t rows;
  int64_t num_tiles;        // 1 .. 8
  const int32_t* begin;     // [rows] visible lanes are [begin, end), clamped to [0, num_tiles * 16]; begin >= end: none
  const int32_t* end;       // [rows]
  const uint16_t* visible;  // optional, in place of begin and end: [rows][kTilesPerBlock], bit i of a tile = key i
  float* m;                 // [rows] running maximum, -inf while empty
  float* l;                 // [rows][16] running partial sums, lane = key index % 16
  float* c;                 // [rows] out: factor for o, 1 where nothing changed
  uint16_t* live;  // optional [rows][kTilesPerBlock]: bit i of a tile set = key i counts (visible, score not -inf)
};

// o[r][j] = o[r][j] * c[r], then fma chain over keys ascending of w[r][key] * v[key][j].
struct PvArgs {
  const float* w;  // [rows][kBlockKeys]
  int64_t rows;
  const void* const* v_tiles;  // [num_tiles] V tiles
  int64_t num_tiles;           // 1 .. 8
  int64_t num_stripes;
  const float* c;  // [rows]; nullptr: o is not read, it starts at 0
  float* o;        // [rows][o_pitch], o_pitch >= num_stripes * 16, 64-byte aligned rows
  int64_t o_pitch;
  const uint16_t* live;  // optional, as SoftmaxArgs::live: keys whose bit is clear are left out, whatever their v holds
  bool stream;           // as in QkArgs
  const void* next = nullptr;
};

// l = the 16 partial sums by the fixed tree (steps 8, 4, 2, 1), per row.
struct ReduceArgs {
  const float* l16;  // [rows][16]
  int64_t rows;
  float* l;  // [rows]
};

// Folds state b into state a, row by row: m = max, l = fma(lb, cb, la * ca), o = fma(ob, cb, oa * ca). A state with l
// == 0 is empty and is skipped without arithmetic (b copied if only a is empty).
struct FoldArgs {
  int64_t rows;
  int64_t o_width;  // multiple of 16
  float* m_a;       // [rows]
  float* l_a;       // [rows]
  float* o_a;       // [rows][pitch_a]
  int64_t pitch_a;
  const float* m_b;
  const float* l_b;
  const float* o_b;
  int64_t pitch_b;
};

// out = o / l + 0, lse = m + ln(l); an empty state gives 0 and -inf; NaN is stored as 0x7FC00000.
struct FinishArgs {
  int64_t rows;
  int64_t v_dim;
  const float* m;
  const float* l;
  const float* o;  // [rows][o_pitch]
  int64_t o_pitch;
  void* const* out;    // [rows] row addresses
  DType out_dtype;     // rounded to nearest even
  int64_t out_stride;  // elements between features
  float* const* lse;   // [rows] addresses, or nullptr
};

// Rows of 16 keys to one K or V tile of the kernel's element type. Slots outside of [slot_begin, slot_begin + num_keys)
// are left alone; V's padding features of the written slots are set to 0.
struct PackTileArgs {
  const void* rows;    // [num_keys] rows
  DType rows_dtype;    // converted exactly to f32, then to the tile's type, to nearest even
  int64_t row_stride;  // elements between keys
  int64_t dim_stride;  // elements between features
  int64_t dim;         // qk_dim or v_dim
  int64_t num_keys;    // 1 .. 16
  int64_t slot_begin;
  void* tile;
  // out: a value that is not finite was written. Only pack_v sets it.
  bool* non_finite;
};

// y[r][f] (+)= fma chain over k in [0, k_len) ascending of x[r][k] * w[k][f], for f in tiles [0, num_tiles).
struct LinearArgs {
  const float* x;  // [rows][x_pitch]
  int64_t x_pitch;
  int64_t rows;
  int64_t k_len;
  const float* w;  // tile t at w + t * w_tile_stride: [k_len][16]
  int64_t w_tile_stride;
  int64_t num_tiles;
  bool accumulate;  // start from y instead of 0
  float* y;         // [rows][y_pitch]
  int64_t y_pitch;
  int64_t num_features;  // <= num_tiles * 16: features that exist; nothing is written behind them
};

// As LinearArgs for few rows and weights as they are stored (base/weight_tile.h): y[r][f] = fma chain over all inputs.
struct WeightArgs {
  const float* x;  // [rows][x_pitch]
  int64_t x_pitch;
  int64_t rows;      // 1 .. kMaxWeightRows
  int64_t k_len;     // inputs: all that a tile has
  const uint8_t* w;  // tile t at w + t * tile_bytes, 64-byte aligned
  int64_t tile_bytes;
  int64_t num_tiles;
  float* y;  // [rows][y_pitch]
  int64_t y_pitch;
  int64_t num_features;  // <= num_tiles * 16: nothing is written behind them
};
inline constexpr int64_t kMaxWeightRows = 8;

// Weights of one tile as f32 in the order of LinearArgs::w.
struct ExpandArgs {
  const uint8_t* tile;
  int64_t k_begin;  // whole blocks; of BF16 pairs
  int64_t k_end;    // the same, or the last input
  float* out;       // [k_end - k_begin][16], 64-byte aligned
};

// Activations in 8 bits (headlane/linear.h, LinearPrecision::kInt8). A group is as many inputs as share a scale of the
// weights, 32 or 16.
struct Int8Group {
  float scale;    // of the block of 32 that the group is of
  float sum;      // scale * sum of the codes of that block
  int32_t start;  // what the integer sums of the group begin with, in each lane: see weight_int8-inl.h
  int32_t unused;
};
struct Int8Rows {
  int8_t* codes;        // [rows][pitch]
  int32_t* pairs;       // [rows][pitch / 4][2]: the codes of four inputs in 16 bits, the even two and the odd two
  Int8Group* groups;    // [rows][group_pitch]
  int64_t pitch;        // a multiple of 32
  int64_t group_pitch;  // groups
};

// What one format of weights needs of activations.
struct Int8Operand {
  int32_t group;   // inputs: 32 or 16
  int32_t center;  // what the kernels' codes are above those of the sum's definition
  bool pairs;      // whether Int8Rows::pairs are read
};

struct QuantizeArgs {
  const float* x;  // [rows][x_pitch]
  int64_t x_pitch;
  int64_t rows;
  int64_t k_len;  // a multiple of 32
  Int8Operand operand;
  Int8Rows to;
};

// y[r][f] (+)= the sums of a few groups of inputs, as LinearPrecision::kInt8 defines them.
struct Int8Args {
  Int8Rows x;  // from the first group on
  int64_t rows;
  int64_t num_groups;
  const uint8_t* w;  // tiles from the first group's block on, tile_bytes apart; or a panel, of one tile
  int64_t tile_bytes;
  int64_t num_tiles;
  bool accumulate;  // start from y instead of 0
  float* y;         // [rows][y_pitch]
  int64_t y_pitch;
  int64_t num_features;  // with tiles: nothing is written behind them
};

// A K or V tile widened to f32: same order, exact values. Many rows use it in place of widening once per group of rows.
struct WidenTileArgs {
  const void* tile;
  int64_t dim;  // qk_dim, or v_dim (whole stripes are widened)
  float* out;   // a tile of f32
};

// A K tile of f32 to the V tile of its first v_dim features (latent attention): 16 x 16 blocks transposed.
struct KToVTileArgs {
  const float* k_tile;  // [qk_dim][16]
  int64_t v_dim;        // <= qk_dim
  float* v_tile;        // [stripes][16][16], padding features 0
  bool* non_finite;     // as in PackTileArgs
};

// As QkArgs, from rows of keys as they lie in a plain tensor, for few rows of queries: tiles are made in registers, or
// two at a time in L1. Several heads go together, a tile of 16 keys of each and then the next tile: a tensor
// [tokens][heads][dim] is read fastest so, in order of address. num_keys and s (from lane t * 16 on) may name a part of
// a block. Rows of queries, scores and what else is per row: those of the first head, then those of the next.
struct QkRowsArgs {
  const float* q;  // [num_heads * rows][q_pitch], already times the scale
  int64_t q_pitch;
  int64_t rows;  // of each head
  int64_t qk_dim;
  const void* k;  // [num_keys] rows of dense features, of the first head
  DType k_dtype;  // converted exactly
  int64_t num_heads;
  int64_t row_stride;   // elements between keys
  int64_t head_stride;  // elements between heads
  int64_t num_keys;     // 1 .. 128
  int64_t ahead;        // the tile that comes so many tiles later, of whichever head, is prefetched; 0: none
  const void* next;     // optional: what will be read after this call, in rows of the same strides; else as these go on
  float* scratch;       // 2 tiles of f32
  float* s;  // [num_heads * rows][kBlockKeys]: lanes of keys that do not exist in the last tile are undefined
};

// As PvArgs, from rows of values, without a copy of them, and in the order of QkRowsArgs.
struct PvRowsArgs {
  const float* w;  // [num_heads * rows][kBlockKeys]
  int64_t rows;    // of each head
  const void* v;   // [num_keys] rows of dense features, of the first head
  DType v_dtype;
  int64_t num_heads;
  int64_t row_stride;
  int64_t head_stride;
  int64_t num_keys;  // 1 .. 128
  int64_t ahead;     // as in QkRowsArgs, and next
  const void* next;
  int64_t v_dim;   // a multiple of 16
  const float* c;  // [num_heads * rows]; nullptr: o is not read, it starts at 0
  float* o;        // [num_heads * rows][o_pitch], o_pitch >= v_dim, 64-byte aligned rows
  int64_t o_pitch;
  const uint16_t* live;  // [num_heads * rows][kTilesPerBlock] as SoftmaxArgs::live, required: where a key's bit is
                         // clear it is left out, whatever its v holds
};

// What each translation unit says it was compiled for (`compiled_for`) is known in the namespace of a target only, and
// so tells a test that the target which was asked for is the one that runs; or AVX3, whose code it shares
// (kernels/targets.h).

// What the micro-kernel holds in registers at a time: rows x cols vectors of so many lanes.
struct RegisterBlock {
  int64_t rows;
  int64_t cols;
  int64_t lanes;
  int64_t used_registers;  // with the operands
  int64_t num_registers;   // that the target has
};

// Everything of one element type of K and V. `qk` and `pv` are for any number of rows.
struct KvKernels {
  void (*qk)(const QkArgs&) noexcept;
  void (*pv)(const PvArgs&) noexcept;
  void (*pack_k)(const PackTileArgs&) noexcept;
  void (*pack_v)(const PackTileArgs&) noexcept;
  void (*widen_k)(const WidenTileArgs&) noexcept;  // nullptr for f32
  void (*widen_v)(const WidenTileArgs&) noexcept;
  const char* compiled_for;
  // As KernelTable::register_block, where `qk` and `pv` have blocks of their own.
  RegisterBlock (*register_block)(int64_t rows) noexcept = nullptr;
};

struct SoftmaxKernels {
  void (*scores)(const ScoreArgs&) noexcept;
  void (*softmax)(const SoftmaxArgs&) noexcept;
  void (*reduce)(const ReduceArgs&) noexcept;
  void (*fold)(const FoldArgs&) noexcept;
  void (*finish)(const FinishArgs&) noexcept;
  // y[i] = f(x[i]) over arrays of any length and alignment; exp_nonpositive for x <= 0 or NaN.
  void (*exp_nonpositive)(const float* x, int64_t n, float* y) noexcept;
  void (*exp)(const float* x, int64_t n, float* y) noexcept;
  void (*log)(const float* x, int64_t n, float* y) noexcept;
  void (*tanh)(const float* x, int64_t n, float* y) noexcept;
  const char* compiled_for;
};

struct ElementwiseKernels {
  void (*rms_norm)(const float* x, const float* weight, float epsilon, int64_t n, float* y) noexcept;
  void (*silu_mul)(const float* gate, const float* up, int64_t n, float* y) noexcept;
  void (*add)(const float* x, int64_t n, float* y) noexcept;  // y += x
  // y = float(x) * scale, x of any element type and stride (in elements); y dense. scale 1 changes no bit.
  void (*scale)(const void* x, DType dtype, int64_t x_stride, float scale, int64_t n, float* y) noexcept;
  // y = x, y of any element type and stride (in elements), rounded to nearest even; x dense.
  void (*store)(const float* x, int64_t n, DType dtype, int64_t y_stride, void* y) noexcept;
  float (*log_sum_exp)(const float* x, int64_t n) noexcept;
  // Rotates num_pairs pairs: even[i * stride], odd[i * stride] in place.
  void (*rope)(float* even, float* odd, int64_t stride, const float* cos, const float* sin, int64_t num_pairs) noexcept;
  const char* compiled_for;
};

// Everything of one format of weights.
struct WeightKernels {
  void (*few_rows)(const WeightArgs&) noexcept;
  void (*expand)(const ExpandArgs&) noexcept;  // nullptr for F32, whose tiles are panels
};

// Everything of one block-quantised format with activations of 8 bits; all nullptr for the others. Tiles are laid out
// for it (base/weight_tile.h).
struct Int8Kernels {
  Int8Operand operand;
  void (*one_row)(const Int8Args&) noexcept;  // from tiles
  // A tile to a panel: codes as bytes (or 16 bits), scales as f32. `out` has kInt8PanelBytes for each 32 inputs.
  void (*expand)(const ExpandArgs&) noexcept;
  void (*rows)(const Int8Args&) noexcept;  // any number of rows, from a panel; sums are 16 features wide
};
inline constexpr int64_t kInt8PanelBytes = 64 + 64 + 1024;

// Everything of one target. Plans and layers keep a pointer to the table that was active when they were made.
struct KernelTable {
  const char* target;
  const char* compiled_for[kNumDTypes + 13];  // of all translation units: kv by DType, rows, softmax,
                                              // elementwise, linear, hadamard, weights, weights with int8
  int vector_bytes;                           // of this target on this machine
  KvKernels kv[kNumDTypes];                   // by DType of the stored keys or values
  void (*k_to_v_tile)(const KToVTileArgs&) noexcept;
  void (*qk_rows)(const QkRowsArgs&) noexcept;
  void (*pv_rows)(const PvRowsArgs&) noexcept;
  SoftmaxKernels softmax;
  ElementwiseKernels elementwise;
  void (*linear_f32)(const LinearArgs&) noexcept;
  WeightKernels weights[kNumWeightFormats];  // by WeightFormat
  Int8Kernels int8[kNumWeightFormats];       // by WeightFormat
  void (*quantize)(const QuantizeArgs&) noexcept;
  // The largest block of a call with so many rows, at least 1; for plans to be explained.
  RegisterBlock (*register_block)(int64_t rows) noexcept;
  // x[0, n) in place, by the normalised Walsh-Hadamard transform in blocks (hadamard.cc). Its own inverse.
  void (*hadamard)(float* x, int64_t n) noexcept;
};

// The table of the active target; chosen on first use. Never null. Threads: any.
const KernelTable& ActiveKernels() noexcept;

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_KERNELS_KERNEL_API_H_
