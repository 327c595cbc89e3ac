// What the project asks of its own speed, kind of work by kind of work: one table that the report judges figures by.
//
// A missed requirement is no failure of the benchmark: machines differ, and tests assert no timings.
#ifndef HEADLANE_BENCH_TARGETS_H_
#define HEADLANE_BENCH_TARGETS_H_

#include "bench/limits.h"
#include "bench/roofline.h"

namespace headlane::bench {

enum class Requirement {
  kNone,
  kPrefill128,
  kPrefill512,
  kPrefillLong,
  kPrefill16Bit,
  kDecode,
  kDecodeBalanced,
  kDecodePlain,
  kDecodeBalancedPlain,
  kOneHead,
  kRows,
  kWindow,
  kScaling,
  kDecodeInt8,
  kDecodeBalancedInt8,
  kDecodeFp8,
  kDecodeInt4,
  kPrefillQuantized,
  kAppend,
  kFork,
  kLinearRow,
  kLinearRowCodes,
  kLinearRows,
};

struct RequirementRow {
  Requirement requirement;
  const char* work;            // for the report
  double least_percent;        // of the roofline, with AVX2; 0: not judged by it
  double most_ratio;           // of two times; 0: not judged by it. With both, both must hold
  double most_microseconds{};  // 0: not judged by it
};

inline constexpr RequirementRow kRequirements[] = {
    {Requirement::kPrefill128, "prefill of 128 tokens, f32, 32/8 x 128", 50, 0},
    {Requirement::kPrefill512, "prefill of 512 tokens, f32, 32/8 x 128", 70, 0},
    {Requirement::kPrefillLong, "prefill of 2048 and 4096 tokens, f32", 80, 0},
    {Requirement::kPrefill16Bit, "prefill of 2048 tokens, f16 and bf16 keys and values", 75, 0},
    {Requirement::kDecode, "decode, bound by memory, cache", 90, 0},
    {Requirement::kDecodeBalanced, "decode, multiply-adds weigh as much, cache", 75, 0},
    {Requirement::kDecodePlain, "decode, bound by memory, plain tensors", 75, 0},
    {Requirement::kDecodeBalancedPlain, "decode, multiply-adds weigh as much, plain tensors", 65, 0},
    {Requirement::kOneHead, "decode, one sequence, one KV head, 65536 keys", 90, 0},
    {Requirement::kRows, "2 to 32 query rows on 4096 keys", 70, 0},
    {Requirement::kWindow, "window of 1024 on 65536 keys, time over that of 1024 keys", 0, 1.3},
    {Requirement::kScaling, "prefill, time / tokens^2 up to 8192, over that of 512", 0, 1.05},
    {Requirement::kDecodeInt8, "decode, int8, 32/32, and no slower than f16", 80, 1},
    {Requirement::kDecodeBalancedInt8, "decode, int8, grouped heads, and no slower than f16", 65, 1},
    {Requirement::kDecodeFp8, "decode, fp8, and no slower than f16", 60, 1},
    {Requirement::kDecodeInt4, "decode, int4, and no slower than f16", 55, 1},
    {Requirement::kPrefillQuantized, "prefill of 2048 tokens, int8, fp8 and int4 keys and values", 70, 0},
    {Requirement::kAppend, "append of a token to all layers over their attention at 4096 keys", 0, 0.02},
    {Requirement::kFork, "fork of a sequence of 65536 tokens", 0, 0, 50},
    {Requirement::kLinearRow, "one row of a linear layer, weights of 8 bits and more", 85, 0},
    {Requirement::kLinearRowCodes, "one row of a linear layer, weights of 4 to 6 bits", 70, 0},
    {Requirement::kLinearRows, "512 rows of a linear layer, and no slower than oneDNN on f32", 80, 1},
};

// Requires: not kNone.
const RequirementRow& RowOf(Requirement requirement);

// Quantised types, whose conversions weigh: by type, int8 by its heads too.
//
// Bound by memory: the multiply-adds of all query heads of a group take less than half the time of reading; so counted
// for AVX2, that is up to a group of 4 with f32, and of 1 with the conversions that 16 bits need.
Requirement DecodeRequirement(const AttentionShape& shape, bool plain);

// In percent. With vectors of 16 lanes the multiply-add peak is twice as high, and what is measured against it may fall
// 10 points shorter.
double LeastPercent(Requirement requirement, bool bound_by_memory, const MachineLimits& limits);

}  // namespace headlane::bench

#endif  // HEADLANE_BENCH_TARGETS_H_
