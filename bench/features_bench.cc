// What changes the cost of plain causal attention: windows, latent attention, masks and score modifiers, each beside
// the plain run that it is compared with.
#include <string>

#include "bench/attention_task.h"

namespace headlane::bench {
namespace {

// A window on a long sequence reads the keys of the window and no more. Both of the pair find their keys in the caches,
// from call to call, so that what is compared is the work: no machine has room for so many long sequences that the ends
// of all of them together are beyond its caches. For that reason there is no limit to compare with either.
void RegisterWindow(AttentionRegistrar& registrar) {
  constexpr int64_t kWindow = 1024, kLong = 65536;
  const ModelShape& model = *FindModelShape("llama-3-8b");
  const auto make = [&](int64_t q_len, int64_t kv_len) {
    AttentionTask task;
    task.shape = {model, 1, q_len, kv_len};
    task.quick = task.targets = true;
    const std::string rows = q_len == 1 ? "" : "/rows:" + std::to_string(q_len);
    task.series = task.name = std::string("window/") + model.name + "/" + std::to_string(kv_len) + rows;
    return task;
  };
  for (const int64_t q_len : {1, 16}) {
    const AttentionTask unit = make(q_len, kWindow);
    AttentionTask task = make(q_len, kLong);
    task.shape.modifiers.window = kWindow;
    task.requirement = Requirement::kWindow;
    task.reference = CaseName(unit, kCache);
    registrar.Add(unit, kCache);
    registrar.Add(task, kCache);
  }
}

// 128 query heads on one shared latent of 576 features, whose first 512 are the values.
void RegisterLatent(AttentionRegistrar& registrar) {
  const ModelShape& model = *FindModelShape("deepseek-v3");
  for (const int64_t batch : {1, 8}) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      constexpr int64_t kKeys = 4096;
      AttentionTask task = ColdTask(model, batch, 1, kKeys, dtype);
      task.series = task.name =
          std::string("latent/") + model.name + "/" + std::to_string(kKeys) + "/b" + std::to_string(batch);
      task.quick = batch == 1 && dtype == DType::kF32;
      if (dtype == DType::kF32) registrar.AddBaselines(task);
      registrar.Add(task, kCache);
      if (batch == 1) registrar.Add(task, kPlain);
    }
  }
}

void RegisterModifiers(AttentionRegistrar& registrar) {
  struct Modified {
    const char* name;
    Modifiers modifiers;
  };
  const Modified all[] = {{"none", {}},
                          {"softcap", {.softcap = 30}},
                          {"alibi", {.alibi = true}},
                          {"bias", {.bias = true}},
                          {"mask", {.mask = Modifiers::Mask::kBytes}},
                          {"mask-bits", {.mask = Modifiers::Mask::kBits}},
                          {"all", {.softcap = 30, .alibi = true, .bias = true, .mask = Modifiers::Mask::kBits}}};
  const ModelShape& model = *FindModelShape("llama-3-8b");
  for (const bool prefill : {true, false}) {
    std::string plain;
    for (const Modified& modified : all) {
      AttentionTask task = prefill ? PrefillTask(model, 2048, DType::kF32) : ColdTask(model, 1, 1, 4096, DType::kF32);
      task.shape.modifiers = modified.modifiers;
      task.series = task.name =
          std::string("modifiers/") + model.name + (prefill ? "/prefill:2048/" : "/decode:4096/") + modified.name;
      if (plain.empty()) {
        plain = CaseName(task, kCache);
      } else {
        task.reference = plain;
      }
      registrar.Add(task, kCache);
    }
  }
}

}  // namespace

void RegisterFeatures(Session& session) {
  AttentionRegistrar registrar(session);
  RegisterWindow(registrar);
  RegisterLatent(registrar);
  RegisterModifiers(registrar);
}

}  // namespace headlane::bench
