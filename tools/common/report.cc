#include "tools/common/report.h"

#include <algorithm>
#include <cmath>
#include <cstdarg>

namespace headlane::tools {
namespace {

// Columns of a terminal that UTF-8 text takes, for the characters we print: one per character.
size_t Columns(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace

void PrintTable(std::FILE* out, const std::vector<std::vector<std::string>>& rows, bool has_heading) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()), 0);
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], Columns(row[i]));
  }
  for (size_t r = 0; r < rows.size(); ++r) {
    std::string line;
    for (size_t i = 0; i < rows[r].size(); ++i) {
      const std::string padding(widths[i] - Columns(rows[r][i]), ' ');
      if (i > 0) line += "  ";
      line += i == 0 ? rows[r][i] + padding : padding + rows[r][i];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    std::fprintf(out, "%s\n", line.c_str());
    if (r == 0 && has_heading) {
      std::string rule;
      for (size_t i = 0; i < widths.size(); ++i) rule += (i > 0 ? "  " : "") + std::string(widths[i], '-');
      std::fprintf(out, "%s\n", rule.c_str());
    }
  }
}

std::string Format(const char* format, ...) {
  std::va_list args;
  va_start(args, format);
  char buffer[512];
  std::vsnprintf(buffer, sizeof(buffer), format, args);
  va_end(args);
  return buffer;
}

std::string FormatBytes(double bytes) {
  const char* const units[] = {"bytes", "kB", "MB", "GB", "TB"};
  size_t unit = 0;
  while (bytes >= 1000 && unit + 1 < std::size(units)) {
    bytes /= 1000;
    ++unit;
  }
  return Format(unit == 0 ? "%.0f %s" : "%.1f %s", bytes, units[unit]);
}

double Quantile(std::span<const double> sorted, double quantile) {
  if (sorted.empty()) return 0;
  const double rank = std::ceil(quantile * static_cast<double>(sorted.size()));
  const size_t index = rank < 1 ? 0 : static_cast<size_t>(rank) - 1;
  return sorted[std::min(index, sorted.size() - 1)];
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double Ratio(double a, double b) { return b > 0 ? a / b : 0; }

Json PhaseJson(const PhaseStats& stats) {
  return {{"tokens", stats.tokens},
          {"seconds", stats.total},
          {"tokens_per_second", Ratio(static_cast<double>(stats.tokens), stats.total)},
          {"attention_share", Ratio(stats.attention, stats.total)},
          {"linear_share", Ratio(stats.linear, stats.total)},
          {"append_share", Ratio(stats.append, stats.total)},
          {"rest_share", Ratio(stats.rest(), stats.total)},
          {"kv_bytes_read", stats.kv_bytes},
          {"kv_gb_per_second", 1e-9 * Ratio(stats.kv_bytes, stats.attention)},
          {"weight_bytes_read", stats.weight_bytes},
          {"weight_gb_per_second", 1e-9 * Ratio(stats.weight_bytes, stats.linear)}};
}

std::vector<std::vector<std::string>> PhaseRows(std::span<const PhaseStats> phases) {
  std::vector<std::vector<std::string>> rows;
  const auto add = [&](const char* label, const auto& cell) {
    rows.push_back({label});
    for (const PhaseStats& phase : phases) rows.back().push_back(phase.tokens > 0 ? cell(phase) : "-");
  };
  const auto percent = [](double part, double whole) { return Format("%.1f %%", 100 * Ratio(part, whole)); };
  add("tokens", [](const PhaseStats& s) { return Format("%lld", static_cast<long long>(s.tokens)); });
  add("seconds", [](const PhaseStats& s) { return Format("%.3f", s.total); });
  add("tokens per second",
      [](const PhaseStats& s) { return Format("%.1f", Ratio(static_cast<double>(s.tokens), s.total)); });
  add("time in attention", [&](const PhaseStats& s) { return percent(s.attention, s.total); });
  add("time in linear layers", [&](const PhaseStats& s) { return percent(s.linear, s.total); });
  add("time in cache append", [&](const PhaseStats& s) { return percent(s.append, s.total); });
  add("time in the rest", [&](const PhaseStats& s) { return percent(s.rest(), s.total); });
  add("keys and values read",
      [](const PhaseStats& s) { return Format("%.1f GB/s", 1e-9 * Ratio(s.kv_bytes, s.attention)); });
  add("weights read", [](const PhaseStats& s) { return Format("%.1f GB/s", 1e-9 * Ratio(s.weight_bytes, s.linear)); });
  return rows;
}

std::string HashBits(std::span<const float> row) {
  uint64_t hash = 0xCBF29CE484222325u;
  const auto* bytes = reinterpret_cast<const unsigned char*>(row.data());
  for (size_t i = 0; i < row.size_bytes(); ++i) hash = (hash ^ bytes[i]) * 0x100000001B3u;
  return Format("%016llx", static_cast<unsigned long long>(hash));
}

}  // namespace headlane::tools
