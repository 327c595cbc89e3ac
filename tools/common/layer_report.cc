#include "tools/common/layer_report.h"

#include <algorithm>
#include <cstdint>

#include "tools/common/report.h"

namespace headlane::tools {

std::vector<std::vector<std::string>> LayerChoiceRows(const Model& model) {
  std::vector<std::vector<std::string>> rows;
  for (const LayerChoice& choice : model.layer_choices()) {
    if (rows.empty()) {
      rows.push_back({"layers", "weights"});
      for (const LayerChoice::Candidate& candidate : choice.candidates) {
        rows[0].push_back(
            Format("%lld rows, %s", static_cast<long long>(choice.rows), LinearBackendName(candidate.backend)));
      }
      rows[0].insert(rows[0].end(), {"many rows", "from", "copies"});
    }
    std::vector<std::string> row = {
        Format("%lld x %s", static_cast<long long>(choice.num_layers), choice.layer.c_str()),
        Format("%lld x %lld", static_cast<long long>(choice.out_features), static_cast<long long>(choice.in_features))};
    std::string chosen;
    for (const LayerChoice::Candidate& candidate : choice.candidates) {
      row.push_back(candidate.seconds > 0 ? Format("%.3f ms", 1e3 * candidate.seconds) : "-");
      if (candidate.backend == choice.many_rows) chosen = candidate.implementation;
    }
    row.push_back(chosen);
    row.push_back(choice.from_rows > 0 ? Format("%lld rows", static_cast<long long>(choice.from_rows)) : "-");
    row.push_back(choice.bytes > 0 ? FormatBytes(static_cast<double>(choice.bytes)) : "-");
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<std::string> LayerChoiceNotes(const Model& model) {
  std::vector<std::string> notes;
  double tiles = 0, faster = 0;
  int64_t num_rows = 0;
  for (const LayerChoice& choice : model.layer_choices()) {
    double least = 0;
    for (const LayerChoice::Candidate& candidate : choice.candidates) {
      if (candidate.backend == LinearBackend::kTile)
        tiles += static_cast<double>(choice.num_layers) * candidate.seconds;
      if (candidate.seconds > 0 && (least == 0 || candidate.seconds < least)) least = candidate.seconds;
    }
    faster += static_cast<double>(choice.num_layers) * least;
    num_rows = choice.rows;
  }
  if (tiles > 0) {
    notes.push_back(Format("all layers, %lld rows: tiles %.1f ms, the faster of each %.1f ms%s",
                           static_cast<long long>(num_rows), 1e3 * tiles, 1e3 * faster,
                           model.weight_copy_bytes() > 0 ? "" : ", too little to be worth copies"));
  }
  for (const LayerChoice& choice : model.layer_choices()) {
    for (const LayerChoice::Candidate& candidate : choice.candidates) {
      if (candidate.status.ok()) continue;
      std::string note = Format("%s: %s", LinearBackendName(candidate.backend), candidate.status.c_str());
      if (std::find(notes.begin(), notes.end(), note) == notes.end()) notes.push_back(std::move(note));
    }
  }
  return notes;
}

Json LayerChoicesJson(const Model& model) {
  Json choices = Json::MakeArray();
  for (const LayerChoice& choice : model.layer_choices()) {
    Json candidates = Json::MakeArray();
    for (const LayerChoice::Candidate& candidate : choice.candidates) {
      Json json = {{"backend", LinearBackendName(candidate.backend)}};
      if (candidate.status.ok()) {
        json.Merge({{"implementation", candidate.implementation}, {"seconds", candidate.seconds}});
      } else {
        json["refused"] = candidate.status.c_str();
      }
      candidates.Append(json);
    }
    choices.Append({{"layer", choice.layer},
                    {"layers", choice.num_layers},
                    {"in_features", choice.in_features},
                    {"out_features", choice.out_features},
                    {"measured_rows", choice.rows},
                    {"candidates", candidates},
                    {"many_rows", LinearBackendName(choice.many_rows)},
                    {"from_rows", choice.from_rows},
                    {"copy_bytes", choice.bytes}});
  }
  return choices;
}

}  // namespace headlane::tools
