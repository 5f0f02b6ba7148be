// A Vmm that refuses on purpose: every failure that a system may show, at the call that a test
// chooses.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <mutex>

#include "memory/vmm.h"

namespace granule::memory {

enum class Verb { kReserve, kFree, kCreate, kRelease, kMap, kUnmap, kZero, kCopy };
inline constexpr std::array kAllVerbs = {Verb::kReserve, Verb::kFree, Verb::kCreate,
                                         Verb::kRelease, Verb::kMap,  Verb::kUnmap,
                                         Verb::kZero,    Verb::kCopy};
// Those that deal in addresses and memory; the last two deal in content.
inline constexpr std::array kMemoryVerbs = {Verb::kReserve, Verb::kFree, Verb::kCreate,
                                            Verb::kRelease, Verb::kMap,  Verb::kUnmap};
const char* VerbName(Verb verb);  // "reserve", ...

// Passes every call on to `inner`, but for the chosen ones, which return Code::kExhausted
// ("injected ...") without reaching it. Counts calls per verb, refused ones included. Thread-safe
// as far as `inner` is.
class FaultVmm final : public Vmm {
 public:
  explicit FaultVmm(Vmm& inner);

  // The nth call of the verb from now on (1 = the next one) fails; FailFrom: and every one after
  // it; FailNext: the next `count` calls. One plan per verb; a new one replaces the old one.
  void FailCall(Verb verb, uint64_t nth);
  void FailFrom(Verb verb, uint64_t nth);
  void FailNext(Verb verb, uint64_t count);
  void Heal();  // no call fails any more

  uint64_t calls(Verb verb) const;     // since the start or ResetCounts
  uint64_t failures(Verb verb) const;  // injected ones among them
  void ResetCounts();                  // leaves the plans as they are

  const Capabilities& capabilities() const override { return capabilities_; }
  Result<MemoryInfo> Memory() const override { return inner_.Memory(); }
  Result<AddressRange> Reserve(size_t bytes) override;
  Status Free(AddressRange reservation) override;
  Result<Handle> Create(size_t bytes, Address home) override;
  Status Release(Handle handle) override;
  Status Map(Address address, Handle handle, Access access) override;
  Status Unmap(AddressRange range) override;
  Status Zero(AddressRange range) override;
  Status Copy(Address to, Address from, size_t bytes) override;
  Result<uint64_t> ResidentBytes() const override { return inner_.ResidentBytes(); }

 private:
  static constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();
  struct Plan {
    uint64_t calls = 0;
    uint64_t failures = 0;
    uint64_t seen = 0;  // calls since the object was made
    uint64_t first = kNever;
    uint64_t last = 0;
  };

  void Set(Verb verb, uint64_t nth, uint64_t count);
  Status Count(Verb verb);

  Vmm& inner_;
  Capabilities capabilities_;
  mutable std::mutex mutex_;
  std::array<Plan, kAllVerbs.size()> plans_;
};

}  // namespace granule::memory
