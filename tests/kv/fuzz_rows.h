// What the tokens of a random history are, one number at a time: the rows that are given to the cache, in any type and
// with any rotation on the way, and the rows that it must hold then, made by the reference's programs.
#ifndef HEADLANE_TESTS_KV_FUZZ_ROWS_H_
#define HEADLANE_TESTS_KV_FUZZ_ROWS_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "base/float16.h"
#include "headlane/kv_cache.h"
#include "headlane/ops.h"
#include "kv/attend.h"
#include "kv/kv_test_util.h"
#include "reference/canonical.h"
#include "reference/canonical_ops.h"
#include "reference/problem.h"

namespace headlane::internal {

// Rows [n][heads][dim] of a type that callers have; the numbers have to be of that type.
class GivenRows {
 public:
  GivenRows(DType dtype, const std::vector<float>& rows, int64_t heads, int64_t dim)
      : bytes_(rows.size() * static_cast<size_t>(DTypeBytes(dtype))) {
    for (size_t i = 0; i < rows.size(); ++i) {
      const uint16_t half = dtype == DType::kF16 ? F32ToF16(rows[i]) : F32ToBF16(rows[i]);
      std::memcpy(bytes_.data() + i * static_cast<size_t>(DTypeBytes(dtype)),
                  dtype == DType::kF32 ? static_cast<const void*>(&rows[i]) : &half,
                  static_cast<size_t>(DTypeBytes(dtype)));
    }
    const int64_t n = static_cast<int64_t>(rows.size()) / (heads * dim);
    view_ = {bytes_.data(), dtype, 1, n, heads, dim, n * heads * dim, heads * dim, dim, 1};
  }
  GivenRows(const GivenRows&) = delete;
  GivenRows& operator=(const GivenRows&) = delete;

  const TensorView& view() const { return view_; }
  ConstTensorView const_view() const {
    return {view_.data, view_.dtype,        view_.num_batch,    view_.num_tokens,  view_.num_heads,
            view_.dim,  view_.batch_stride, view_.token_stride, view_.head_stride, view_.dim_stride};
  }
  std::vector<float> Floats() const {
    std::vector<float> floats;
    const size_t bytes = static_cast<size_t>(DTypeBytes(view_.dtype));
    for (size_t at = 0; at < bytes_.size(); at += bytes) {
      float x = 0;
      uint16_t half = 0;
      std::memcpy(view_.dtype == DType::kF32 ? static_cast<void*>(&x) : &half, bytes_.data() + at, bytes);
      if (view_.dtype != DType::kF32) x = view_.dtype == DType::kF16 ? F16ToF32(half) : BF16ToF32(half);
      floats.push_back(x);
    }
    return floats;
  }

 private:
  std::vector<unsigned char> bytes_;
  TensorView view_;
};

// One head's row of f32 as a cache of this type holds it.
inline std::vector<float> EncodedRow(DType dtype, std::vector<float> row) {
  if (IsQuantized(dtype)) return CodedRow(dtype, row);
  if (dtype == DType::kF32) return row;
  const auto type = dtype == DType::kF16 ? reference::OutType::kF16 : reference::OutType::kBF16;
  for (float& x : row) x = reference::RoundTo(type, x);
  return row;
}

// Turns one head's features by a position.
inline void TurnRow(const RopeShift& shift, int64_t position, std::vector<float>* row) {
  std::vector<float> cos(static_cast<size_t>(shift.rope.rotary_dim / 2)), sin(cos.size());
  EXPECT_TRUE(Succeeds(RopeAngles(shift.rope, &position, 1, cos.data(), sin.data())));
  const int64_t dim = static_cast<int64_t>(row->size()) - shift.first_feature;
  EXPECT_TRUE(Succeeds(
      ApplyRope(shift.rope, cos.data(), sin.data(), TokensHeadsDim(row->data() + shift.first_feature, 1, 1, dim))));
}

// One head's stored key, decoded, turned by -n positions and stored again, as KVCache::Remove says. `first`: the
// features before it are values, too.
inline std::vector<float> TurnedKey(DType dtype, bool rotate, int64_t first, RopeShift shift, int64_t n,
                                    std::vector<float> key) {
  shift.rope.attention_factor = 1.0;
  const int64_t dim = static_cast<int64_t>(key.size()) - first;
  if (rotate) reference::CanonicalHadamard(key.data() + first, dim);
  TurnRow(shift, -n, &key);
  if (rotate) reference::CanonicalHadamard(key.data() + first, dim);
  return EncodedRow(dtype, key);
}

// Tokens by their names, 0, 1, ...: how each came to be, and its rows as they are stored.
class TokenStore {
 public:
  // How tokens are given to the cache: their types, and whether their keys are rotated on the way.
  struct Given {
    DType k = DType::kF32;
    DType v = DType::kF32;
    bool turned = false;
  };
  struct Rows {
    std::vector<float> k, v;  // [heads][dim]
  };

  // `shifts`: the rotation of each layer group.
  void Begin(const KVCacheSpec& spec, const std::vector<RopeShift>& shifts) {
    spec_ = spec;
    shifts_ = shifts;
  }

  std::vector<int64_t> Add(int64_t n, int64_t position, const Given& given) {
    const int64_t first = static_cast<int64_t>(tokens_.size());
    for (int64_t i = 0; i < n; ++i) tokens_.push_back({given, position + i, -1, 0});
    return Names(first, n);
  }
  // The token with its key turned by -n positions.
  int64_t AddTurned(int64_t parent, int64_t n) {
    tokens_.push_back({{}, 0, parent, n});
    return static_cast<int64_t>(tokens_.size()) - 1;
  }

  // Writes new tokens, all given alike, to all layers, with their places told in any way.
  Status Write(KVCache& cache, SequenceId id, const std::vector<int64_t>& names, Random& random) const {
    for (int64_t layer = 0; !names.empty() && layer < spec_.num_layers; ++layer) {
      const Token& token = tokens_[static_cast<size_t>(names[0])];
      std::vector<float> k, v;
      for (const int64_t name : names) {
        for (int64_t head = 0; head < spec_.num_kv_heads; ++head) {
          AppendTokenRow(&k, spec_.k_dtype, spec_.qk_dim, name, layer, head, 0, false);
          AppendTokenRow(&v, spec_.v_dtype, spec_.v_dim, name, layer, head, 1, false);
        }
      }
      const GivenRows keys(token.given.k, k, spec_.num_kv_heads, spec_.qk_dim);
      const GivenRows values(token.given.v, v, spec_.num_kv_heads, spec_.v_dim);
      const ConstTensorView v_view = spec_.values_in_keys ? ConstTensorView{} : values.const_view();
      Status written;
      if (!token.given.turned) {
        written = cache.Write(id, layer, keys.const_view(), v_view);
      } else {
        KeyTransform transform;
        transform.rope = ShiftOf(layer);
        std::vector<int64_t> positions;
        positions.reserve(names.size());
        for (const int64_t name : names) positions.push_back(tokens_[static_cast<size_t>(name)].position);
        const size_t angles = positions.size() * static_cast<size_t>(transform.rope.rope.rotary_dim / 2);
        std::vector<float> cos(angles), sin(angles);
        const int64_t how = random.Int(0, 2);
        if (how == 0) transform.positions = positions.data();
        if (how == 1 && angles > 0) {
          const Status made = RopeAngles(transform.rope.rope, positions.data(), static_cast<int64_t>(positions.size()),
                                         cos.data(), sin.data());
          if (!made.ok()) return made;
          transform.cos = cos.data();
          transform.sin = sin.data();
        }
        written = cache.Write(id, layer, keys.const_view(), v_view, transform);
      }
      if (!written.ok()) return written;
    }
    return OkStatus();
  }

  const Rows& Stored(int64_t name, int64_t layer) {
    Rows& rows = stored_[{name, layer}];
    if (rows.k.empty()) rows = Make(tokens_[static_cast<size_t>(name)], name, layer);
    return rows;
  }
  Rows Stored(const std::vector<int64_t>& names, int64_t layer) {
    Rows all;
    for (const int64_t name : names) {
      const Rows& rows = Stored(name, layer);
      all.k.insert(all.k.end(), rows.k.begin(), rows.k.end());
      all.v.insert(all.v.end(), rows.v.begin(), rows.v.end());
    }
    return all;
  }

 private:
  struct Token {
    Given given;
    int64_t position;
    int64_t parent;  // -1: none; then what is above says how it was written
    int64_t turns;
  };

  const RopeShift& ShiftOf(int64_t layer) const {
    return shifts_[static_cast<size_t>(spec_.group_of_layer[static_cast<size_t>(layer)])];
  }

  Rows Make(const Token& token, int64_t name, int64_t layer) {
    const RopeShift& shift = ShiftOf(layer);
    const size_t dim = static_cast<size_t>(spec_.qk_dim);
    Rows rows;
    if (token.parent >= 0) {
      rows = Stored(token.parent, layer);
      for (size_t at = 0; shift.rope.rotary_dim > 0 && at < rows.k.size(); at += dim) {
        const auto key = rows.k.begin() + static_cast<std::ptrdiff_t>(at);
        const std::vector<float> turned = TurnedKey(spec_.k_dtype, spec_.rotate, spec_.values_in_keys ? spec_.v_dim : 0,
                                                    shift, token.turns, {key, key + static_cast<std::ptrdiff_t>(dim)});
        std::copy(turned.begin(), turned.end(), key);
      }
    } else {
      for (int64_t head = 0; head < spec_.num_kv_heads; ++head) {
        std::vector<float> key, value;
        AppendTokenRow(&key, spec_.k_dtype, spec_.qk_dim, name, layer, head, 0, false);
        AppendTokenRow(&value, spec_.v_dtype, spec_.v_dim, name, layer, head, 1, false);
        if (token.given.turned && shift.rope.rotary_dim > 0) {
          TurnRow(shift, token.position, &key);
          key = GivenRows(token.given.k, key, 1, spec_.qk_dim).Floats();
        }
        for (auto& [row, dtype] : {std::pair{&key, spec_.k_dtype}, {&value, spec_.v_dtype}}) {
          if (spec_.rotate) reference::CanonicalHadamard(row->data(), static_cast<int64_t>(row->size()));
          *row = EncodedRow(dtype, *row);
        }
        rows.k.insert(rows.k.end(), key.begin(), key.end());
        rows.v.insert(rows.v.end(), value.begin(), value.end());
      }
    }
    if (spec_.values_in_keys) {
      rows.v.clear();
      for (size_t at = 0; at < rows.k.size(); at += dim) {
        const auto key = rows.k.begin() + static_cast<std::ptrdiff_t>(at);
        rows.v.insert(rows.v.end(), key, key + spec_.v_dim);
      }
    }
    return rows;
  }

  KVCacheSpec spec_;
  std::vector<RopeShift> shifts_;
  std::vector<Token> tokens_;
  std::map<std::pair<int64_t, int64_t>, Rows> stored_;
};

// Attention over stored rows as plain tensors, by the library. Not for rotated ones.
inline Attended AttendRows(KVCacheSpec spec, const TokenStore::Rows& rows, int64_t q_len, const Mask& mask) {
  spec.values_in_keys = false;
  const int64_t n = static_cast<int64_t>(rows.k.size()) / (spec.num_kv_heads * spec.qk_dim);
  SequenceSpec sequence;
  sequence.q_len = q_len;
  sequence.kv_len = n;
  AttentionArgs args;
  args.k = TokensHeadsDim(rows.k.data(), n, spec.num_kv_heads, spec.qk_dim);
  args.v = TokensHeadsDim(rows.v.data(), n, spec.num_kv_heads, spec.v_dim);
  return Run(SpecFor(spec, mask), sequence, args);
}

// The same by the scalar canonical program, whose bits are those of targets with FMA; `tree`: as reference::Problem's.
inline std::vector<float> AttendCanonically(const KVCacheSpec& spec, const TokenStore::Rows& rows, int64_t q_len,
                                            const Mask& mask, const uint8_t* tree = nullptr) {
  reference::Problem problem;
  problem.num_q_heads = 2 * spec.num_kv_heads;
  problem.num_kv_heads = spec.num_kv_heads;
  problem.qk_dim = spec.qk_dim;
  problem.v_dim = spec.v_dim;
  problem.q_len = q_len;
  problem.kv_len = static_cast<int64_t>(rows.k.size()) / (spec.num_kv_heads * spec.qk_dim);
  std::vector<float> q;
  q.reserve(static_cast<size_t>(q_len * problem.num_q_heads * spec.qk_dim));
  for (int64_t i = 0; i < q_len * problem.num_q_heads * spec.qk_dim; ++i) q.push_back(TokenElement(7, 0, 0, i, 0));
  problem.q = q.data();
  problem.k = rows.k.data();
  problem.v = rows.v.data();
  problem.rotate = spec.rotate;
  problem.tree = tree;
  problem.scale = DefaultScale(spec.qk_dim);
  problem.window = mask.window;
  problem.num_always_visible = mask.num_always_visible;
  return reference::CanonicalAttention(problem).out;
}

}  // namespace headlane::internal

#endif  // HEADLANE_TESTS_KV_FUZZ_ROWS_H_
