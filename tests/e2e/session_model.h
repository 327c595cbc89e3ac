// A small model, loaded, and what tests of sessions do with one.
#ifndef HEADLANE_TESTS_E2E_SESSION_MODEL_H_
#define HEADLANE_TESTS_E2E_SESSION_MODEL_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "e2e/tiny_model.h"
#include "headlane/decoder.h"
#include "support/random.h"

namespace headlane::testing {

inline Model LoadFile(const std::string& path, const LoadOptions& options) {
  Result<Model> model = Model::Open(path);
  EXPECT_TRUE(model.ok()) << model.status().c_str();
  const Status loaded = model->LoadWeights(options);
  EXPECT_TRUE(loaded.ok()) << loaded.c_str();
  return std::move(model).value();
}

inline Model LoadTiny(const TinyModel& tiny) {
  const TemporaryFile file(tiny.Build());
  return LoadFile(file.path(), LoadOptions());
}

inline Session MakeSession(const Model& model, const SessionOptions& options) {
  Result<Session> session = Session::Create(model, options);
  EXPECT_TRUE(session.ok()) << session.status().c_str();
  return std::move(session).value();
}

inline std::vector<int32_t> SomeIds(size_t count, uint64_t seed) {
  Random random(seed);
  std::vector<int32_t> ids;
  for (size_t i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>(random.Int(0, 259)));
  return ids;
}

inline std::vector<float> Copy(std::span<const float> row) { return {row.begin(), row.end()}; }

inline bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

inline bool SameBits(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const auto& left, const auto& right) { return SameBits(left, right); });
}

// Logits after each token, fed one by one.
inline std::vector<std::vector<float>> StepAll(Session& session, const std::vector<int32_t>& ids) {
  std::vector<std::vector<float>> rows;
  for (const int32_t id : ids) {
    const auto logits = session.Step(id);
    EXPECT_TRUE(logits.ok()) << logits.status().c_str();
    rows.push_back(Copy(*logits));
  }
  return rows;
}

}  // namespace headlane::testing

#endif  // HEADLANE_TESTS_E2E_SESSION_MODEL_H_
