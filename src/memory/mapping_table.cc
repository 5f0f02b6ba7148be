#include "memory/mapping_table.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

#include "base/arith.h"

namespace granule::memory {
namespace {

// Adds a range behind the others, joined to the last one where they touch.
void Append(std::vector<AddressRange>& ranges, AddressRange range) {
  if (!ranges.empty() && ranges.back().end() == range.base) {
    ranges.back().bytes += range.bytes;
  } else {
    ranges.push_back(range);
  }
}

// Ascending and joined; the ranges are disjoint already.
void Sort(std::vector<AddressRange>& ranges) {
  const auto before = [](const AddressRange& a, const AddressRange& b) { return a.base < b.base; };
  if (std::is_sorted(ranges.begin(), ranges.end(), before)) return;
  std::sort(ranges.begin(), ranges.end(), before);
  std::vector<AddressRange> joined;
  for (const AddressRange& range : ranges) Append(joined, range);
  ranges = std::move(joined);
}

}  // namespace

MappingTable::MappingTable(Vmm& vmm, HandlePool& pool)
    : vmm_(vmm), pool_(pool), granule_bytes_(vmm.capabilities().granule_bytes) {}

AddressRange MappingTable::Granules(AddressRange range) const {
  if (range.bytes == 0) return {range.base, 0};
  const Address begin = RoundDown(range.base, granule_bytes_);
  return {begin, RoundUp(range.end(), granule_bytes_) - begin};
}

MappingTable::Windows::const_iterator MappingTable::FirstAt(Address address) const {
  auto it = windows_.upper_bound(address);
  if (it != windows_.begin()) {
    const auto before = std::prev(it);
    if (before->first + before->second.handle.bytes > address) return before;
  }
  return it;
}

template <class Visit>
Status MappingTable::ForEachGap(AddressRange range, const Visit& visit) const {
  const AddressRange whole = Granules(range);
  Address at = whole.base;
  for (auto it = FirstAt(at); at < whole.end(); ++it) {
    const Address next = it == windows_.end() ? whole.end() : std::min(it->first, whole.end());
    if (next > at) {
      if (Status s = visit(AddressRange{at, next - at}); !s.ok()) return s;
    }
    if (next == whole.end()) break;
    at = it->first + it->second.handle.bytes;
  }
  return {};
}

// Before any verb runs. Also finds out, without an allocation, whether there is anything to do.
Status MappingTable::RefuseUncommittable(std::span<const AddressRange> ranges,
                                         bool* complete) const {
  *complete = true;
  for (const AddressRange& range : ranges) {
    const AddressRange whole = Granules(range);
    Address at = whole.base;
    for (auto it = FirstAt(at); it != windows_.end() && it->first < whole.end(); ++it) {
      const Window& window = it->second;
      if (window.poisoned) {
        return Error(Code::kPoisoned,
                     "{} bytes at {:#x} cannot be used any more: taking them away failed earlier",
                     window.handle.bytes, it->first);
      }
      if (window.access == Access::kReadOnly) {
        return Error(Code::kInternal,
                     "{} bytes at {:#x} are shared read-only and cannot be committed",
                     window.handle.bytes, it->first);
      }
      if (it->first > at) *complete = false;
      at = it->first + window.handle.bytes;
    }
    if (at < whole.end()) *complete = false;
  }
  return {};
}

// A window that a failed verb left behind: neither its addresses nor its handle are used again. The
// handle is not in the pool's hands: it is quarantined here where nobody else shows it.
void MappingTable::NotePoisoned(Address address, Handle handle) {
  windows_.emplace(address, Window{handle, Access::kReadWrite, true});
  Use& use = uses_[handle.id];
  ++use.poisoned;
  poisoned_bytes_ += handle.bytes;
  if (use.references == 0 && use.poisoned == 1) pool_.Quarantine(handle);
}

// kPoisoned: the handle was taken over as well, and is not the caller's to give back.
Status MappingTable::MapWindow(Address address, Handle handle, Address home, Access access) {
  if (Status s = vmm_.Map(address, handle, access); !s.ok()) {
    if (s.code() == Code::kPoisoned) NotePoisoned(address, handle);
    return s;
  }
  windows_.emplace(address, Window{handle, access, false});
  Use& use = uses_[handle.id];
  if (use.references++ == 0) {
    use.home = home;
    unique_bytes_ += handle.bytes;
  }
  mapped_bytes_ += handle.bytes;
  return {};
}

// Afterwards the window is gone, or poisoned.
MappingTable::Removed MappingTable::TakeAway(Windows::iterator it) {
  const Address address = it->first;
  const Handle handle = it->second.handle;
  const auto entry = uses_.find(handle.id);
  GRANULE_CHECK(entry != uses_.end() && entry->second.references > 0);
  Use& use = entry->second;
  Removed removed{
      .status = vmm_.Unmap({address, handle.bytes}), .handle = handle, .home = use.home};
  mapped_bytes_ -= handle.bytes;
  --use.references;
  if (removed.status.ok()) {
    windows_.erase(it);
  } else {
    it->second.poisoned = true;
    ++use.poisoned;
    poisoned_bytes_ += handle.bytes;
  }
  if (use.references > 0) return removed;
  unique_bytes_ -= handle.bytes;
  if (use.poisoned > 0) {
    pool_.Quarantine(handle);
  } else {
    uses_.erase(entry);
    removed.orphan = true;
  }
  return removed;
}

size_t MappingTable::LargestPiece(size_t gap_bytes) const {
  const size_t granules =
      std::min(gap_bytes, vmm_.capabilities().max_handle_bytes) / granule_bytes_;
  return std::bit_floor(granules) * granule_bytes_;
}

Status MappingTable::CommitGap(AddressRange gap, std::vector<Added>& added, Committed& out) {
  while (gap.bytes > 0) {
    const Result<AcquiredHandle> acquired = pool_.AcquireUpTo(LargestPiece(gap.bytes), gap.base);
    if (!acquired.ok()) return acquired.status();
    const AddressRange piece{gap.base, acquired->handle.bytes};
    if (Status s = MapWindow(piece.base, acquired->handle, acquired->home, Access::kReadWrite);
        !s.ok()) {
      if (s.code() != Code::kPoisoned) pool_.Undo(*acquired);
      return s;
    }
    added.push_back({piece.base, *acquired});
    out.new_bytes += piece.bytes;
    Append(out.fresh, piece);
    if (!acquired->is_zero) Append(out.stale, piece);
    gap = {piece.end(), gap.bytes - piece.bytes};
  }
  return {};
}

Result<Committed> MappingTable::Commit(std::span<const AddressRange> ranges) {
  std::lock_guard lock(mutex_);
  bool complete = false;
  if (Status s = RefuseUncommittable(ranges, &complete); !s.ok()) return s;
  Committed out;
  if (complete) return out;

  std::vector<Added> added;
  Status failure;
  for (const AddressRange& range : ranges) {
    failure = ForEachGap(range, [&](AddressRange gap) { return CommitGap(gap, added, out); });
    if (!failure.ok()) break;
  }
  if (failure.ok()) {
    Sort(out.fresh);
    Sort(out.stale);
    GRANULE_EXPENSIVE_CHECK(IsValidLocked());
    return out;
  }

  uint64_t stuck_bytes = 0;
  Status stuck;
  for (auto it = added.rbegin(); it != added.rend(); ++it) {
    const Removed removed = TakeAway(windows_.find(it->address));
    if (removed.orphan) pool_.Undo(it->acquired);
    if (removed.status.ok()) continue;
    stuck_bytes += it->acquired.handle.bytes;
    if (stuck.ok()) stuck = removed.status;
  }
  GRANULE_EXPENSIVE_CHECK(IsValidLocked());
  if (stuck_bytes == 0 || failure.code() == Code::kDeviceLost) return failure;
  return Error(
      Code::kPoisoned,
      "{}; and {} bytes that were mapped before the failure could not be taken away again ({}): "
      "they stay charged and their addresses are not used any more",
      failure.message(), stuck_bytes, stuck.message());
}

// Every gap that a Commit of the ranges would fill, once: two ranges may touch the same granule.
template <class Visit>
Status MappingTable::ForEachGapOnce(std::span<const AddressRange> ranges,
                                    const Visit& visit) const {
  const auto before = [](const AddressRange& a, const AddressRange& b) { return a.base < b.base; };
  std::vector<AddressRange> sorted;
  if (!std::is_sorted(ranges.begin(), ranges.end(), before)) {
    sorted.assign(ranges.begin(), ranges.end());
    std::sort(sorted.begin(), sorted.end(), before);
    ranges = sorted;
  }
  Address visited_to = 0;
  for (const AddressRange& range : ranges) {
    AddressRange whole = Granules(range);
    if (whole.end() <= visited_to) continue;
    if (whole.base < visited_to) whole = {visited_to, whole.end() - visited_to};
    if (Status s = ForEachGap(whole, visit); !s.ok()) return s;
    visited_to = whole.end();
  }
  return {};
}

uint64_t MappingTable::WouldCommitBytes(std::span<const AddressRange> ranges) const {
  std::lock_guard lock(mutex_);
  uint64_t bytes = 0;
  const Status always_ok = ForEachGapOnce(ranges, [&](AddressRange gap) {
    bytes += gap.bytes;
    return Status();
  });
  GRANULE_DCHECK(always_ok.ok());
  return bytes;
}

std::map<size_t, uint64_t> MappingTable::HandlesFor(std::span<const AddressRange> ranges) const {
  std::lock_guard lock(mutex_);
  std::map<size_t, uint64_t> handles;
  const Status always_ok = ForEachGapOnce(ranges, [&](AddressRange gap) {
    for (size_t piece = 0; gap.bytes > 0; gap.bytes -= piece) {
      piece = LargestPiece(gap.bytes);
      ++handles[piece];
    }
    return Status();
  });
  GRANULE_DCHECK(always_ok.ok());
  return handles;
}

Status MappingTable::CheckShare(Address source, Address target, size_t bytes) const {
  const auto refuse = [&](const char* why) {
    return Error(Code::kInternal, "{} bytes at {:#x} cannot be shared at {:#x}: {}", bytes, source,
                 target, why);
  };
  if (source % granule_bytes_ != 0 || target % granule_bytes_ != 0 || bytes % granule_bytes_ != 0) {
    return refuse("not whole granules");
  }
  if (source < target ? target - source < bytes : source - target < bytes) {
    return refuse("they overlap");
  }
  const auto there = FirstAt(target);
  if (there != windows_.end() && there->first < target + bytes)
    return refuse("the target is not empty");
  Address at = source;
  for (auto it = windows_.find(source); at < source + bytes; ++it) {
    if (it == windows_.end() || it->first != at)
      return refuse("the source is not backed by whole handles");
    if (it->second.poisoned) {
      return Error(Code::kPoisoned,
                   "{} bytes at {:#x} cannot be shared: taking them away failed earlier",
                   it->second.handle.bytes, at);
    }
    at += it->second.handle.bytes;
  }
  return at == source + bytes ? Status() : refuse("the source ends inside a handle");
}

Status MappingTable::Share(Address source, Address target, size_t bytes, Access access) {
  std::lock_guard lock(mutex_);
  if (bytes == 0) return {};
  if (Status s = CheckShare(source, target, bytes); !s.ok()) return s;
  Status failure;
  Address done = 0;  // bytes
  while (done < bytes) {
    const Handle handle = windows_.find(source + done)->second.handle;
    failure = MapWindow(target + done, handle, 0, access);
    if (!failure.ok()) break;
    done += handle.bytes;
  }
  uint64_t stuck_bytes = 0;
  while (!failure.ok() && done > 0) {
    const auto window = std::prev(windows_.lower_bound(target + done));
    done = window->first - target;
    const Removed removed = TakeAway(window);  // never an orphan: the source shows it
    GRANULE_DCHECK(!removed.orphan);
    if (!removed.status.ok()) stuck_bytes += removed.handle.bytes;
  }
  GRANULE_EXPENSIVE_CHECK(IsValidLocked());
  if (stuck_bytes == 0 || failure.code() == Code::kDeviceLost) return failure;
  return Error(
      Code::kPoisoned,
      "{}; and {} bytes that were shared before the failure could not be taken away again: their "
      "addresses are not used any more",
      failure.message(), stuck_bytes);
}

Status MappingTable::Decommit(AddressRange range) {
  std::lock_guard lock(mutex_);
  Status first;
  uint64_t stuck_bytes = 0;
  for (auto it = windows_.lower_bound(range.base);
       it != windows_.end() && it->first < range.end();) {
    const auto window = it++;
    const size_t bytes = window->second.handle.bytes;
    if (window->second.poisoned || bytes > range.end() - window->first) continue;
    const Removed removed = TakeAway(window);
    if (removed.orphan) pool_.Return(removed.handle, removed.home);
    if (removed.status.ok()) continue;
    stuck_bytes += bytes;
    if (first.ok()) first = removed.status;
  }
  GRANULE_EXPENSIVE_CHECK(IsValidLocked());
  if (first.ok() || first.code() == Code::kDeviceLost) return first;
  return Error(
      Code::kPoisoned,
      "{} bytes could not be taken away ({}): they stay charged and their addresses are not used "
      "any more",
      stuck_bytes, first.message());
}

// Puts another handle behind a window. On failure the old one is back with its old access, or, if
// even that fails, the window is gone and the error is kPoisoned; `next` is then the caller's to
// give back, unless the table keeps it as poisoned. The old handle's reference is
// dropped; an orphan goes back to the pool.
Status MappingTable::Replace(Windows::iterator it, const AcquiredHandle& next, Access access) {
  const Address address = it->first;
  const Window old = it->second;
  uses_.reserve(uses_.size() + 1);  // an entry more keeps `entry` valid
  const auto entry = uses_.find(old.handle.id);
  GRANULE_CHECK(entry != uses_.end());
  const Address home = entry->second.home;
  if (Status s = vmm_.Unmap({address, old.handle.bytes}); !s.ok()) return s;
  Status failure = vmm_.Map(address, next.handle, access);
  const Handle* stuck = failure.code() == Code::kPoisoned ? &next.handle : nullptr;
  if (!failure.ok()) {
    const Status back = stuck ? failure : vmm_.Map(address, old.handle, old.access);
    if (back.ok()) return failure;
    if (!stuck && back.code() == Code::kPoisoned) stuck = &old.handle;
    failure = Error(Code::kPoisoned, "{} bytes at {:#x} were lost: {}", old.handle.bytes, address,
                    failure.message());
  }
  mapped_bytes_ -= old.handle.bytes;
  windows_.erase(it);
  if (stuck != nullptr) NotePoisoned(address, *stuck);
  if (--entry->second.references == 0) {
    unique_bytes_ -= old.handle.bytes;
    if (entry->second.poisoned > 0) {
      pool_.Quarantine(old.handle);
    } else {
      uses_.erase(entry);
      // The same handle with another access stays in use, unless its only window was lost.
      if (!failure.ok() || !(old.handle == next.handle)) pool_.Return(old.handle, home);
    }
  }
  if (!failure.ok()) return failure;
  windows_.emplace(address, Window{next.handle, access, false});
  Use& use = uses_[next.handle.id];
  if (use.references++ == 0) {
    use.home = next.home;
    unique_bytes_ += next.handle.bytes;
  }
  mapped_bytes_ += next.handle.bytes;
  return {};
}

Status MappingTable::MakeWindowPrivate(Windows::iterator it, AddressSpace& space) {
  const Address address = it->first;
  const Handle handle = it->second.handle;
  const auto entry = uses_.find(handle.id);
  GRANULE_CHECK(entry != uses_.end());
  const bool alone = entry->second.references == 1 && entry->second.poisoned == 0;
  if (alone && it->second.access == Access::kReadWrite) return {};
  if (alone) {  // the others are gone: only the protection changes
    const Address home = entry->second.home;
    return Replace(it, AcquiredHandle{.handle = handle, .home = home}, Access::kReadWrite);
  }
  auto scratch = space.Carve(handle.bytes);
  if (!scratch.ok()) return scratch.status();
  const auto copy = pool_.Acquire(handle.bytes, address);
  if (!copy.ok()) {
    space.Return(*scratch);
    return copy.status();
  }
  Status status = vmm_.Map(scratch->base, copy->handle, Access::kReadWrite);
  if (!status.ok()) {
    if (status.code() == Code::kPoisoned) {
      pool_.Quarantine(copy->handle);  // with the scratch addresses; the window is untouched
      return Status(Code::kExhausted, status.message());
    }
    pool_.Undo(*copy);
    space.Return(*scratch);
    return status;
  }
  const Status copied = vmm_.Copy(scratch->base, address, handle.bytes);
  status = vmm_.Unmap(*scratch);
  if (!status.ok()) {  // the scratch addresses show the copy for good: neither is used again
    pool_.Quarantine(copy->handle);
    return copied.ok() ? status : copied;
  }
  space.Return(*scratch);
  status = copied.ok() ? Replace(it, *copy, Access::kReadWrite) : copied;
  if (!status.ok() && !uses_.contains(copy->handle.id)) pool_.Undo(*copy);
  return status;
}

Status MappingTable::MakePrivate(std::span<const AddressRange> ranges, AddressSpace& space) {
  std::lock_guard lock(mutex_);
  for (const AddressRange& range : ranges) {
    for (Address at = range.base; at < range.end();) {
      const auto found = FirstAt(at);
      if (found == windows_.end() || found->first >= range.end()) break;
      at = found->first + found->second.handle.bytes;
      if (found->second.poisoned) continue;  // refused by whoever commits here
      if (Status s = MakeWindowPrivate(windows_.find(found->first), space); !s.ok()) return s;
    }
  }
  GRANULE_EXPENSIVE_CHECK(IsValidLocked());
  return {};
}

}  // namespace granule::memory
