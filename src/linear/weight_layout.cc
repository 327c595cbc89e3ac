#include "linear/weight_layout.h"

#include <cinttypes>
#include <cstddef>

#include "base/blocking.h"
#include "base/checked_math.h"
#include "base/weight_tile.h"

namespace headlane::internal {
namespace {

Status CheckRowsOf(const LinearPart& part, size_t index, int64_t row_bytes) {
  const StoredRows& rows = part.rows;
  if ((rows.data != nullptr) == (rows.read != nullptr)) {
    return MakeStatus(StatusCode::kInvalidArgument, "linear: part %zu needs either data or read for its rows", index);
  }
  if (rows.data == nullptr) return OkStatus();
  const int64_t stride = rows.row_stride == 0 ? row_bytes : rows.row_stride;
  if (stride < row_bytes) {
    return MakeStatus(StatusCode::kInvalidArgument,
                      "linear: the rows of part %zu are %" PRId64 " bytes apart, and a row has %" PRId64, index, stride,
                      row_bytes);
  }
  int64_t needed = 0;
  if (!CheckedMul(part.out_features - 1, stride, &needed) || !CheckedAdd(needed, row_bytes, &needed) ||
      rows.data_bytes < needed) {
    return MakeStatus(StatusCode::kInvalidArgument,
                      "linear: part %zu has %" PRId64 " bytes of data, too few for %" PRId64 " rows of %" PRId64
                      " bytes",
                      index, rows.data_bytes, part.out_features, row_bytes);
  }
  return OkStatus();
}

}  // namespace

Status CheckLinearSpec(const LinearSpec& spec, bool with_rows, WeightLayout* layout) noexcept {
  *layout = {};
  if (spec.precision != LinearPrecision::kExact && spec.precision != LinearPrecision::kInt8) {
    return MakeStatus(StatusCode::kInvalidArgument, "linear: precision %d is none of 0 .. 1",
                      static_cast<int>(spec.precision));
  }
  if (spec.precision == LinearPrecision::kInt8 && spec.backend != LinearBackend::kTile) {
    return MakeStatus(StatusCode::kUnsupported, "linear: precision 'int8' is for backend 'tile', not '%s'",
                      LinearBackendName(spec.backend));
  }
  if (spec.parts.empty()) return MakeStatus(StatusCode::kInvalidArgument, "linear: a layer of no parts");
  for (size_t i = 0; i < spec.parts.size(); ++i) {
    const LinearPart& part = spec.parts[i];
    if (part.out_features <= 0 || spec.in_features <= 0) {
      return MakeStatus(StatusCode::kInvalidArgument,
                        "linear: weights of [%" PRId64 ", %" PRId64 "], both must be above 0", part.out_features,
                        spec.in_features);
    }
    // A bound on everything that is computed without checks: no format takes more than f32, and padding of tiles.
    int64_t bytes = 0;
    if (!CheckedAdd(spec.in_features, 64, &bytes) ||
        !CheckedProduct({bytes, int64_t{sizeof(float)} * kTileKeys, CeilDiv(part.out_features, kTileKeys)}, &bytes)) {
      return MakeStatus(StatusCode::kResourceExhausted, "linear: weights of [%" PRId64 ", %" PRId64 "] exceed memory",
                        part.out_features, spec.in_features);
    }
    const Result<int64_t> row_bytes = StoredRowBytes(part.format, spec.in_features);
    if (!row_bytes.ok()) {
      return MakeStatus(row_bytes.status().code(), "linear: part %zu: %s", i, row_bytes.status().c_str());
    }
    bytes = WeightTileBytes(part.format, spec.in_features) * CeilDiv(part.out_features, kTileKeys);
    if (!CheckedAdd(layout->packed_bytes, bytes, &layout->packed_bytes) ||
        !CheckedAdd(layout->weight_rows, part.out_features, &layout->weight_rows)) {
      return MakeStatus(StatusCode::kResourceExhausted, "linear: the parts of a layer together exceed memory");
    }
    if (with_rows) HEADLANE_RETURN_IF_ERROR(CheckRowsOf(part, i, *row_bytes));
  }
  switch (spec.output) {
    case LinearOutput::kStore:
    case LinearOutput::kAdd:
      layout->out_features = layout->weight_rows;
      return OkStatus();
    case LinearOutput::kSwiGlu:
      if (spec.parts.size() != 2 || spec.parts[0].out_features != spec.parts[1].out_features) {
        return MakeStatus(StatusCode::kInvalidArgument,
                          "linear: SwiGLU takes two parts of as many features, not %zu of %" PRId64 " and %" PRId64,
                          spec.parts.size(), spec.parts.front().out_features, spec.parts.back().out_features);
      }
      layout->out_features = spec.parts[0].out_features;
      return OkStatus();
  }
  return MakeStatus(StatusCode::kInvalidArgument, "linear: output %d is none of 0 .. 2", static_cast<int>(spec.output));
}

uint64_t WeightLayoutNumber(const LinearSpec& spec) noexcept {
  // FNV-1a, 64 bits, over numbers of 8 bytes.
  uint64_t hash = 0xCBF29CE484222325u;
  const auto add = [&hash](int64_t number) {
    for (int shift = 0; shift < 64; shift += 8) {
      hash = (hash ^ (static_cast<uint64_t>(number) >> shift & 0xFF)) * 0x100000001B3u;
    }
  };
  add(kWeightTileVersion);
  add(spec.in_features);
  for (const LinearPart& part : spec.parts) {
    add(static_cast<int64_t>(part.format));
    add(part.out_features);
  }
  if (spec.precision != LinearPrecision::kExact) add(static_cast<int64_t>(spec.precision));
  return hash;
}

}  // namespace headlane::internal
