// Layout, page pool and sequence table, each alone.
#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <vector>

#include "base/blocking.h"
#include "kv/kv_test_util.h"
#include "kv/layout.h"
#include "kv/page_pool.h"
#include "kv/sequence_table.h"

namespace headlane::internal {
namespace {

TEST(KVLayout, PlacesCountUpThroughSlotsTilesAndPages) {
  for (int64_t page_tokens = 16; page_tokens <= 256; page_tokens += 16) {
    TokenPlace expected{0, 0, 0};
    for (int64_t order = 0; order < 3 * page_tokens; ++order) {
      const TokenPlace place = PlaceOf(order, page_tokens);
      ASSERT_EQ(place.page, expected.page);
      ASSERT_EQ(place.tile, expected.tile);
      ASSERT_EQ(place.slot, expected.slot);
      if (++expected.slot == kTileKeys) expected = {expected.page, expected.tile + 1, 0};
      if (expected.tile == page_tokens / kTileKeys) expected = {expected.page + 1, 0, 0};
    }
  }
  const TokenPlace far = PlaceOf(int64_t{1} << 40, 48);
  EXPECT_EQ(far.page * 48 + far.tile * 16 + far.slot, int64_t{1} << 40);
}

TEST(KVLayout, BytesOfAllDims) {
  for (const int64_t qk_dim : {1, 3, 46, 80, 100, 112, 128, 192, 256, 257, 576}) {
    for (const int64_t v_dim : {1, 16, 17, 128, 512}) {
      KVCacheSpec spec;
      spec.num_layers = 3;
      spec.num_kv_heads = 5;
      spec.qk_dim = qk_dim;
      spec.v_dim = v_dim;
      spec.page_tokens = 48;
      spec.max_tokens = 100;
      const Result<KVLayout> layout = MakeKVLayout(spec);
      ASSERT_TRUE(Succeeds(layout.status()));
      EXPECT_EQ(layout->tiles_per_page, 3);
      EXPECT_EQ(layout->total_pages, 3);
      EXPECT_EQ(layout->k_tile_bytes, qk_dim * 64);
      EXPECT_EQ(layout->v_tile_bytes, (v_dim + 15) / 16 * 1024);
      EXPECT_EQ(layout->v_offset, 3 * qk_dim * 64);
      EXPECT_EQ(layout->head_bytes, 3 * (layout->k_tile_bytes + layout->v_tile_bytes));
      EXPECT_EQ(layout->slab_bytes, 5 * layout->head_bytes);
      EXPECT_EQ(layout->page_bytes, 3 * layout->slab_bytes);
      EXPECT_EQ(layout->num_slabs, 9);
      EXPECT_EQ(layout->pool_bytes, 9 * layout->slab_bytes);
      for (const int64_t bytes : {layout->k_tile_bytes, layout->v_tile_bytes, layout->head_bytes})
        EXPECT_EQ(bytes % 64, 0);
    }
  }
}

// Every tile has its own bytes, and together they are the pool.
TEST(KVLayout, TilesCoverThePoolWithoutOverlap) {
  KVCacheSpec spec;
  spec.num_layers = 2;
  spec.num_kv_heads = 3;
  spec.qk_dim = 7;
  spec.v_dim = 20;
  spec.page_tokens = 32;
  spec.max_tokens = 96;
  const KVLayout layout = *MakeKVLayout(spec);
  std::vector<std::byte> pool(static_cast<size_t>(layout.pool_bytes));
  const int64_t first_slab[] = {0, 3};
  const KVAddressing at{pool.data(),         first_slab,          layout.slab_bytes, layout.head_bytes,
                        layout.k_tile_bytes, layout.v_tile_bytes, layout.v_offset};
  const auto mark = [&](std::byte* tile, int64_t bytes) {
    ASSERT_GE(tile, pool.data());
    ASSERT_LE(tile + bytes, pool.data() + pool.size());
    for (int64_t i = 0; i < bytes; ++i) {
      ASSERT_EQ(tile[i], std::byte{0});
      tile[i] = std::byte{1};
    }
  };
  for (int64_t layer = 0; layer < 2; ++layer) {
    for (int64_t page = 0; page < 3; ++page) {
      for (int64_t head = 0; head < 3; ++head) {
        for (int64_t tile = 0; tile < 2; ++tile) {
          mark(at.KTile(layer, page, head, tile), layout.k_tile_bytes);
          mark(at.VTile(layer, page, head, tile), layout.v_tile_bytes);
        }
      }
    }
  }
  for (const std::byte byte : pool) ASSERT_EQ(byte, std::byte{1});
}

TEST(PagePool, GivesEveryPageOnceAndTheLastReturnedFirst) {
  Result<PagePool> made = PagePool::Create(5);
  ASSERT_TRUE(Succeeds(made.status()));
  PagePool pool = std::move(made).value();
  for (int32_t page = 0; page < 5; ++page) {
    EXPECT_EQ(pool.holders(page), 0);
    EXPECT_EQ(pool.Take(), page);
    EXPECT_EQ(pool.used_pages(), page + 1);
  }
  EXPECT_EQ(pool.free_pages(), 0);
  pool.Release(3);
  pool.Release(1);
  EXPECT_EQ(pool.free_pages(), 2);
  EXPECT_EQ(pool.Take(), 1);
  EXPECT_EQ(pool.Take(), 3);
}

TEST(PagePool, SharedPagesAreFreeWhenTheLastHolderLetsGo) {
  PagePool pool = std::move(PagePool::Create(2)).value();
  const int32_t page = pool.Take();
  pool.Share(page);
  pool.Share(page);
  EXPECT_EQ(pool.holders(page), 3);
  EXPECT_EQ(pool.used_pages(), 1);
  pool.Release(page);
  pool.Release(page);
  EXPECT_EQ(pool.used_pages(), 1);
  EXPECT_NE(pool.Take(), page);
  pool.Release(page);
  EXPECT_EQ(pool.used_pages(), 1);
  EXPECT_EQ(pool.Take(), page);
}

TEST(SequenceTable, IdsAreNeverUsedTwice) {
  const int64_t table_pages[] = {4};
  SequenceTable table = std::move(SequenceTable::Create(3, table_pages, 1)).value();
  std::set<int64_t> seen;
  Random random(5);
  std::vector<SequenceId> live;
  for (int i = 0; i < 1000; ++i) {
    if (live.size() < 3 && random.OneIn(2)) {
      Result<SequenceId> id = table.Add();
      ASSERT_TRUE(Succeeds(id.status()));
      EXPECT_TRUE(seen.insert(id->value).second);
      live.push_back(*id);
    } else if (!live.empty()) {
      const size_t victim = static_cast<size_t>(random.Int(0, static_cast<int64_t>(live.size()) - 1));
      table.Remove(table.Find(live[victim]));
      EXPECT_EQ(table.Find(live[victim]), nullptr);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(victim));
    }
    EXPECT_EQ(table.num_sequences(), static_cast<int64_t>(live.size()));
    for (const SequenceId id : live) ASSERT_NE(table.Find(id), nullptr);
  }
  EXPECT_GT(seen.size(), 300u);
}

TEST(SequenceTable, EverySequenceCanHoldAllPages) {
  constexpr int64_t kPages = 1000;
  const int64_t table_pages[] = {kPages};
  SequenceTable table = std::move(SequenceTable::Create(4, table_pages, 1)).value();
  std::vector<SequenceId> ids;
  for (int i = 0; i < 4; ++i) ids.push_back(*table.Add());
  for (const SequenceId id : ids) {
    for (int64_t i = 0; i < kPages; ++i)
      table.Find(id)->groups[0].pages[i] = static_cast<int32_t>(id.value * kPages + i);
  }
  for (const SequenceId id : ids) {
    for (int64_t i = 0; i < kPages; ++i) ASSERT_EQ(table.Find(id)->groups[0].pages[i], id.value * kPages + i);
  }
}

}  // namespace
}  // namespace headlane::internal
