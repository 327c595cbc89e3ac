// Workspace: memory for one run at a time.
#include <new>
#include <utility>

#include "base/aligned_buffer.h"
#include "headlane/attention.h"

namespace headlane {
namespace {

using internal::AlignedBuffer;

}  // namespace

Result<Workspace> Workspace::Create(const AttentionPlan& plan) noexcept {
  const size_t bytes = plan.workspace_bytes();
  HEADLANE_ASSIGN_OR_RETURN(AlignedBuffer buffer,
                            AlignedBuffer::Create(static_cast<int64_t>(bytes), "an attention workspace"));
  AlignedBuffer* const owned = new (std::nothrow) AlignedBuffer(std::move(buffer));
  if (owned == nullptr) return MakeStatus(StatusCode::kResourceExhausted, "no memory for an attention workspace");
  return Workspace(owned->data(), bytes, owned);
}

Result<Workspace> Workspace::Over(const AttentionPlan& plan, void* memory, size_t bytes) noexcept {
  if (memory == nullptr) return MakeStatus(StatusCode::kInvalidArgument, "the workspace's memory is null");
  if (bytes < plan.workspace_bytes()) {
    return MakeStatus(StatusCode::kInvalidArgument, "the workspace has %zu bytes, but the plan needs %zu", bytes,
                      plan.workspace_bytes());
  }
  return Workspace(memory, bytes, nullptr);
}

Workspace::Workspace(Workspace&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      owned_(std::exchange(other.owned_, nullptr)) {}

Workspace& Workspace::operator=(Workspace&& other) noexcept {
  if (this != &other) {
    delete static_cast<AlignedBuffer*>(owned_);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    owned_ = std::exchange(other.owned_, nullptr);
  }
  return *this;
}

Workspace::~Workspace() { delete static_cast<AlignedBuffer*>(owned_); }

}  // namespace headlane
