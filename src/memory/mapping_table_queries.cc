// What the mapping table says about itself.
#include <algorithm>
#include <unordered_map>

#include "memory/mapping_table.h"

namespace granule::memory {

uint64_t MappingTable::unique_bytes() const {
  std::lock_guard lock(mutex_);
  return unique_bytes_;
}

uint64_t MappingTable::mapped_bytes() const {
  std::lock_guard lock(mutex_);
  return mapped_bytes_;
}

uint64_t MappingTable::shared_bytes() const {
  std::lock_guard lock(mutex_);
  return mapped_bytes_ - unique_bytes_;
}

uint64_t MappingTable::poisoned_bytes() const {
  std::lock_guard lock(mutex_);
  return poisoned_bytes_;
}

uint64_t MappingTable::BackedBytes(AddressRange range) const {
  std::lock_guard lock(mutex_);
  uint64_t bytes = 0;
  for (auto it = FirstAt(range.base); it != windows_.end() && it->first < range.end(); ++it) {
    if (it->second.poisoned) continue;
    const Address begin = std::max(it->first, range.base);
    bytes += std::min(it->first + it->second.handle.bytes, range.end()) - begin;
  }
  return bytes;
}

uint64_t MappingTable::ReadOnlyBytes(AddressRange range) const {
  std::lock_guard lock(mutex_);
  uint64_t bytes = 0;
  for (auto it = FirstAt(range.base); it != windows_.end() && it->first < range.end(); ++it) {
    if (it->second.poisoned || it->second.access != Access::kReadOnly) continue;
    const Address begin = std::max(it->first, range.base);
    bytes += std::min(it->first + it->second.handle.bytes, range.end()) - begin;
  }
  return bytes;
}

std::vector<AddressRange> MappingTable::WholeHandles(AddressRange range) const {
  std::lock_guard lock(mutex_);
  std::vector<AddressRange> handles;
  for (auto it = windows_.lower_bound(range.base); it != windows_.end() && it->first < range.end();
       ++it) {
    const AddressRange window{it->first, it->second.handle.bytes};
    if (!it->second.poisoned && window.end() <= range.end()) handles.push_back(window);
  }
  return handles;
}

uint64_t MappingTable::HandleBytesUnder(std::span<const AddressRange> ranges) const {
  std::lock_guard lock(mutex_);
  std::vector<AddressRange> sorted(ranges.begin(), ranges.end());
  std::sort(sorted.begin(), sorted.end(),
            [](const AddressRange& a, const AddressRange& b) { return a.base < b.base; });
  uint64_t bytes = 0;
  Address counted_to = 0;
  for (const AddressRange& range : sorted) {
    if (range.bytes == 0) continue;
    for (auto it = FirstAt(std::max(range.base, counted_to));
         it != windows_.end() && it->first < range.end(); ++it) {
      if (!it->second.poisoned) bytes += it->second.handle.bytes;
      counted_to = it->first + it->second.handle.bytes;
    }
  }
  return bytes;
}

bool MappingTable::IsPoisoned(AddressRange range) const {
  std::lock_guard lock(mutex_);
  for (auto it = FirstAt(range.base); it != windows_.end() && it->first < range.end(); ++it) {
    if (it->second.poisoned) return true;
  }
  return false;
}

bool MappingTable::IsValid() const {
  std::lock_guard lock(mutex_);
  return IsValidLocked();
}

bool MappingTable::IsValidLocked() const {
  struct Seen {
    uint64_t healthy = 0;
    uint64_t poisoned = 0;
    size_t bytes = 0;
  };
  std::unordered_map<uint64_t, Seen> seen;
  uint64_t mapped = 0;
  uint64_t poisoned = 0;
  Address end_before = 0;
  for (const auto& [base, window] : windows_) {
    const size_t bytes = window.handle.bytes;
    if (base % granule_bytes_ != 0 || bytes == 0 || bytes % granule_bytes_ != 0) return false;
    if (base < end_before) return false;
    end_before = base + bytes;
    Seen& handle = seen[window.handle.id];
    if (handle.bytes != 0 && handle.bytes != bytes) return false;
    handle.bytes = bytes;
    ++(window.poisoned ? handle.poisoned : handle.healthy);
    (window.poisoned ? poisoned : mapped) += bytes;
  }
  uint64_t unique = 0;
  for (const auto& [id, handle] : seen) {
    const auto use = uses_.find(id);
    if (use == uses_.end() || use->second.references != handle.healthy) return false;
    if (use->second.poisoned != handle.poisoned) return false;
    if (handle.healthy > 0) unique += handle.bytes;
  }
  return seen.size() == uses_.size() && unique == unique_bytes_ && mapped == mapped_bytes_ &&
         poisoned == poisoned_bytes_;
}

}  // namespace granule::memory
