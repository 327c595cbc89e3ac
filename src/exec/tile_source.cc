#include "exec/tile_source.h"

#include <algorithm>
#include <cstring>

#include "kernels/kernel_api.h"
#include "kv/kv_cache_impl.h"

namespace headlane::internal {
namespace {

// First row of a head in a plain tensor. Without features there is no memory, and no address of it is formed.
const float* HeadRows(const ConstTensorView& view, const SequenceSpec& sequence, int64_t head) {
  if (view.dim == 0 || view.data == nullptr) return nullptr;
  return static_cast<const float*>(view.data) + sequence.batch * view.batch_stride +
         sequence.kv_begin * view.token_stride + head * view.head_stride;
}

}  // namespace

TileSource::TileSource(const RunContext& run, const RowBlock& block, const Slot& slot)
    : from_cache_(run.plan.problem().from_cache) {
  const Problem& problem = run.plan.problem();
  const SequenceSpec& sequence = run.plan.sequences()[static_cast<size_t>(block.sequence)];
  if (from_cache_) {
    const KVCacheImpl& cache = run.args.cache->impl();
    const KVAddressing& at = cache.addressing();
    pages_ = run.plan.PagesOf(block.sequence);
    tiles_per_page_ = cache.TilesPerPage();
    k_base_ = at.KTile(run.args.layer, 0, block.kv_head, 0);
    v_base_ = at.VTile(run.args.layer, 0, block.kv_head, 0);
    page_stride_ = at.page_stride;
    flags_base_ = cache.flags().Tiles(run.args.layer, 0, block.kv_head);
    flags_page_stride_ = cache.flags().page_stride;
    k_tile_bytes_ = at.k_tile_bytes;
    v_tile_bytes_ = at.v_tile_bytes;
    return;
  }
  const ConstTensorView& k = run.args.k;
  const ConstTensorView& v = run.args.v;
  kernels_ = &run.plan.kernels().kv[0];
  k_rows_ = HeadRows(k, sequence, block.kv_head);
  v_rows_ = HeadRows(v, sequence, block.kv_head);
  k_row_stride_ = k.token_stride;
  k_dim_stride_ = k.dim_stride;
  v_row_stride_ = v.token_stride;
  v_dim_stride_ = v.dim_stride;
  kv_len_ = sequence.kv_len;
  qk_dim_ = problem.qk_dim;
  v_dim_ = problem.v_dim;
  k_tiles_ = slot.k_tiles;
  v_tiles_ = slot.v_tiles;
  k_tile_bytes_ = kTileKeys * problem.qk_dim * static_cast<int64_t>(sizeof(float));
  v_tile_bytes_ = kTileKeys * problem.o_pitch * static_cast<int64_t>(sizeof(float));
}

void TileSource::Find(int64_t block, BlockTiles* tiles) const {
  const int64_t first = block * kTilesPerBlock + tiles->begin;
  int64_t page_index = first / tiles_per_page_;
  int64_t in_page = first % tiles_per_page_;
  tiles->non_finite = 0;
  for (int32_t t = tiles->begin; t < tiles->end; ++t) {
    const int64_t page = pages_[page_index];
    const int64_t page_offset = page * page_stride_;
    tiles->k[t] = k_base_ + page_offset + in_page * k_tile_bytes_;
    tiles->v[t] = v_base_ + page_offset + in_page * v_tile_bytes_;
    tiles->non_finite |= static_cast<uint32_t>(flags_base_[page * flags_page_stride_ + in_page] != 0) << t;
    if (++in_page == tiles_per_page_) {
      in_page = 0;
      ++page_index;
    }
  }
}

void TileSource::Pack(int64_t block, BlockTiles* tiles) const {
  tiles->non_finite = 0;
  for (int32_t t = tiles->begin; t < tiles->end; ++t) {
    const int64_t key = block * kBlockKeys + t * kTileKeys;
    // Keys behind kv_len are not the caller's promise to be readable; keys before it are, hidden or not.
    const int64_t num_keys = std::min(kTileKeys, kv_len_ - key);
    std::byte* const k_tile = k_tiles_ + t * k_tile_bytes_;
    std::byte* const v_tile = v_tiles_ + t * v_tile_bytes_;
    if (num_keys < kTileKeys) {
      std::memset(k_tile, 0, static_cast<size_t>(k_tile_bytes_));
      std::memset(v_tile, 0, static_cast<size_t>(v_tile_bytes_));
    }
    bool non_finite = false;
    PackTileArgs pack;
    pack.rows_dtype = DType::kF32;
    pack.num_keys = num_keys;
    pack.slot_begin = 0;
    pack.non_finite = &non_finite;
    if (qk_dim_ > 0) {
      pack.rows = k_rows_ + key * k_row_stride_;
      pack.row_stride = k_row_stride_;
      pack.dim_stride = k_dim_stride_;
      pack.dim = qk_dim_;
      pack.tile = k_tile;
      kernels_->pack_k(pack);
    }
    // Only V's flag matters: scores of hidden keys are never looked at.
    non_finite = false;
    if (v_dim_ > 0) {
      pack.rows = v_rows_ + key * v_row_stride_;
      pack.row_stride = v_row_stride_;
      pack.dim_stride = v_dim_stride_;
      pack.dim = v_dim_;
      pack.tile = v_tile;
      kernels_->pack_v(pack);
    }
    tiles->k[t] = k_tile;
    tiles->v[t] = v_tile;
    tiles->non_finite |= static_cast<uint32_t>(non_finite) << t;
  }
}

}  // namespace headlane::internal
