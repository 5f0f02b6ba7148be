// What virtual memory on this GPU really does, tried out rather than believed (granule doctor).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/cuda_driver.h"
#include "base/status.h"

namespace granule::memory {

enum class Seen { kNotTried, kYes, kNo };
const char* SeenText(Seen seen);  // "not tried", "yes", "no"

struct CudaMemoryProbe {
  uint64_t smallest_granule_bytes = 0;     // minimum granularity
  uint64_t granule_bytes = 0;              // recommended granularity: what is used
  uint64_t largest_reservation_bytes = 0;  // granted on the way down the ladder (address_space.h)
  // One handle at two addresses: what is written at one is read at the other.
  Seen aliases = Seen::kNotTried;
  // A write to a read-only mapping does not arrive.
  Seen read_only_refuses = Seen::kNotTried;
  // Windows of a reservation were mapped and taken away while copies ran in others of it, and
  // nothing broke. Seen, not promised: commits happen in the gap between steps either way.
  Seen maps_beside_work = Seen::kNotTried;
  std::string note;  // why something was not tried, or what went wrong; empty when all went well
};

// Works in contexts of its own, for the write to a read-only mapping breaks one where it is refused
// in earnest; needs about 200 MiB of device memory for a moment. kUnavailable for a device without
// virtual memory, kExhausted when there is no memory for a context.
Result<CudaMemoryProbe> ProbeCudaMemory(const std::shared_ptr<const cuda::Driver>& driver,
                                        int index);

}  // namespace granule::memory
