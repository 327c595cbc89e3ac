#include "operator/pages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace headlane::testing {
namespace {

GuardedBuffer Memory(int64_t bytes) { return GuardedBuffer(static_cast<size_t>(bytes)); }

// [pages, tokens, heads, dim] as [page][token][head][dim] or [page][head][token][dim].
TensorView RowsIn(void* data, Pages kind, const KVPagesSpec& spec, DType dtype, int64_t dim) {
  const int64_t heads = spec.num_kv_heads;
  const int64_t tokens = spec.page_tokens;
  TensorView view{data, dtype, spec.num_pages, tokens, heads, dim, tokens * heads * dim, heads * dim, dim, 1};
  if (kind == Pages::kHeadRows) {
    view.token_stride = dim;
    view.head_stride = tokens * dim;
  }
  return view;
}

}  // namespace

PagedMemory MakePagedMemory(KVPagesSpec spec, Pages kind, int64_t num_layers) {
  PagedMemory made;
  spec.kind = kind == Pages::kTiles ? KVPageKind::kTiles : KVPageKind::kRows;
  spec.layers.clear();
  for (int64_t i = 0; i < num_layers; ++i) {
    KVLayerPages layer;
    if (kind == Pages::kTiles) {
      const Result<KVPageLayout> layout = TilePageLayout(spec);
      EXPECT_TRUE(layout.ok()) << layout.status().c_str();
      if (!layout.ok()) return made;
      const int64_t stride = spec.page_stride > 0 ? spec.page_stride : layout->page_bytes;
      made.memory.push_back(Memory(spec.num_pages * stride));
      layer.tiles = made.memory.back().data();
      // Marks of every other page say that there is nothing to fear, as an engine's would that clears them at first.
      for (int64_t page = 0; page < spec.num_pages; page += 2) {
        std::memset(made.memory.back().data() + page * stride + layout->marks_offset, 0,
                    static_cast<size_t>(layout->page_bytes - layout->marks_offset));
      }
    } else {
      const int64_t rows = spec.num_pages * spec.page_tokens * spec.num_kv_heads;
      made.memory.push_back(Memory(rows * spec.qk_dim * DTypeBytes(spec.k_dtype)));
      layer.k = RowsIn(made.memory.back().data(), kind, spec, spec.k_dtype, spec.qk_dim);
      if (!spec.values_in_keys) {
        made.memory.push_back(Memory(rows * spec.v_dim * DTypeBytes(spec.v_dtype)));
        layer.v = RowsIn(made.memory.back().data(), kind, spec, spec.v_dtype, spec.v_dim);
      }
    }
    spec.layers.push_back(layer);
  }
  Result<KVPages> pages = KVPages::Create(spec);
  EXPECT_TRUE(pages.ok()) << pages.status().c_str();
  if (pages.ok()) made.pages = std::make_unique<KVPages>(std::move(pages).value());
  return made;
}

std::vector<GuardedArray<int32_t>> DealPages(const std::vector<int64_t>& lengths, int64_t page_tokens,
                                             int64_t num_pages, Random& random) {
  std::vector<int32_t> free(static_cast<size_t>(num_pages));
  for (size_t i = 0; i < free.size(); ++i) free[i] = static_cast<int32_t>(i);
  for (size_t i = free.size(); i > 1; --i) {
    std::swap(free[i - 1], free[static_cast<size_t>(random.Int(0, static_cast<int64_t>(i) - 1))]);
  }
  std::vector<GuardedArray<int32_t>> lists;
  for (const int64_t length : lengths) {
    const size_t n = static_cast<size_t>((length + page_tokens - 1) / page_tokens);
    lists.emplace_back(n);
    for (size_t i = 0; i < n; ++i) {
      lists.back()[i] = free.back();
      free.pop_back();
    }
  }
  return lists;
}

FilledPages FillPages(const std::vector<Sequence>& sequences, const RunOptions& options, Random& random) {
  const reference::Problem& p = sequences[0].problem;
  KVPagesSpec spec;
  spec.num_kv_heads = p.num_kv_heads;
  spec.qk_dim = p.qk_dim;
  spec.v_dim = p.v_dim;
  spec.k_dtype = options.k_dtype;
  spec.v_dtype = options.v_dtype;
  spec.values_in_keys = sequences[0].values_in_keys;
  spec.rotate = options.rotate;
  spec.page_tokens = options.page_tokens;
  std::vector<int64_t> lengths;
  for (const Sequence& s : sequences) {
    lengths.push_back(s.problem.kv_len);
    spec.num_pages += s.problem.kv_len / spec.page_tokens + 1;
  }
  spec.num_pages += 2;
  FilledPages filled{MakePagedMemory(spec, options.pages, 2),
                     DealPages(lengths, spec.page_tokens, spec.num_pages, random)};
  if (filled.store.pages == nullptr) return filled;
  KVPages& pages = *filled.store.pages;

  const float nan = std::bit_cast<float>(0xFFFFFFFFu);
  const size_t k_row = static_cast<size_t>(p.num_kv_heads * p.qk_dim),
               v_row = static_cast<size_t>(p.num_kv_heads * p.v_dim);
  std::vector<int64_t> written(sequences.size(), 0);
  for (;;) {
    std::vector<float> k, v;
    std::vector<int64_t> slots;
    const int64_t parts = random.Int(1, 3);
    for (int64_t part = 0; part < parts; ++part) {
      const size_t i = static_cast<size_t>(random.Int(0, static_cast<int64_t>(sequences.size()) - 1));
      const reference::Problem& s = sequences[i].problem;
      const int64_t n = std::min(s.kv_len - written[i], random.OneIn(3) ? random.Int(1, 40) : random.Int(1, 700));
      for (int64_t t = written[i]; t < written[i] + n; ++t) {
        const float* const key = s.k + t * static_cast<int64_t>(k_row);
        const float* const value = s.v + t * static_cast<int64_t>(v_row);
        k.insert(k.end(), key, key + k_row);
        if (!spec.values_in_keys) v.insert(v.end(), value, value + v_row);
        slots.push_back(filled.ids[i][static_cast<size_t>(t / spec.page_tokens)] * spec.page_tokens +
                        t % spec.page_tokens);
      }
      written[i] += n;
      if (random.OneIn(2)) {  // a token of padding
        k.insert(k.end(), k_row, nan);
        if (!spec.values_in_keys) v.insert(v.end(), v_row, nan);
        slots.push_back(-1);
      }
    }
    const int64_t n = static_cast<int64_t>(slots.size());
    const auto write = [&](int64_t layer, const std::vector<float>& keys, const std::vector<float>& values) {
      const ConstTensorView v_view =
          spec.values_in_keys ? ConstTensorView{} : TokensHeadsDim(values.data(), n, p.num_kv_heads, p.v_dim);
      const Status status = pages.Write(layer, TokensHeadsDim(keys.data(), n, p.num_kv_heads, p.qk_dim), v_view, slots);
      EXPECT_TRUE(status.ok()) << status.c_str();
    };
    write(1, k, v);
    write(0, std::vector<float>(k.size(), nan), std::vector<float>(v.size(), nan));
    if (written == lengths) return filled;
  }
}

}  // namespace headlane::testing
