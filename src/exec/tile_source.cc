#include "exec/tile_source.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/kernel_api.h"
#include "kv/kv_cache_impl.h"
#include "kv/kv_pages_impl.h"

namespace headlane::internal {
namespace {

const KvKernels& KernelsFor(const KernelTable& kernels, DType dtype) { return kernels.kv[static_cast<int>(dtype)]; }

// Takes the lowest set bit off.
int TakeBit(uint32_t* bits) {
  const int bit = std::countr_zero(*bits);
  *bits &= *bits - 1;
  return bit;
}

}  // namespace

// First row of a head in a tensor. Without features there is no memory, and no address of it is formed.
TileSource::Rows TileSource::RowsOf(const ConstTensorView& view, int64_t batch, int64_t first_token, int64_t head) {
  if (view.dim == 0 || view.data == nullptr) return {};
  const int64_t bytes = DTypeBytes(view.dtype);
  const int64_t first = batch * view.batch_stride + first_token * view.token_stride + head * view.head_stride;
  return {static_cast<const std::byte*>(view.data) + first * bytes,
          view.dtype,
          view.token_stride,
          view.dim_stride,
          view.token_stride * bytes,
          view.head_stride,
          view.batch_stride * bytes};
}

TileSource::TileSource(const RunContext& run, const RowBlock& block, const Slot& slot)
    : from_cache_(run.plan.problem().from_cache),
      values_in_keys_(run.plan.problem().values_in_keys),
      kernels_(run.plan.kernels()),
      k_kernels_(&KernelsFor(kernels_, DType::kF32)),
      v_kernels_(k_kernels_),
      qk_dim_(run.plan.problem().qk_dim),
      v_dim_(run.plan.problem().v_dim),
      k_tiles_(slot.k_tiles),
      v_tiles_(slot.v_tiles),
      k_tile_size_(kTileKeys * qk_dim_ * static_cast<int64_t>(sizeof(float))),
      v_tile_size_(kTileKeys * run.plan.problem().o_pitch * static_cast<int64_t>(sizeof(float))) {
  const SequenceSpec& sequence = run.plan.sequences()[static_cast<size_t>(block.sequence)];
  kv_len_ = sequence.kv_len;
  if (run.plan.problem().keys_in != KeysIn::kTensors) {
    pages_ = run.plan.PagesOf(block.sequence);
    page_tokens_ = run.plan.page_tokens();
    tiles_per_page_ = page_tokens_ / kTileKeys;
  }
  switch (run.plan.problem().keys_in) {
    case KeysIn::kCache:
      InitCache(run, block);
      InitTiles(run, block);
      break;
    case KeysIn::kTilePages:
      InitTilePages(run, block);
      InitTiles(run, block);
      break;
    case KeysIn::kTensors:
      InitTensors(run, sequence, block);
      InitRows(block);
      break;
    case KeysIn::kRowPages:
      InitRowPages(run, block);
      InitRows(block);
      break;
  }
}

void TileSource::InitCache(const RunContext& run, const RowBlock& block) {
  const KVCacheImpl& cache = run.args.cache->impl();
  const KVAddressing& at = cache.addressing();
  k_base_ = at.KTile(run.args.layer, 0, block.kv_head, 0);
  v_base_ = at.VTile(run.args.layer, 0, block.kv_head, 0);
  page_stride_ = at.page_stride;
  flags_base_ = cache.flags().Tiles(run.args.layer, 0, block.kv_head);
  flags_page_stride_ = cache.flags().page_stride;
  k_tile_bytes_ = at.k_tile_bytes;
  v_tile_bytes_ = at.v_tile_bytes;
}

void TileSource::InitTilePages(const RunContext& run, const RowBlock& block) {
  const KVPagesImpl& pages = run.args.pages->impl();
  const KVPageLayout& layout = pages.layout();
  const std::byte* const first = static_cast<const std::byte*>(pages.layer(run.args.layer).tiles);
  k_base_ = first + block.kv_head * layout.head_bytes;
  v_base_ = k_base_ + layout.v_offset;
  page_stride_ = pages.page_stride();
  flags_base_ = reinterpret_cast<const uint8_t*>(first + layout.marks_offset) + block.kv_head * tiles_per_page_;
  flags_page_stride_ = page_stride_;
  k_tile_bytes_ = layout.k_tile_bytes;
  v_tile_bytes_ = layout.v_tile_bytes;
  // Nobody has cleared the caller's memory.
  if (kv_len_ % kTileKeys != 0) unsure_tile_ = kv_len_ / kTileKeys;
}

void TileSource::InitTiles(const RunContext& run, const RowBlock& block) {
  const Problem& problem = run.plan.problem();
  tile_bytes_ = k_tile_bytes_ + (values_in_keys_ ? 0 : v_tile_bytes_);
  k_stored_ = &KernelsFor(kernels_, problem.k_dtype);
  v_stored_ = &KernelsFor(kernels_, problem.v_dtype);
  // Few rows widen on the way to the registers; for many, widening once and storing is less work. Values in keys are
  // transposed from tiles of f32.
  // Codes with scales cost more to widen than halves, so fewer rows are few.
  const auto widens = [&](DType dtype) {
    if (dtype == DType::kF32) return false;
    return !block.decode() || values_in_keys_ || (IsQuantized(dtype) && block.sub_rows > kMaxQuantizedRows);
  };
  make_k_ = widens(problem.k_dtype);
  make_v_ = values_in_keys_ || widens(problem.v_dtype);
  if (!make_k_) k_kernels_ = k_stored_;
  if (!make_v_) v_kernels_ = v_stored_;
}

void TileSource::InitTensors(const RunContext& run, const SequenceSpec& sequence, const RowBlock& block) {
  k_rows_ = RowsOf(run.args.k, sequence.batch, sequence.kv_begin, block.kv_head);
  if (!values_in_keys_) v_rows_ = RowsOf(run.args.v, sequence.batch, sequence.kv_begin, block.kv_head);
}

void TileSource::InitRowPages(const RunContext& run, const RowBlock& block) {
  const KVLayerPages& layer = run.args.pages->impl().layer(run.args.layer);
  k_rows_ = RowsOf(layer.k, 0, 0, block.kv_head);
  if (!values_in_keys_) v_rows_ = RowsOf(layer.v, 0, 0, block.kv_head);
}

void TileSource::InitRows(const RowBlock& block) {
  make_k_ = make_v_ = true;
  // A tile that spans pages has no rows at one stride.
  const bool whole_tiles = pages_ == nullptr || page_tokens_ % kTileKeys == 0;
  if (block.decode() && block.head_rows() <= kInPlaceRows && !values_in_keys_ && whole_tiles) {
    k_in_place_ = qk_dim_ > 0 && k_rows_.dim_stride == 1;
    v_in_place_ = v_dim_ > 0 && v_dim_ % kTileKeys == 0 && v_rows_.dim_stride == 1;
  }
  if (block.num_heads > 1) {
    k_first_ = k_rows_.data;
    v_first_ = v_rows_.data;
    heads_together_ = k_in_place_ && v_in_place_ && k_rows_.head_stride < k_rows_.row_stride &&
                      v_rows_.head_stride < v_rows_.row_stride;
  }
  tile_bytes_ =
      kTileKeys * (qk_dim_ * DTypeBytes(k_rows_.dtype) + (values_in_keys_ ? 0 : v_dim_ * DTypeBytes(v_rows_.dtype)));
}

void TileSource::Load(int64_t block, uint32_t tile_bits, BlockTiles* tiles) const {
  tiles->non_finite = 0;
  if (from_cache_) {
    Find(block, tile_bits, tiles);
  } else {
    Pack(block, tile_bits, tiles);
  }
  if (values_in_keys_ && v_dim_ > 0) MakeValuesOfKeys(tile_bits, tiles);
}

void TileSource::Find(int64_t block, uint32_t tile_bits, BlockTiles* tiles) const {
  while (tile_bits != 0) {
    const int t = TakeBit(&tile_bits);
    const int64_t tile = block * kTilesPerBlock + t;
    const int64_t page = pages_[tile / tiles_per_page_];
    const int64_t in_page = tile % tiles_per_page_;
    const std::byte* const k = k_base_ + page * page_stride_ + in_page * k_tile_bytes_;
    const std::byte* const v = v_base_ + page * page_stride_ + in_page * v_tile_bytes_;
    const bool unsure = flags_base_[page * flags_page_stride_ + in_page] != 0 || tile == unsure_tile_;
    tiles->non_finite |= static_cast<uint32_t>(unsure) << t;
    tiles->k[t] = k;
    tiles->v[t] = v;
    if (make_k_) {
      std::byte* const made = k_tiles_ + t * k_tile_size_;
      if (qk_dim_ > 0) k_stored_->widen_k({.tile = k, .dim = qk_dim_, .out = reinterpret_cast<float*>(made)});
      tiles->k[t] = made;
    }
    if (make_v_ && !values_in_keys_) {
      std::byte* const made = v_tiles_ + t * v_tile_size_;
      if (v_dim_ > 0) v_stored_->widen_v({.tile = v, .dim = v_dim_, .out = reinterpret_cast<float*>(made)});
      tiles->v[t] = made;
    }
  }
}

// Whether all slots of the tile that begins with `key` get a row.
bool TileSource::IsWhole(int64_t key, int64_t num_keys) const {
  if (num_keys < kTileKeys) return false;
  // A tile in several pages may miss some, whose keys no row sees.
  return pages_ == nullptr || page_tokens_ % kTileKeys == 0 ||
         std::all_of(pages_ + key / page_tokens_, pages_ + (key + num_keys - 1) / page_tokens_ + 1,
                     [](int32_t page) { return page >= 0; });
}

// Calls f(first key, keys, slot of the first) for parts of a tile's keys whose rows follow each other.
template <typename F>
void TileSource::ForEachPiece(int64_t key, int64_t num_keys, const F& f) const {
  if (pages_ == nullptr) return f(key, num_keys, int64_t{0});
  for (int64_t i = 0; i < num_keys;) {
    const int64_t n = std::min(num_keys - i, page_tokens_ - (key + i) % page_tokens_);
    if (pages_[(key + i) / page_tokens_] >= 0) f(key + i, n, i);
    i += n;
  }
}

void TileSource::PackKeys(int64_t key, int64_t num_keys, std::byte* tile) const {
  if (qk_dim_ == 0) return;
  PackTileArgs pack{};
  pack.rows_dtype = k_rows_.dtype;
  pack.row_stride = k_rows_.row_stride;
  pack.dim_stride = k_rows_.dim_stride;
  pack.dim = qk_dim_;
  pack.tile = tile;
  ForEachPiece(key, num_keys, [&](int64_t first, int64_t n, int64_t slot) {
    pack.rows = RowAt(k_rows_, first);
    pack.num_keys = n;
    pack.slot_begin = slot;
    k_kernels_->pack_k(pack);
  });
}

// Whether something that is not finite is among them.
bool TileSource::PackValues(int64_t key, int64_t num_keys, std::byte* tile) const {
  if (v_dim_ == 0) return false;
  bool non_finite = false;
  PackTileArgs pack{};
  pack.rows_dtype = v_rows_.dtype;
  pack.row_stride = v_rows_.row_stride;
  pack.dim_stride = v_rows_.dim_stride;
  pack.dim = v_dim_;
  pack.tile = tile;
  ForEachPiece(key, num_keys, [&](int64_t first, int64_t n, int64_t slot) {
    bool in_piece = false;
    pack.rows = RowAt(v_rows_, first);
    pack.num_keys = n;
    pack.slot_begin = slot;
    pack.non_finite = &in_piece;
    v_kernels_->pack_v(pack);
    non_finite |= in_piece;
  });
  return non_finite;
}

void TileSource::Pack(int64_t block, uint32_t tile_bits, BlockTiles* tiles) const {
  while (tile_bits != 0) {
    const int t = TakeBit(&tile_bits);
    const int64_t key = block * kBlockKeys + t * kTileKeys;
    // Keys behind kv_len are not the caller's promise to be readable; keys before it are, hidden or not.
    const int64_t num_keys = std::min(kTileKeys, kv_len_ - key);
    std::byte* const k_tile = k_tiles_ + t * k_tile_size_;
    std::byte* const v_tile = v_tiles_ + t * v_tile_size_;
    if (!(k_in_place_ && v_in_place_) && !IsWhole(key, num_keys)) {
      std::memset(k_tile, 0, static_cast<size_t>(k_tile_size_));
      std::memset(v_tile, 0, static_cast<size_t>(v_tile_size_));
    }
    if (!k_in_place_) PackKeys(key, num_keys, k_tile);
    // Only V's flag matters: scores of hidden keys are never looked at.
    if (!values_in_keys_ && !v_in_place_)
      tiles->non_finite |= static_cast<uint32_t>(PackValues(key, num_keys, v_tile)) << t;
    tiles->k[t] = k_tile;
    tiles->v[t] = v_tile;
  }
}

void TileSource::MakeValuesOfKeys(uint32_t tile_bits, BlockTiles* tiles) const {
  tiles->non_finite = 0;
  while (tile_bits != 0) {
    const int t = TakeBit(&tile_bits);
    float* const v_tile = reinterpret_cast<float*>(v_tiles_ + t * v_tile_size_);
    bool non_finite = false;
    kernels_.k_to_v_tile({.k_tile = static_cast<const float*>(tiles->k[t]),
                          .v_dim = v_dim_,
                          .v_tile = v_tile,
                          .non_finite = &non_finite});
    tiles->non_finite |= static_cast<uint32_t>(non_finite) << t;
    tiles->v[t] = v_tile;
  }
}

}  // namespace headlane::internal
