// The table of the formats of weights.
#include "headlane/weight_format.h"

#include "base/checked_math.h"

namespace headlane {
namespace {

// In the order of the enum.
constexpr WeightFormatInfo kFormats[kNumWeightFormats] = {
    {WeightFormat::kF32, "F32", 1, 4},       {WeightFormat::kF16, "F16", 1, 2},
    {WeightFormat::kBF16, "BF16", 1, 2},     {WeightFormat::kQ8_0, "Q8_0", 32, 34},
    {WeightFormat::kQ4_0, "Q4_0", 32, 18},   {WeightFormat::kQ4_1, "Q4_1", 32, 20},
    {WeightFormat::kQ5_0, "Q5_0", 32, 22},   {WeightFormat::kQ5_1, "Q5_1", 32, 24},
    {WeightFormat::kQ4_K, "Q4_K", 256, 144}, {WeightFormat::kQ5_K, "Q5_K", 256, 176},
    {WeightFormat::kQ6_K, "Q6_K", 256, 210},
};

}  // namespace

const WeightFormatInfo* FindWeightFormat(WeightFormat format) noexcept {
  const int32_t index = static_cast<int32_t>(format);
  return index >= 0 && index < kNumWeightFormats ? &kFormats[index] : nullptr;
}

const char* WeightFormatName(WeightFormat format) noexcept {
  const WeightFormatInfo* info = FindWeightFormat(format);
  return info != nullptr ? info->name : "?";
}

const char* WeightFormatNames() noexcept { return "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K"; }

Result<int64_t> StoredRowBytes(WeightFormat format, int64_t in_features) noexcept {
  const WeightFormatInfo* info = FindWeightFormat(format);
  if (info == nullptr) {
    return MakeStatus(StatusCode::kUnsupported, "weight format %d is not supported; supported are %s",
                      static_cast<int>(format), WeightFormatNames());
  }
  if (in_features < 0 || in_features % info->block_len != 0) {
    return MakeStatus(StatusCode::kInvalidArgument, "a row of %lld weights is no whole number of %s blocks of %d",
                      static_cast<long long>(in_features), info->name, info->block_len);
  }
  int64_t bytes = 0;
  if (!internal::CheckedMul(in_features / info->block_len, info->block_bytes, &bytes)) {
    return MakeStatus(StatusCode::kInvalidArgument, "a row of %lld %s weights has more bytes than 64 bits count",
                      static_cast<long long>(in_features), info->name);
  }
  return bytes;
}

}  // namespace headlane
