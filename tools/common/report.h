// Numbers for people: aligned tables, bytes, rates; and the statistics of timings.
#ifndef HEADLANE_TOOLS_COMMON_REPORT_H_
#define HEADLANE_TOOLS_COMMON_REPORT_H_

#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "headlane/decoder.h"
#include "tools/common/json.h"

namespace headlane::tools {

// Rows of cells in aligned columns: the first to the left, the others to the right. The first row is a heading,
// underlined, if `has_heading`.
void PrintTable(std::FILE* out, const std::vector<std::vector<std::string>>& rows, bool has_heading);

// printf into a string.
[[gnu::format(printf, 1, 2)]] std::string Format(const char* format, ...);
// "1.5 MB": decimal units.
std::string FormatBytes(double bytes);

// The element at `quantile` in 0 .. 1 of sorted values: the smallest with at least that share at or below it; 0 for
// none.
double Quantile(std::span<const double> sorted, double quantile);
double Median(std::vector<double> values);

// a / b, and 0 where there is nothing to divide by.
double Ratio(double a, double b);

// Tokens per second, shares of time, GB/s of keys and values and of weights: for --json and for a table's column.
Json PhaseJson(const PhaseStats& stats);
// {label, one cell per phase} for each figure; "-" where a phase has no tokens.
std::vector<std::vector<std::string>> PhaseRows(std::span<const PhaseStats> phases);

// FNV-1a, 64 bits, over the bytes of a row of floats as they lie in memory: 16 hexadecimal digits.
std::string HashBits(std::span<const float> row);

}  // namespace headlane::tools

#endif  // HEADLANE_TOOLS_COMMON_REPORT_H_
