// The public face of the cache: every call goes to KVCacheImpl.
#include "headlane/kv_cache.h"

#include <utility>

#include "kernels/kernel_api.h"
#include "kv/kv_cache_impl.h"

namespace headlane {

KVCache::KVCache(std::unique_ptr<internal::KVCacheImpl> impl) noexcept : impl_(std::move(impl)) {}
KVCache::KVCache(KVCache&&) noexcept = default;
KVCache& KVCache::operator=(KVCache&&) noexcept = default;
KVCache::~KVCache() = default;

Result<KVCache> KVCache::Create(const KVCacheSpec& spec) noexcept {
  HEADLANE_ASSIGN_OR_RETURN(std::unique_ptr<internal::KVCacheImpl> impl,
                            internal::KVCacheImpl::Create(spec, internal::ActiveKernels().kv));
  return KVCache(std::move(impl));
}

Result<int64_t> KVCache::RequiredBytes(const KVCacheSpec& spec) noexcept {
  HEADLANE_ASSIGN_OR_RETURN(const internal::KVLayout layout, internal::MakeKVLayout(spec));
  return layout.pool_bytes;
}

const KVCacheSpec& KVCache::spec() const noexcept { return impl_->spec(); }
KVCacheUsage KVCache::usage() const noexcept { return impl_->usage(); }
Status KVCache::FirstTouch(Executor& executor) noexcept {
  impl_->FirstTouch(executor);
  return OkStatus();
}
Result<SequenceId> KVCache::CreateSequence() noexcept { return impl_->CreateSequence(); }
Result<SequenceId> KVCache::Fork(SequenceId sequence, int64_t length) noexcept { return impl_->Fork(sequence, length); }
Status KVCache::DropSequence(SequenceId sequence) noexcept { return impl_->DropSequence(sequence); }
Result<int64_t> KVCache::Length(SequenceId sequence) const noexcept { return impl_->Length(sequence); }
Result<KVSequenceUsage> KVCache::SequenceUsage(SequenceId sequence) const noexcept {
  return impl_->SequenceUsage(sequence);
}
Status KVCache::Reserve(SequenceId sequence, int64_t n) noexcept { return impl_->Reserve(sequence, n); }
Status KVCache::Write(SequenceId sequence, int64_t layer, const ConstTensorView& k, const ConstTensorView& v,
                      int64_t begin, int64_t batch) noexcept {
  return impl_->Write(sequence, layer, k, v, nullptr, begin, batch);
}
Status KVCache::Write(SequenceId sequence, int64_t layer, const ConstTensorView& k, const ConstTensorView& v,
                      const KeyTransform& transform, int64_t begin, int64_t batch) noexcept {
  return impl_->Write(sequence, layer, k, v, &transform, begin, batch);
}
Status KVCache::Commit(SequenceId sequence, int64_t n) noexcept { return impl_->Commit(sequence, n); }
Status KVCache::CommitPath(SequenceId sequence, const int64_t* accepted, int64_t n) noexcept {
  return impl_->CommitPath(sequence, accepted, n);
}
Status KVCache::Abandon(SequenceId sequence) noexcept { return impl_->Abandon(sequence); }
Status KVCache::Append(SequenceId sequence, const ConstTensorView& k, const ConstTensorView& v) noexcept {
  return impl_->Append(sequence, k, v, nullptr);
}
Status KVCache::Append(SequenceId sequence, const ConstTensorView& k, const ConstTensorView& v,
                       const KeyTransform& transform) noexcept {
  return impl_->Append(sequence, k, v, &transform);
}
Status KVCache::Truncate(SequenceId sequence, int64_t length) noexcept { return impl_->Truncate(sequence, length); }
Status KVCache::Remove(SequenceId sequence, int64_t begin, int64_t end, std::span<const RopeShift> shifts) noexcept {
  return impl_->Remove(sequence, begin, end, shifts);
}
Status KVCache::SetTokens(SequenceId sequence, const int32_t* ids, int64_t n, int64_t begin) noexcept {
  return impl_->SetTokens(sequence, ids, n, begin);
}
Result<SequenceId> KVCache::ForkPrefix(const int32_t* ids, int64_t n, int64_t* matched) noexcept {
  return impl_->ForkPrefix(ids, n, matched);
}
Status KVCache::Read(SequenceId sequence, int64_t layer, int64_t begin, const TensorView& k,
                     const TensorView& v) const noexcept {
  return impl_->Read(sequence, layer, begin, k, v);
}

}  // namespace headlane
