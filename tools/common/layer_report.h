// What --numerics fastest measured and chose, for people and for --json.
#ifndef HEADLANE_TOOLS_COMMON_LAYER_REPORT_H_
#define HEADLANE_TOOLS_COMMON_LAYER_REPORT_H_

#include <string>
#include <vector>

#include "headlane/decoder.h"
#include "tools/common/json.h"

namespace headlane::tools {

// A heading and a row per shape of layer; none for a model without choices.
std::vector<std::vector<std::string>> LayerChoiceRows(const Model& model);
// What all layers take together, and why backends were not measured: one line each.
std::vector<std::string> LayerChoiceNotes(const Model& model);
Json LayerChoicesJson(const Model& model);

}  // namespace headlane::tools

#endif  // HEADLANE_TOOLS_COMMON_LAYER_REPORT_H_
