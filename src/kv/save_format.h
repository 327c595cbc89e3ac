// What saving and restoring agree on: the sections of a saved cache and the fields of its spec.
//
// Separate so that neither side can have its own idea of them. Called by save.cc, restore.cc, and tests that take saved
// caches apart. The format is described in headlane/kv_file.h.
#ifndef HEADLANE_SRC_KV_SAVE_FORMAT_H_
#define HEADLANE_SRC_KV_SAVE_FORMAT_H_

#include <cstdint>

#include "headlane/attention.h"
#include "headlane/kv_cache.h"
#include "kv/layout.h"

namespace headlane::internal {

struct SavedPrologue {
  char magic[8];
  uint32_t byte_order;
  uint32_t version;
};
inline constexpr char kSavedMagic[8] = {'H', 'L', 'K', 'V', 'S', 'E', 'Q', '\n'};
inline constexpr uint32_t kSavedByteOrder = 0x01020304;

enum class SavedKind : int64_t { kSpec = 1, kGroups, kSequence, kPage, kEnd };

struct SavedFrame {
  int64_t kind;
  int64_t bytes;  // of the payload, which the checksum follows
};

// Fields of the spec section, all int64.
enum SavedField {
  kNumericsVersionField,
  kNumLayersField,
  kNumKVHeadsField,
  kQkDimField,
  kVDimField,
  kKDTypeField,
  kVDTypeField,  // 0 where the values are in the keys
  kValuesInKeysField,
  kPageTokensField,
  kRotateField,
  kNumGroupsField,
  kMaxPositionsField,  // told, not compared: what counts is the length of the sequences
  kNumSequencesField,
  kNumSavedFields,
};

struct SavedSpec {
  int64_t fields[kNumSavedFields];
};

inline SavedSpec SavedSpecOf(const KVCacheSpec& spec, const KVLayout& layout) {
  SavedSpec saved{};
  int64_t* const fields = saved.fields;
  fields[kNumericsVersionField] = kNumericsVersion;
  fields[kNumLayersField] = spec.num_layers;
  fields[kNumKVHeadsField] = spec.num_kv_heads;
  fields[kQkDimField] = spec.qk_dim;
  fields[kVDimField] = spec.v_dim;
  fields[kKDTypeField] = static_cast<int64_t>(spec.k_dtype);
  fields[kVDTypeField] = spec.values_in_keys ? 0 : static_cast<int64_t>(spec.v_dtype);
  fields[kValuesInKeysField] = spec.values_in_keys ? 1 : 0;
  fields[kPageTokensField] = spec.page_tokens;
  fields[kRotateField] = spec.rotate ? 1 : 0;
  fields[kNumGroupsField] = layout.num_groups;
  fields[kMaxPositionsField] = layout.max_positions;
  return saved;
}

struct SavedGroup {
  int64_t window;
  int64_t num_always_visible;
  int64_t max_in_flight;
  int64_t num_pages;
};

// What a sequence's section begins with; [num_groups] first kept tokens follow, then the page numbers.
struct SavedSequence {
  int64_t id;
  int64_t length;
};

}  // namespace headlane::internal

#endif  // HEADLANE_SRC_KV_SAVE_FORMAT_H_
