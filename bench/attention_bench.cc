// Prefill, decode and few rows (speculative verification) on the shapes of known models.
#include <string>

#include "bench/attention_task.h"

namespace headlane::bench {
namespace {

constexpr DType kSixteenBits[] = {DType::kF16, DType::kBF16};
constexpr DType kQuantized[] = {DType::kI8, DType::kF8E4M3, DType::kI4};

Requirement PrefillRequirement(const ModelShape& model, int64_t length, DType dtype) {
  if (dtype != DType::kF32) return length == 2048 ? Requirement::kPrefill16Bit : Requirement::kNone;
  if (length == 2048 || length == 4096) return Requirement::kPrefillLong;
  if (!IsAnyOf(model, {"llama-3-8b"})) return Requirement::kNone;
  if (length == 512) return Requirement::kPrefill512;
  if (length == 128) return Requirement::kPrefill128;
  return Requirement::kNone;
}

void RegisterPrefill(AttentionRegistrar& registrar) {
  for (const ModelShape& model : kModelShapes) {
    if (model.values_in_keys || model.num_q_heads == 1) continue;
    const bool llama = IsAnyOf(model, {"llama-3-8b"});
    for (const int64_t length : {128, 512, 2048, 4096, 8192}) {
      AttentionTask task = PrefillTask(model, length, DType::kF32);
      task.requirement = PrefillRequirement(model, length, DType::kF32);
      task.quick = llama && (length == 512 || length == 2048);
      if (length == 8192) {  // for the scaling of cost only
        task.targets = true;
        if (IsAnyOf(model, {"llama-3-8b", "smollm2-135m"})) registrar.Add(task, kCache);
        continue;
      }
      if (length == 512 && IsAnyOf(model, {"smollm2-135m"})) task.targets = true;  // likewise
      if (length == 128) registrar.Add(task, kNaive);
      registrar.AddBaselines(task);
      registrar.Add(task, kCache);
      registrar.Add(task, kPlain);
    }
    if (!IsAnyOf(model, {"llama-3-8b", "llama-2-7b", "smollm2-135m", "gemma-2b"})) continue;
    for (const DType dtype : kSixteenBits) {
      constexpr int64_t kLength = 2048;
      AttentionTask task = PrefillTask(model, kLength, dtype);
      task.requirement = PrefillRequirement(model, kLength, dtype);
      task.quick = llama;
      llama ? registrar.AddBaselines(task) : registrar.Add(task, kOneDnn);
      registrar.Add(task, kCache);
      registrar.Add(task, kPlain);
    }
    if (!IsAnyOf(model, {"llama-3-8b", "llama-2-7b"})) continue;
    for (const DType dtype : kQuantized) {
      AttentionTask task = PrefillTask(model, 2048, dtype);
      task.requirement = Requirement::kPrefillQuantized;
      registrar.Add(task, kCache);
    }
  }
}

AttentionTask DecodeTask(const ModelShape& model, int64_t batch, int64_t kv_len, DType dtype) {
  AttentionTask task = ColdTask(model, batch, 1, kv_len, dtype);
  const std::string batch_part = "/b" + std::to_string(batch);
  task.series = std::string("decode/") + model.name + batch_part;
  task.name = std::string("decode/") + model.name + "/" + std::to_string(kv_len) + batch_part;
  return task;
}

void AddDecode(AttentionRegistrar& registrar, AttentionTask& task) {
  for (const Implementation& implementation : {kCache, kPlain}) {
    task.requirement = DecodeRequirement(task.shape, implementation.storage != Storage::kCache);
    registrar.Add(task, implementation);
  }
}

// One sequence with one KV head: all threads share its keys.
void RegisterDecodeOfOneHead(AttentionRegistrar& registrar, const ModelShape& model) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    AttentionTask task = DecodeTask(model, 1, 65536, dtype);
    const bool memory = DecodeRequirement(task.shape, false) == Requirement::kDecode;
    task.quick = memory && dtype == DType::kF32;
    task.targets = true;
    if (dtype == DType::kF32) registrar.AddBaselines(task);
    // Where multiply-adds weigh as much, they do so at any length.
    task.requirement = memory || dtype == DType::kF32 ? Requirement::kOneHead : Requirement::kDecodeBalanced;
    registrar.Add(task, kCache);
  }
}

void RegisterDecode(AttentionRegistrar& registrar) {
  for (const ModelShape& model : kModelShapes) {
    if (model.num_kv_heads == 1 && !model.values_in_keys) RegisterDecodeOfOneHead(registrar, model);
    if (!IsAnyOf(model, {"llama-3-8b", "llama-2-7b", "smollm2-135m", "gemma-2b"})) continue;
    struct Size {
      int64_t batch, kv_len;
    };
    for (const Size size : {Size{1, 4096}, Size{1, 16384}, Size{8, 4096}, Size{8, 16384}}) {
      for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
        AttentionTask task = DecodeTask(model, size.batch, size.kv_len, dtype);
        const bool llama = IsAnyOf(model, {"llama-3-8b"});
        // A batch of long sequences reads gigabytes like a batch of short ones: once is enough.
        if (size.batch == 8 && size.kv_len == 16384 && !(llama && dtype == DType::kF32)) continue;
        const bool small = size.batch == 1 && size.kv_len == 4096;
        task.quick = small && (llama || (dtype == DType::kF32 && model.num_kv_heads == 1));
        task.targets = true;
        if (small && dtype == DType::kF32) registrar.Add(task, kNaive);
        if (dtype == DType::kF32 || (llama && small)) {
          registrar.AddBaselines(task);
        } else if (small) {
          registrar.Add(task, kOneDnn);
        }
        AddDecode(registrar, task);
      }
      if (!IsAnyOf(model, {"llama-3-8b", "llama-2-7b"}) || size.batch != 1) continue;
      const std::string f16 = CaseName(DecodeTask(model, size.batch, size.kv_len, DType::kF16), kCache);
      for (const DType dtype : kQuantized) {
        AttentionTask task = DecodeTask(model, size.batch, size.kv_len, dtype);
        task.quick = size.kv_len == 4096 && dtype == DType::kI8;
        task.requirement = DecodeRequirement(task.shape, false);
        task.reference = f16;
        registrar.Add(task, kCache);
      }
    }
  }
}

void RegisterRows(AttentionRegistrar& registrar) {
  for (const ModelShape& model : kModelShapes) {
    if (!IsAnyOf(model, {"llama-3-8b", "llama-2-7b", "smollm2-135m", "gemma-2b"})) continue;
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      const bool llama = IsAnyOf(model, {"llama-3-8b"});
      if (dtype != DType::kF32 && !llama) continue;
      // All rows of one implementation after each other: they share the keys and values.
      for (const Implementation& implementation : {kOneDnn, kOneDnnGraph, kCache, kPlain}) {
        if (implementation.is_baseline && dtype != DType::kF32) continue;
        if (implementation.storage == Storage::kTokensHeads && !(llama && dtype == DType::kF32)) continue;
        for (const int64_t rows : {2, 4, 8, 16, 32}) {
          constexpr int64_t kKeys = 4096;
          AttentionTask task = ColdTask(model, 1, rows, kKeys, dtype);
          task.name = std::string("rows/") + model.name + "/" + std::to_string(kKeys) + "/rows:" + std::to_string(rows);
          task.series = task.name;
          task.quick = llama && dtype == DType::kF32 && implementation.storage != Storage::kTokensHeads &&
                       (rows == 4 || rows == 16);
          task.requirement = Requirement::kRows;
          registrar.Add(task, implementation);
        }
      }
    }
  }
}

}  // namespace

void RegisterAttention(Session& session) {
  AttentionRegistrar registrar(session);
  RegisterPrefill(registrar);
  RegisterDecode(registrar);
  RegisterRows(registrar);
}

}  // namespace headlane::bench
