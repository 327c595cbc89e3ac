// Restoring: reads what save.cc writes, into pages that stay free and sequences that stay empty until all of it is
// good.
//
// Page i of the data goes to the page that the pool would give out as its i-th, so that nothing has to be given back
// when the data turns out to be bad; sequences are added first, which is undone.
#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

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

long long LL(int64_t value) { return static_cast<long long>(value); }

// What is known of a saved page.
struct SavedPage {
  int32_t place;        // in the sequences that hold it
  int32_t predecessor;  // the page before it in the first of them; -1: none
  int32_t num_tokens;
  int32_t num_holders;
  int32_t num_ids;
};

class SectionReader {
 public:
  explicit SectionReader(const KVSource& source) : source_(source) {}

  Status Read(void* data, int64_t bytes) noexcept {
    if (bytes == 0) return OkStatus();
    HEADLANE_RETURN_IF_ERROR(source_.read(source_.context, data, bytes));
    sum_.Add(data, bytes);
    left_ -= bytes;
    return OkStatus();
  }
  // Reads the frame of a section that must be of this kind. Errors: DataLoss.
  Status BeginAnySize(SavedKind kind) noexcept {
    SavedFrame frame{};
    HEADLANE_RETURN_IF_ERROR(Read(&frame, sizeof(frame)));
    if (frame.kind != static_cast<int64_t>(kind)) {
      return MakeStatus(StatusCode::kDataLoss, "saved KV cache: section %lld stands where section %lld should",
                        LL(frame.kind), LL(static_cast<int64_t>(kind)));
    }
    if (frame.bytes < 0) {
      return MakeStatus(StatusCode::kDataLoss, "saved KV cache: section %lld has %lld bytes, must have 0 or more",
                        LL(frame.kind), LL(frame.bytes));
    }
    left_ = frame.bytes;
    return OkStatus();
  }
  // `left` bytes of the section must be to come.
  Status ExpectLeft(int64_t bytes) const noexcept {
    if (left_ == bytes) return OkStatus();
    return MakeStatus(StatusCode::kDataLoss, "saved KV cache: a section has %lld more bytes, must have %lld", LL(left_),
                      LL(bytes));
  }
  Status Begin(SavedKind kind, int64_t bytes) noexcept {
    HEADLANE_RETURN_IF_ERROR(BeginAnySize(kind));
    return ExpectLeft(bytes);
  }
  Status End() noexcept {
    const uint64_t expected = sum_.Value();
    uint64_t sum = 0;
    HEADLANE_RETURN_IF_ERROR(Read(&sum, sizeof(sum)));
    if (sum == expected) return OkStatus();
    return MakeStatus(StatusCode::kDataLoss, "saved KV cache: a checksum is %016llx, the data's is %016llx",
                      static_cast<unsigned long long>(sum), static_cast<unsigned long long>(expected));
  }

 private:
  KVSource source_;
  Checksum sum_;
  int64_t left_ = 0;
};

Status CheckPrologue(const SavedPrologue& prologue) {
  if (std::memcmp(prologue.magic, kSavedMagic, sizeof(kSavedMagic)) != 0) {
    return MakeStatus(StatusCode::kDataLoss, "saved KV cache: it does not begin as one");
  }
  if (prologue.byte_order != kSavedByteOrder) {
    return MakeStatus(StatusCode::kUnsupported,
                      "saved KV cache: its mark of the byte order is %08x, this machine's is %08x", prologue.byte_order,
                      kSavedByteOrder);
  }
  if (prologue.version == kKVFileVersion) return OkStatus();
  return MakeStatus(StatusCode::kUnsupported, "saved KV cache: its format has version %u, supported is %u",
                    prologue.version, kKVFileVersion);
}

Status Differs(const char* field, int64_t saved, int64_t own) {
  return MakeStatus(StatusCode::kInvalidArgument, "saved KV cache: %s is %lld, the cache has %lld", field, LL(saved),
                    LL(own));
}

Status BadCount(const char* what, int64_t count) {
  return MakeStatus(StatusCode::kDataLoss, "saved KV cache: it has %lld %s, must have 0 or more", LL(count), what);
}

Status CheckSpec(const SavedSpec& saved, const SavedSpec& own) {
  if (saved.fields[kNumericsVersionField] != own.fields[kNumericsVersionField]) {
    return MakeStatus(StatusCode::kUnsupported, "saved KV cache: its numerics version is %lld, the library's is %lld",
                      LL(saved.fields[kNumericsVersionField]), LL(own.fields[kNumericsVersionField]));
  }
  constexpr struct {
    SavedField field;
    const char* name;
  } kCompared[] = {{kNumLayersField, "num_layers"},
                   {kNumKVHeadsField, "num_kv_heads"},
                   {kQkDimField, "qk_dim"},
                   {kVDimField, "v_dim"},
                   {kKDTypeField, "k_dtype"},
                   {kVDTypeField, "v_dtype"},
                   {kValuesInKeysField, "values_in_keys"},
                   {kPageTokensField, "page_tokens"},
                   {kRotateField, "rotate"},
                   {kNumGroupsField, "groups.size()"}};
  for (const auto& [field, name] : kCompared) {
    if (saved.fields[field] != own.fields[field]) return Differs(name, saved.fields[field], own.fields[field]);
  }
  return OkStatus();
}

Status BadSequence(const SavedSequence& saved, const char* what, int64_t first, int64_t second) {
  return MakeStatus(StatusCode::kDataLoss, "saved KV cache: sequence %lld of %lld tokens: %s %lld, %lld", LL(saved.id),
                    LL(saved.length), what, LL(first), LL(second));
}

}  // namespace

class KVRestorer {
 public:
  KVRestorer(KVCacheImpl* cache, const KVSource& source) : cache_(*cache), reader_(source) {}

  // All of the data, checked; sequences without tokens are added, in order. Errors: as RestoreSequences.
  Status ReadAll() noexcept;
  // Takes the sequences away again.
  void Undo() noexcept;
  // Gives them their tokens.
  void Commit() noexcept;
  std::vector<RestoredSequence>& restored() noexcept { return restored_; }

 private:
  int64_t NumGroups() const noexcept { return cache_.layout_.num_groups; }
  SavedPage& PageOf(int64_t group, int64_t number) noexcept { return pages_[group].as<SavedPage>()[number]; }
  Status ReadHead() noexcept;
  Status ReadSequence() noexcept;
  Status CheckFirstKept(const SavedSequence& saved, int64_t group, int64_t first_kept) const noexcept;
  Status CheckPages(const SavedSequence& saved, const Sequence& sequence, int64_t group) noexcept;
  Status ReadPage(int64_t group, int64_t number) noexcept;
  Status ReadSlab(int64_t layer, int32_t page, int64_t num_tokens) noexcept;
  Status CheckIds() noexcept;

  KVCacheImpl& cache_;
  SectionReader reader_;
  int64_t num_sequences_ = 0;
  int64_t num_pages_[kMaxLayerGroups] = {};
  int64_t num_named_[kMaxLayerGroups] = {};  // pages that the sequences so far hold
  AlignedBuffer pages_[kMaxLayerGroups];     // [num_pages] SavedPage
  std::vector<RestoredSequence> restored_;
};

Status KVRestorer::ReadAll() noexcept {
  HEADLANE_RETURN_IF_ERROR(ReadHead());
  for (int64_t i = 0; i < num_sequences_; ++i) HEADLANE_RETURN_IF_ERROR(ReadSequence());
  for (int64_t g = 0; g < NumGroups(); ++g) {
    if (num_named_[g] == num_pages_[g]) continue;
    return MakeStatus(StatusCode::kDataLoss, "saved KV cache: layer group %lld has %lld pages, sequences hold %lld",
                      LL(g), LL(num_pages_[g]), LL(num_named_[g]));
  }
  for (int64_t g = 0; g < NumGroups(); ++g) {
    for (int64_t i = 0; i < num_pages_[g]; ++i) HEADLANE_RETURN_IF_ERROR(ReadPage(g, i));
  }
  HEADLANE_RETURN_IF_ERROR(reader_.Begin(SavedKind::kEnd, 0));
  HEADLANE_RETURN_IF_ERROR(reader_.End());
  return CheckIds();
}

Status KVRestorer::ReadHead() noexcept {
  SavedPrologue prologue{};
  HEADLANE_RETURN_IF_ERROR(reader_.Read(&prologue, sizeof(prologue)));
  HEADLANE_RETURN_IF_ERROR(CheckPrologue(prologue));
  SavedSpec saved{};
  HEADLANE_RETURN_IF_ERROR(reader_.Begin(SavedKind::kSpec, sizeof(saved)));
  HEADLANE_RETURN_IF_ERROR(reader_.Read(&saved, sizeof(saved)));
  HEADLANE_RETURN_IF_ERROR(reader_.End());
  HEADLANE_RETURN_IF_ERROR(CheckSpec(saved, SavedSpecOf(cache_.spec_, cache_.layout_)));
  num_sequences_ = saved.fields[kNumSequencesField];
  if (num_sequences_ < 0) return BadCount("sequences", num_sequences_);
  const int64_t free_sequences = cache_.spec_.max_sequences - cache_.sequences_.num_sequences();
  if (num_sequences_ > free_sequences) {
    return MakeStatus(StatusCode::kResourceExhausted,
                      "saved KV cache: it has %lld sequences, the cache has room for %lld more of max_sequences %lld",
                      LL(num_sequences_), LL(free_sequences), LL(cache_.spec_.max_sequences));
  }

  const int64_t num_layers = cache_.spec_.num_layers;
  HEADLANE_RETURN_IF_ERROR(reader_.Begin(
      SavedKind::kGroups, NumGroups() * int64_t{sizeof(SavedGroup)} + num_layers * int64_t{sizeof(int32_t)}));
  SavedGroup groups[kMaxLayerGroups] = {};
  HEADLANE_RETURN_IF_ERROR(reader_.Read(groups, NumGroups() * int64_t{sizeof(SavedGroup)}));
  int64_t other_layer = -1;
  int32_t other_group = 0;
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    int32_t group = 0;
    HEADLANE_RETURN_IF_ERROR(reader_.Read(&group, sizeof(group)));
    if (other_layer >= 0 || group == GroupOf(cache_.spec_, layer)) continue;
    other_layer = layer;
    other_group = group;
  }
  HEADLANE_RETURN_IF_ERROR(reader_.End());
  if (other_layer >= 0) {
    return MakeStatus(StatusCode::kInvalidArgument, "saved KV cache: group_of_layer[%lld] is %d, the cache has %lld",
                      LL(other_layer), other_group, LL(GroupOf(cache_.spec_, other_layer)));
  }
  for (int64_t g = 0; g < NumGroups(); ++g) {
    const KVGroupLayout& own = cache_.layout_.groups[g];
    const struct {
      const char* name;
      int64_t saved, own;
    } fields[] = {{"window", groups[g].window, own.window},
                  {"num_always_visible", groups[g].num_always_visible, own.num_always_visible},
                  {"max_in_flight", groups[g].max_in_flight, own.max_in_flight}};
    for (const auto& field : fields) {
      if (field.saved == field.own) continue;
      return MakeStatus(StatusCode::kInvalidArgument, "saved KV cache: groups[%lld].%s is %lld, the cache has %lld",
                        LL(g), field.name, LL(field.saved), LL(field.own));
    }
    num_pages_[g] = groups[g].num_pages;
    if (num_pages_[g] < 0) return BadCount("pages", num_pages_[g]);
    if (num_pages_[g] > cache_.pools_[g].free_pages()) {
      return MakeStatus(StatusCode::kResourceExhausted,
                        "saved KV cache: it needs %lld pages, %lld are free in layer group %lld", LL(num_pages_[g]),
                        LL(cache_.pools_[g].free_pages()), LL(g));
    }
    HEADLANE_ASSIGN_OR_RETURN(pages_[g],
                              AlignedBuffer::Create(num_pages_[g] * int64_t{sizeof(SavedPage)}, "KV cache restoring"));
  }
  try {
    restored_.reserve(static_cast<size_t>(num_sequences_));
  } catch (const std::bad_alloc&) {
    return MakeStatus(StatusCode::kResourceExhausted, "saved KV cache: the system has no memory for %lld ids",
                      LL(num_sequences_));
  }
  return OkStatus();
}

// What windows have passed: no less than a commit gives back, and no more than a roll-back leaves without.
Status KVRestorer::CheckFirstKept(const SavedSequence& saved, int64_t group, int64_t first_kept) const noexcept {
  const KVGroupLayout& layout = cache_.layout_.groups[group];
  int64_t least = 0;
  int64_t most = 0;
  if (layout.has_window()) {
    least = std::max<int64_t>(layout.FirstNeeded(saved.length), 0);
    most = saved.length;
    if (saved.length > layout.num_always_visible) {
      most = std::max(layout.num_always_visible, saved.length - layout.window + 1);
    }
  }
  if (first_kept >= least && first_kept <= most) return OkStatus();
  return MakeStatus(StatusCode::kDataLoss,
                    "saved KV cache: sequence %lld of %lld tokens keeps those from %lld on in layer group %lld, must "
                    "keep those from a token in %lld .. %lld on",
                    LL(saved.id), LL(saved.length), LL(first_kept), LL(group), LL(least), LL(most));
}

Status KVRestorer::ReadSequence() noexcept {
  HEADLANE_RETURN_IF_ERROR(reader_.BeginAnySize(SavedKind::kSequence));
  SavedSequence saved{};
  HEADLANE_RETURN_IF_ERROR(reader_.Read(&saved, sizeof(saved)));
  if (saved.length < 0) return BadSequence(saved, "its length is", saved.length, 0);
  if (saved.length > cache_.layout_.max_positions) {
    return MakeStatus(StatusCode::kOutOfRange,
                      "saved KV cache: sequence %lld has %lld tokens, the cache has max_positions %lld", LL(saved.id),
                      LL(saved.length), LL(cache_.layout_.max_positions));
  }
  const int64_t num_pages = CeilDiv(saved.length, cache_.spec_.page_tokens);
  for (int64_t g = 0; g < NumGroups(); ++g) {
    if (num_pages <= cache_.layout_.groups[g].table_pages) continue;
    return BadSequence(saved, "its pages, and the pages of the pool are", num_pages,
                       cache_.layout_.groups[g].table_pages);
  }
  int64_t first_kept[kMaxLayerGroups] = {};
  HEADLANE_RETURN_IF_ERROR(reader_.Read(first_kept, NumGroups() * int64_t{sizeof(int64_t)}));
  HEADLANE_RETURN_IF_ERROR(reader_.ExpectLeft(NumGroups() * num_pages * int64_t{sizeof(int32_t)}));
  // From here on it is one to undo.
  HEADLANE_ASSIGN_OR_RETURN(const SequenceId id, cache_.sequences_.Add());
  restored_.push_back({SequenceId{saved.id}, id});
  Sequence* const sequence = cache_.sequences_.Find(id);
  for (int64_t g = 0; g < NumGroups(); ++g) {
    sequence->groups[g].first_kept = first_kept[g];
    HEADLANE_RETURN_IF_ERROR(reader_.Read(sequence->groups[g].pages, num_pages * int64_t{sizeof(int32_t)}));
  }
  HEADLANE_RETURN_IF_ERROR(reader_.End());
  sequence->length = saved.length;
  for (int64_t g = 0; g < NumGroups(); ++g) {
    HEADLANE_RETURN_IF_ERROR(CheckFirstKept(saved, g, first_kept[g]));
    HEADLANE_RETURN_IF_ERROR(CheckPages(saved, *sequence, g));
  }
  return OkStatus();
}

// Pages are new ones, in order, or those of an earlier sequence, at the same place. What forks share is where they
// begin; with a window, behind what only one of them has passed as well.
Status KVRestorer::CheckPages(const SavedSequence& saved, const Sequence& sequence, int64_t group) noexcept {
  const KVGroupLayout& layout = cache_.layout_.groups[group];
  const SequenceGroup& held = sequence.groups[group];
  const int64_t page_tokens = cache_.spec_.page_tokens;
  const int64_t first_passed = CeilDiv(layout.num_always_visible, page_tokens);
  const int64_t end_passed = held.first_kept / page_tokens;
  const int64_t num_before = num_named_[group];
  int32_t before = -1;
  for (int64_t i = 0; i < CeilDiv(sequence.length, page_tokens); ++i) {
    const int32_t number = held.pages[i];
    const bool passed = i >= first_passed && i < end_passed;
    if (passed != (number == -1)) return BadSequence(saved, "its page, and the number of that page, are", i, number);
    if (passed) {
      before = -1;
      continue;
    }
    if (number < 0 || number > num_named_[group] || number >= num_pages_[group]) {
      return BadSequence(saved, "the number of a page, and the next new page's, are", number, num_named_[group]);
    }
    SavedPage& page = PageOf(group, number);
    if (number == num_named_[group]) {
      ++num_named_[group];
      page = {static_cast<int32_t>(i), before, 0, 0, 0};
    } else if (number >= num_before || page.place != i || (!layout.has_window() && before >= num_before)) {
      return BadSequence(saved, "a page that is shared stands at, not at", i, page.place);
    } else if (!layout.has_window() && page.predecessor != before) {
      return BadSequence(saved, "a page that is shared stands behind, not behind", before, page.predecessor);
    }
    const int64_t num_tokens = std::min(page_tokens, sequence.length - i * page_tokens);
    page.num_tokens = std::max(page.num_tokens, static_cast<int32_t>(num_tokens));
    ++page.num_holders;
    before = number;
  }
  return OkStatus();
}

Status KVRestorer::ReadPage(int64_t group, int64_t number) noexcept {
  SavedPage& saved = PageOf(group, number);
  const int32_t page = cache_.pools_[group].Next(number);
  const KVLayout& layout = cache_.layout_;
  HEADLANE_RETURN_IF_ERROR(reader_.BeginAnySize(SavedKind::kPage));
  int64_t num_ids = 0;
  HEADLANE_RETURN_IF_ERROR(reader_.Read(&num_ids, sizeof(num_ids)));
  if (num_ids < 0 || num_ids > (group == cache_.ids_group_ ? saved.num_tokens : 0)) {
    return MakeStatus(StatusCode::kDataLoss, "saved KV cache: page %lld has %lld ids and %d tokens", LL(number),
                      LL(num_ids), saved.num_tokens);
  }
  saved.num_ids = static_cast<int32_t>(num_ids);
  HEADLANE_RETURN_IF_ERROR(reader_.ExpectLeft(num_ids * int64_t{sizeof(int32_t)} +
                                              layout.groups[group].num_layers * cache_.spec_.num_kv_heads *
                                                  CeilDiv(saved.num_tokens, kTileKeys) *
                                                  (layout.k_tile_bytes + layout.v_tile_bytes)));
  if (num_ids > 0) {
    HEADLANE_RETURN_IF_ERROR(reader_.Read(cache_.page_ids_.RoomOf(page), num_ids * int64_t{sizeof(int32_t)}));
  }
  for (int64_t layer = 0; layer < cache_.spec_.num_layers; ++layer) {
    if (GroupOf(cache_.spec_, layer) != group) continue;
    HEADLANE_RETURN_IF_ERROR(ReadSlab(layer, page, saved.num_tokens));
  }
  return reader_.End();
}

// Reads into the page, which is free, and then looks at what it has read.
Status KVRestorer::ReadSlab(int64_t layer, int32_t page, int64_t num_tokens) noexcept {
  const KVCacheSpec& spec = cache_.spec_;
  const KVAddressing& at = cache_.addressing_;
  const int64_t num_tiles = CeilDiv(num_tokens, kTileKeys);
  if (num_tiles == cache_.layout_.tiles_per_page) {
    HEADLANE_RETURN_IF_ERROR(reader_.Read(at.KTile(layer, page, 0, 0), cache_.layout_.slab_bytes));
  } else {
    for (int64_t head = 0; head < spec.num_kv_heads; ++head) {
      HEADLANE_RETURN_IF_ERROR(reader_.Read(at.KTile(layer, page, head, 0), num_tiles * at.k_tile_bytes));
      HEADLANE_RETURN_IF_ERROR(reader_.Read(at.VTile(layer, page, head, 0), num_tiles * at.v_tile_bytes));
    }
  }
  const TileKind k_kind = KTileKind(spec.k_dtype, spec.qk_dim);
  const TileKind v_kind = spec.values_in_keys ? TileKind{} : VTileKind(spec.v_dtype, spec.v_dim);
  cache_.marks_.Forget(layer, page, 0);
  for (int64_t tile = 0; tile < num_tiles; ++tile) {
    const int64_t count = std::min(kTileKeys, num_tokens - tile * kTileKeys);
    for (int64_t head = 0; head < spec.num_kv_heads; ++head) {
      bool non_finite = false;
      const char* wrong = CheckClean(k_kind, at.KTile(layer, page, head, tile), count,
                                     spec.values_in_keys ? spec.v_dim : 0, &non_finite);
      if (wrong == nullptr && !spec.values_in_keys) {
        wrong = CheckClean(v_kind, at.VTile(layer, page, head, tile), count, spec.v_dim, &non_finite);
      }
      if (wrong != nullptr) {
        return MakeStatus(StatusCode::kDataLoss, "saved KV cache: layer %lld, head %lld, tile %lld of a page: %s",
                          LL(layer), LL(head), LL(tile), wrong);
      }
      cache_.marks_.flags().Tiles(layer, page, head)[tile] = non_finite ? 1 : 0;
    }
    cache_.marks_.Written(layer, page, tile) = static_cast<uint16_t>((1u << count) - 1u);
  }
  return OkStatus();
}

// The tokens of a sequence that have ids are its first ones.
Status KVRestorer::CheckIds() noexcept {
  if (cache_.ids_group_ < 0) return OkStatus();
  const int64_t page_tokens = cache_.spec_.page_tokens;
  for (const RestoredSequence& restored : restored_) {
    const Sequence& sequence = *cache_.sequences_.Find(restored.id);
    bool ended = false;
    for (int64_t i = 0; i < CeilDiv(sequence.length, page_tokens); ++i) {
      const int32_t num_ids = PageOf(cache_.ids_group_, sequence.groups[cache_.ids_group_].pages[i]).num_ids;
      if (ended && num_ids > 0) {
        return MakeStatus(StatusCode::kDataLoss,
                          "saved KV cache: sequence %lld has ids in page %lld behind tokens without",
                          LL(restored.saved.value), LL(i));
      }
      ended = num_ids < page_tokens;
    }
  }
  return OkStatus();
}

void KVRestorer::Undo() noexcept {
  for (; !restored_.empty(); restored_.pop_back()) {
    cache_.sequences_.UndoAdd(cache_.sequences_.Find(restored_.back().id));
  }
}

void KVRestorer::Commit() noexcept {
  const int64_t page_tokens = cache_.spec_.page_tokens;
  for (const RestoredSequence& restored : restored_) {
    Sequence* const sequence = cache_.sequences_.Find(restored.id);
    sequence->num_pages = CeilDiv(sequence->length, page_tokens);
    cache_.num_tokens_ += sequence->length;
    for (int64_t g = 0; g < NumGroups(); ++g) {
      for (int64_t i = 0; i < sequence->num_pages; ++i) {
        int32_t& number = sequence->groups[g].pages[i];
        if (number < 0) continue;
        const int32_t page = cache_.pools_[g].Next(number);
        if (g == cache_.ids_group_) cache_.page_ids_.SetCount(page, PageOf(g, number).num_ids);
        number = page;
      }
    }
    cache_.HashIds(*sequence);
  }
  for (int64_t g = 0; g < NumGroups(); ++g) {
    for (int64_t i = 0; i < num_pages_[g]; ++i) {
      const int32_t page = cache_.pools_[g].Take();
      for (int32_t holder = 1; holder < PageOf(g, i).num_holders; ++holder) cache_.pools_[g].Share(page);
    }
  }
}

Result<std::vector<RestoredSequence>> KVCacheImpl::Restore(const KVSource& source, const KVRestoreEnd& end) noexcept {
  if (source.read == nullptr) return MakeStatus(StatusCode::kInvalidArgument, "KVSource: read is null");
  KVRestorer restorer(this, source);
  Status status = restorer.ReadAll();
  if (status.ok() && end.check != nullptr) status = end.check(end.context);
  if (!status.ok()) {
    restorer.Undo();
    return status;
  }
  restorer.Commit();
  return std::move(restorer.restored());
}

}  // namespace headlane::internal
