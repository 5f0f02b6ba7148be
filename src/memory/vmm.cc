#include "memory/vmm.h"

#include <cstring>

namespace granule::memory {

Status Vmm::Zero(AddressRange range) {
  if (range.bytes > 0) std::memset(reinterpret_cast<void*>(range.base), 0, range.bytes);
  return {};
}

Status Vmm::Copy(Address to, Address from, size_t bytes) {
  if (bytes > 0) {
    std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
  }
  return {};
}

}  // namespace granule::memory
