#include "memory/fault/fault_vmm.h"

#include "base/check.h"

namespace granule::memory {

const char* VerbName(Verb verb) {
  switch (verb) {
    case Verb::kReserve:
      return "reserve";
    case Verb::kFree:
      return "free";
    case Verb::kCreate:
      return "create";
    case Verb::kRelease:
      return "release";
    case Verb::kMap:
      return "map";
    case Verb::kUnmap:
      return "unmap";
    case Verb::kZero:
      return "zero";
    case Verb::kCopy:
      return "copy";
  }
  return "?";
}

FaultVmm::FaultVmm(Vmm& inner) : inner_(inner), capabilities_(inner.capabilities()) {
  capabilities_.name += " behind faults";
}

void FaultVmm::Set(Verb verb, uint64_t nth, uint64_t count) {
  GRANULE_CHECK(nth > 0 && count > 0);
  std::lock_guard lock(mutex_);
  Plan& plan = plans_[static_cast<size_t>(verb)];
  plan.first = plan.seen + nth;
  plan.last = count == kNever ? kNever : plan.first + (count - 1);
}

void FaultVmm::FailCall(Verb verb, uint64_t nth) { Set(verb, nth, 1); }

void FaultVmm::FailFrom(Verb verb, uint64_t nth) { Set(verb, nth, kNever); }

void FaultVmm::FailNext(Verb verb, uint64_t count) { Set(verb, 1, count); }

void FaultVmm::Heal() {
  std::lock_guard lock(mutex_);
  for (Plan& plan : plans_) plan.first = kNever;
}

uint64_t FaultVmm::calls(Verb verb) const {
  std::lock_guard lock(mutex_);
  return plans_[static_cast<size_t>(verb)].calls;
}

uint64_t FaultVmm::failures(Verb verb) const {
  std::lock_guard lock(mutex_);
  return plans_[static_cast<size_t>(verb)].failures;
}

void FaultVmm::ResetCounts() {
  std::lock_guard lock(mutex_);
  for (Plan& plan : plans_) plan.calls = plan.failures = 0;
}

Status FaultVmm::Count(Verb verb) {
  std::lock_guard lock(mutex_);
  Plan& plan = plans_[static_cast<size_t>(verb)];
  ++plan.calls;
  ++plan.seen;
  if (plan.seen < plan.first || plan.seen > plan.last || plan.first == kNever) return {};
  ++plan.failures;
  return Error(Code::kExhausted, "injected failure of {}, call {}", VerbName(verb), plan.calls);
}

Result<AddressRange> FaultVmm::Reserve(size_t bytes) {
  if (Status s = Count(Verb::kReserve); !s.ok()) return s;
  return inner_.Reserve(bytes);
}

Status FaultVmm::Free(AddressRange reservation) {
  if (Status s = Count(Verb::kFree); !s.ok()) return s;
  return inner_.Free(reservation);
}

Result<Handle> FaultVmm::Create(size_t bytes, Address home) {
  if (Status s = Count(Verb::kCreate); !s.ok()) return s;
  return inner_.Create(bytes, home);
}

Status FaultVmm::Release(Handle handle) {
  if (Status s = Count(Verb::kRelease); !s.ok()) return s;
  return inner_.Release(handle);
}

Status FaultVmm::Map(Address address, Handle handle, Access access) {
  if (Status s = Count(Verb::kMap); !s.ok()) return s;
  return inner_.Map(address, handle, access);
}

Status FaultVmm::Unmap(AddressRange range) {
  if (Status s = Count(Verb::kUnmap); !s.ok()) return s;
  return inner_.Unmap(range);
}

Status FaultVmm::Zero(AddressRange range) {
  if (Status s = Count(Verb::kZero); !s.ok()) return s;
  return inner_.Zero(range);
}

Status FaultVmm::Copy(Address to, Address from, size_t bytes) {
  if (Status s = Count(Verb::kCopy); !s.ok()) return s;
  return inner_.Copy(to, from, bytes);
}

}  // namespace granule::memory
