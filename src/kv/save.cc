// Saving: numbers the pages that the sequences hold, then writes spec, sequences and pages, section by section.
#include <algorithm>
#include <cstring>
#include <new>

#include "base/aligned_buffer.h"
#include "base/blocking.h"
#include "base/check.h"
#include "headlane/kv_file.h"
#include "kv/checksum.h"
#include "kv/kv_cache_impl.h"
#include "kv/save_format.h"
#include "kv/stored_tile.h"

namespace headlane::internal {
namespace {

// Of the pool's page with this place in the array.
struct PageNumber {
  int32_t number_plus_1;  // 0: not saved
  int32_t num_tokens;     // of the longest of the sequences
};

// The pages of one group that are saved.
struct SavedPages {
  AlignedBuffer numbers;  // [total_pages] PageNumber
  AlignedBuffer order;    // [num_pages] int32_t, in room for total_pages
  int64_t num_pages = 0;
};

class SectionWriter {
 public:
  explicit SectionWriter(const KVSink& sink) : sink_(sink) {}

  Status Write(const void* data, int64_t bytes) noexcept {
    if (bytes == 0) return OkStatus();
    sum_.Add(data, bytes);
    return sink_.write(sink_.context, data, bytes);
  }
  Status Begin(SavedKind kind, int64_t bytes) noexcept {
    const SavedFrame frame{static_cast<int64_t>(kind), bytes};
    return Write(&frame, sizeof(frame));
  }
  Status End() noexcept {
    const uint64_t sum = sum_.Value();
    return Write(&sum, sizeof(sum));
  }

 private:
  KVSink sink_;
  Checksum sum_;
};

}  // namespace

class KVSaver {
 public:
  KVSaver(const KVCacheImpl& cache, std::span<const SequenceId> ids) : cache_(cache), ids_(ids) {}

  // Errors: NotFound, ResourceExhausted.
  Status Prepare() noexcept;
  int64_t Bytes() const noexcept;
  Status Write(const KVSink& sink) noexcept;

 private:
  static constexpr int64_t kSectionBytes = sizeof(SavedFrame) + sizeof(uint64_t);

  int64_t NumGroups() const noexcept { return cache_.layout_.num_groups; }
  int64_t SequenceBytes(int64_t num_pages) const noexcept {
    return static_cast<int64_t>(sizeof(SavedSequence)) +
           NumGroups() * (int64_t{sizeof(int64_t)} + num_pages * int64_t{sizeof(int32_t)});
  }
  int64_t NumPages(const Sequence& sequence) const noexcept {
    return CeilDiv(sequence.length, cache_.spec_.page_tokens);
  }
  int64_t NumIds(int64_t group, int32_t page, int64_t num_tokens) const noexcept {
    return group == cache_.ids_group_ ? std::min(cache_.page_ids_.Count(page), num_tokens) : 0;
  }
  int64_t PageBytes(int64_t group, int64_t num_tokens, int64_t num_ids) const noexcept {
    const KVLayout& layout = cache_.layout_;
    return int64_t{sizeof(int64_t)} + num_ids * int64_t{sizeof(int32_t)} +
           layout.groups[group].num_layers * cache_.spec_.num_kv_heads * CeilDiv(num_tokens, kTileKeys) *
               (layout.k_tile_bytes + layout.v_tile_bytes);
  }
  Status WriteHead(SectionWriter* writer) const noexcept;
  Status WriteSequence(const Sequence& sequence, SectionWriter* writer) const noexcept;
  Status WritePage(int64_t group, int32_t page, SectionWriter* writer) noexcept;
  Status WriteTiles(const TileKind& kind, const std::byte* tiles, int64_t num_tokens, SectionWriter* writer) noexcept;

  const KVCacheImpl& cache_;
  std::span<const SequenceId> ids_;
  SavedPages pages_[kMaxLayerGroups];
  AlignedBuffer tile_;  // a copy of one tile of either kind
  TileKind k_kind_{};
  TileKind v_kind_{};
};

Status KVSaver::Prepare() noexcept {
  for (const SequenceId id : ids_) {
    if (cache_.sequences_.Find(id) == nullptr) return NoSequence(id);
  }
  const KVCacheSpec& spec = cache_.spec_;
  k_kind_ = KTileKind(spec.k_dtype, spec.qk_dim);
  if (!spec.values_in_keys) v_kind_ = VTileKind(spec.v_dtype, spec.v_dim);
  HEADLANE_ASSIGN_OR_RETURN(tile_, AlignedBuffer::Create(std::max(k_kind_.bytes, v_kind_.bytes), "KV cache saving"));
  for (int64_t g = 0; g < NumGroups(); ++g) {
    const int64_t total = cache_.layout_.groups[g].total_pages;
    HEADLANE_ASSIGN_OR_RETURN(pages_[g].numbers,
                              AlignedBuffer::Create(total * int64_t{sizeof(PageNumber)}, "KV cache saving"));
    HEADLANE_ASSIGN_OR_RETURN(pages_[g].order,
                              AlignedBuffer::Create(total * int64_t{sizeof(int32_t)}, "KV cache saving"));
  }
  for (const SequenceId id : ids_) {
    const Sequence& sequence = *cache_.sequences_.Find(id);
    for (int64_t g = 0; g < NumGroups(); ++g) {
      for (int64_t i = 0; i < NumPages(sequence); ++i) {
        const int32_t page = sequence.groups[g].pages[i];
        if (page < 0) continue;
        PageNumber& number = pages_[g].numbers.as<PageNumber>()[page];
        if (number.number_plus_1 == 0) {
          pages_[g].order.as<int32_t>()[pages_[g].num_pages] = page;
          number.number_plus_1 = static_cast<int32_t>(++pages_[g].num_pages);
        }
        const int64_t in_page = std::min(spec.page_tokens, sequence.length - i * spec.page_tokens);
        number.num_tokens = std::max(number.num_tokens, static_cast<int32_t>(in_page));
      }
    }
  }
  return OkStatus();
}

int64_t KVSaver::Bytes() const noexcept {
  int64_t bytes = static_cast<int64_t>(sizeof(SavedPrologue) + sizeof(SavedSpec)) + 3 * kSectionBytes +
                  NumGroups() * int64_t{sizeof(SavedGroup)} + cache_.spec_.num_layers * int64_t{sizeof(int32_t)};
  for (const SequenceId id : ids_) {
    bytes += kSectionBytes + SequenceBytes(NumPages(*cache_.sequences_.Find(id)));
  }
  for (int64_t g = 0; g < NumGroups(); ++g) {
    for (int64_t i = 0; i < pages_[g].num_pages; ++i) {
      const int32_t page = pages_[g].order.as<int32_t>()[i];
      const int64_t num_tokens = pages_[g].numbers.as<PageNumber>()[page].num_tokens;
      bytes += kSectionBytes + PageBytes(g, num_tokens, NumIds(g, page, num_tokens));
    }
  }
  return bytes;
}

Status KVSaver::Write(const KVSink& sink) noexcept {
  SectionWriter writer(sink);
  HEADLANE_RETURN_IF_ERROR(WriteHead(&writer));
  for (const SequenceId id : ids_) HEADLANE_RETURN_IF_ERROR(WriteSequence(*cache_.sequences_.Find(id), &writer));
  for (int64_t g = 0; g < NumGroups(); ++g) {
    for (int64_t i = 0; i < pages_[g].num_pages; ++i) {
      HEADLANE_RETURN_IF_ERROR(WritePage(g, pages_[g].order.as<int32_t>()[i], &writer));
    }
  }
  HEADLANE_RETURN_IF_ERROR(writer.Begin(SavedKind::kEnd, 0));
  return writer.End();
}

Status KVSaver::WriteHead(SectionWriter* writer) const noexcept {
  SavedPrologue prologue{};
  std::memcpy(prologue.magic, kSavedMagic, sizeof(kSavedMagic));
  prologue.byte_order = kSavedByteOrder;
  prologue.version = kKVFileVersion;
  HEADLANE_RETURN_IF_ERROR(writer->Write(&prologue, sizeof(prologue)));
  SavedSpec spec = SavedSpecOf(cache_.spec_, cache_.layout_);
  spec.fields[kNumSequencesField] = static_cast<int64_t>(ids_.size());
  HEADLANE_RETURN_IF_ERROR(writer->Begin(SavedKind::kSpec, sizeof(spec)));
  HEADLANE_RETURN_IF_ERROR(writer->Write(&spec, sizeof(spec)));
  HEADLANE_RETURN_IF_ERROR(writer->End());
  const int64_t num_layers = cache_.spec_.num_layers;
  HEADLANE_RETURN_IF_ERROR(writer->Begin(
      SavedKind::kGroups, NumGroups() * int64_t{sizeof(SavedGroup)} + num_layers * int64_t{sizeof(int32_t)}));
  for (int64_t g = 0; g < NumGroups(); ++g) {
    const KVGroupLayout& layout = cache_.layout_.groups[g];
    const SavedGroup group{layout.window, layout.num_always_visible, layout.max_in_flight, pages_[g].num_pages};
    HEADLANE_RETURN_IF_ERROR(writer->Write(&group, sizeof(group)));
  }
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    const auto group = static_cast<int32_t>(GroupOf(cache_.spec_, layer));
    HEADLANE_RETURN_IF_ERROR(writer->Write(&group, sizeof(group)));
  }
  return writer->End();
}

Status KVSaver::WriteSequence(const Sequence& sequence, SectionWriter* writer) const noexcept {
  const int64_t num_pages = NumPages(sequence);
  HEADLANE_RETURN_IF_ERROR(writer->Begin(SavedKind::kSequence, SequenceBytes(num_pages)));
  const SavedSequence saved{sequence.id, sequence.length};
  HEADLANE_RETURN_IF_ERROR(writer->Write(&saved, sizeof(saved)));
  for (int64_t g = 0; g < NumGroups(); ++g) {
    const int64_t first_kept = sequence.groups[g].first_kept;
    HEADLANE_RETURN_IF_ERROR(writer->Write(&first_kept, sizeof(first_kept)));
  }
  constexpr int64_t kAtOnce = 256;
  int32_t numbers[kAtOnce];
  for (int64_t g = 0; g < NumGroups(); ++g) {
    const auto* const known = pages_[g].numbers.as<PageNumber>();
    for (int64_t begin = 0; begin < num_pages; begin += kAtOnce) {
      const int64_t n = std::min(kAtOnce, num_pages - begin);
      for (int64_t i = 0; i < n; ++i) {
        const int32_t page = sequence.groups[g].pages[begin + i];
        numbers[i] = page < 0 ? -1 : known[page].number_plus_1 - 1;
      }
      HEADLANE_RETURN_IF_ERROR(writer->Write(numbers, n * int64_t{sizeof(int32_t)}));
    }
  }
  return writer->End();
}

Status KVSaver::WritePage(int64_t group, int32_t page, SectionWriter* writer) noexcept {
  const KVCacheSpec& spec = cache_.spec_;
  const KVAddressing& at = cache_.addressing_;
  const int64_t num_tokens = pages_[group].numbers.as<PageNumber>()[page].num_tokens;
  const int64_t num_ids = NumIds(group, page, num_tokens);
  HEADLANE_RETURN_IF_ERROR(writer->Begin(SavedKind::kPage, PageBytes(group, num_tokens, num_ids)));
  HEADLANE_RETURN_IF_ERROR(writer->Write(&num_ids, sizeof(num_ids)));
  if (num_ids > 0) {
    HEADLANE_RETURN_IF_ERROR(writer->Write(cache_.page_ids_.IdsOf(page), num_ids * int64_t{sizeof(int32_t)}));
  }
  for (int64_t layer = 0; layer < spec.num_layers; ++layer) {
    if (GroupOf(spec, layer) != group) continue;
    // A page full of tiles without a byte to spare is in one piece what it is tile by tile.
    if (num_tokens == spec.page_tokens && k_kind_.bytes == k_kind_.used_bytes && v_kind_.bytes == v_kind_.used_bytes) {
      HEADLANE_RETURN_IF_ERROR(writer->Write(at.KTile(layer, page, 0, 0), cache_.layout_.slab_bytes));
      continue;
    }
    for (int64_t head = 0; head < spec.num_kv_heads; ++head) {
      HEADLANE_RETURN_IF_ERROR(WriteTiles(k_kind_, at.KTile(layer, page, head, 0), num_tokens, writer));
      if (spec.values_in_keys) continue;
      HEADLANE_RETURN_IF_ERROR(WriteTiles(v_kind_, at.VTile(layer, page, head, 0), num_tokens, writer));
    }
  }
  return writer->End();
}

Status KVSaver::WriteTiles(const TileKind& kind, const std::byte* tiles, int64_t num_tokens,
                           SectionWriter* writer) noexcept {
  for (int64_t first = 0; first < num_tokens; first += kTileKeys, tiles += kind.bytes) {
    CopyClean(kind, tiles, std::min(kTileKeys, num_tokens - first), tile_.data());
    HEADLANE_RETURN_IF_ERROR(writer->Write(tile_.data(), kind.bytes));
  }
  return OkStatus();
}

Status KVCacheImpl::Save(std::span<const SequenceId> ids, const KVSink& sink) const noexcept {
  if (sink.write == nullptr) return MakeStatus(StatusCode::kInvalidArgument, "KVSink: write is null");
  KVSaver saver(*this, ids);
  HEADLANE_RETURN_IF_ERROR(saver.Prepare());
  return saver.Write(sink);
}

Result<int64_t> KVCacheImpl::SavedBytes(std::span<const SequenceId> ids) const noexcept {
  KVSaver saver(*this, ids);
  HEADLANE_RETURN_IF_ERROR(saver.Prepare());
  return saver.Bytes();
}

Result<std::vector<SequenceId>> KVCacheImpl::AllSequences() const noexcept {
  std::vector<SequenceId> ids;
  try {
    ids.reserve(static_cast<size_t>(sequences_.num_sequences()));
  } catch (const std::bad_alloc&) {
    return MakeStatus(StatusCode::kResourceExhausted, "KV cache: the system has no memory for %lld ids",
                      static_cast<long long>(sequences_.num_sequences()));
  }
  for (int64_t i = 0; i < sequences_.num_slots(); ++i) {
    if (sequences_.slot(i).id >= 0) ids.push_back(SequenceId{sequences_.slot(i).id});
  }
  return ids;
}

}  // namespace headlane::internal
