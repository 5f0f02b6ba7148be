#include "memory/host/host_vmm.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <limits>
#include <utility>

#include "base/arith.h"
#include "base/cgroup.h"
#include "base/file.h"

namespace granule::memory {
namespace {

constexpr size_t kMaxGranule = size_t{1} << 30;
constexpr uint64_t kMaxFileBytes = std::numeric_limits<off_t>::max();
// Mappings left for everybody else in the process: libraries, stacks, the allocator, model files.
constexpr uint64_t kMappingsKeptFree = 1024;
constexpr uint64_t kDefaultMaxMapCount = 65530;
// Offsets without a home are taken from the file in areas of this many.
constexpr uint64_t kHomelessAtOnce = 4096;

uint64_t CountProcessMappings() {
  // The file grows with the mappings; 64 MiB are about a million lines.
  const Result<std::string> maps = ReadFile("/proc/self/maps", 64 << 20);
  if (!maps.ok()) return 0;
  return static_cast<uint64_t>(std::count(maps->begin(), maps->end(), '\n'));
}

uint64_t SystemMaxMappings() {
  return ReadCounter("/proc/sys/vm/max_map_count").value_or(kDefaultMaxMapCount);
}

Result<int> OpenBackingFile(const std::string& directory) {
  if (directory.empty()) {
    const int fd = memfd_create("granule", MFD_CLOEXEC);
    if (fd >= 0) return fd;
    return Error(Code::kExhausted, "the system gives no memory file: {}", std::strerror(errno));
  }
  const int fd = open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (fd >= 0) return fd;
  return Error(Code::kExhausted, "{}: the system gives no unnamed file there: {}", directory,
               std::strerror(errno));
}

int Protection(Access access) {
  return access == Access::kReadOnly ? PROT_READ : PROT_READ | PROT_WRITE;
}

// Addresses with nothing behind them.
void* MapNothing(void* at, size_t bytes, int flags) {
  return mmap(at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
}

void* Pointer(Address address) { return reinterpret_cast<void*>(address); }

// The file must get all blocks of the range, or none. A signal may interrupt it.
int Allocate(int fd, uint64_t offset, size_t bytes) {
  for (;;) {
    if (fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) == 0) return 0;
    if (errno != EINTR) return errno;
  }
}

int PunchHole(int fd, uint64_t offset, size_t bytes) {
  for (;;) {
    if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                  static_cast<off_t>(bytes)) == 0) {
      return 0;
    }
    if (errno != EINTR) return errno;
  }
}

}  // namespace

Result<std::unique_ptr<HostVmm>> HostVmm::Open(const HostVmmOptions& options) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t granule = options.granule_bytes;
  if (!std::has_single_bit(granule) || granule < page || granule > kMaxGranule) {
    return Error(Code::kUsage,
                 "host granule of {} bytes: expected a power of two from {} (the page) to {}",
                 granule, page, kMaxGranule);
  }
  if (options.max_handle_bytes % granule != 0) {
    return Error(Code::kUsage, "host handles of {} bytes: expected a multiple of the granule, {}",
                 options.max_handle_bytes, granule);
  }
  Result<int> fd = OpenBackingFile(options.backing_directory);
  if (!fd.ok()) return fd.status();
  return std::unique_ptr<HostVmm>(new HostVmm(options, *fd));
}

HostVmm::HostVmm(const HostVmmOptions& options, int fd)
    : options_(options),
      fd_(fd),
      limits_(options.limits),
      max_mappings_(options.max_mappings > 0 ? options.max_mappings : SystemMaxMappings()),
      other_mappings_(CountProcessMappings()) {
  capabilities_.name = "host";
  capabilities_.granule_bytes = options.granule_bytes;
  capabilities_.fresh_is_zero = true;
  capabilities_.create_is_slow = false;
  capabilities_.max_handle_bytes =
      options.max_handle_bytes > 0 ? options.max_handle_bytes : options.granule_bytes;
  file_bytes_ = options.granule_bytes;  // offset 0 stays unused: no handle has the id 0
}

HostVmm::~HostVmm() {
  for (const auto& [base, reservation] : reservations_) munmap(Pointer(base), reservation.bytes);
  close(fd_);
}

Result<MemoryInfo> HostVmm::Memory() const {
  Result<MemoryLimit> limit = limits_.Tightest();
  if (!limit.ok()) return limit.status();
  return MemoryInfo{"host", limit->available, limit->total};
}

Result<uint64_t> HostVmm::TakeFileRange(uint64_t bytes) {
  const uint64_t offset = file_bytes_;
  rlimit limit{};
  // Growing past the soft limit would send SIGXFSZ, not only an error.
  const bool limited = getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  if (bytes > kMaxFileBytes - offset || (limited && offset + bytes > limit.rlim_cur)) {
    return Error(
        Code::kExhausted,
        "{} more do not fit into the memory file: it has {} bytes and the limit is {} (ulimit -f)",
        FormatBytes(bytes), offset, limited ? limit.rlim_cur : kMaxFileBytes);
  }
  if (ftruncate(fd_, static_cast<off_t>(offset + bytes)) != 0) {
    return Error(Code::kExhausted, "the memory file cannot grow from {} by {} bytes: {}", offset,
                 bytes, std::strerror(errno));
  }
  file_bytes_ += bytes;
  return offset;
}

Result<AddressRange> HostVmm::Reserve(size_t bytes) {
  GRANULE_CHECK(IsWhole(bytes));
  const size_t granule = capabilities_.granule_bytes;
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const std::optional<size_t> padded = CheckedAdd(bytes, granule - page);  // room to align the base
  if (!padded) {
    return Error(Code::kExhausted, "{} of addresses are more than there can be",
                 FormatBytes(bytes));
  }
  std::lock_guard lock(mutex_);
  if (Status s = AdmitMappings(1); !s.ok()) return s;
  void* memory = MapNothing(nullptr, *padded, 0);
  if (memory == MAP_FAILED) {
    return Error(Code::kExhausted, "the system refused {} of addresses: {} (ulimit -v limits them)",
                 FormatBytes(bytes), std::strerror(errno));
  }
  const Result<uint64_t> offset = TakeFileRange(bytes);
  if (!offset.ok()) {
    munmap(memory, *padded);
    return offset.status();
  }
  const auto begin = reinterpret_cast<Address>(memory);
  const Address base = RoundUp(begin, granule);
  if (base > begin) munmap(memory, base - begin);
  const Address end = base + bytes;
  if (begin + *padded > end) munmap(Pointer(end), begin + *padded - end);
  reservations_.emplace(base, Reservation{bytes, *offset});
  ++mappings_;
  return AddressRange{base, bytes};
}

Status HostVmm::Free(AddressRange range) {
  std::lock_guard lock(mutex_);
  const auto it = reservations_.find(range.base);
  GRANULE_CHECK(it != reservations_.end() && it->second.bytes == range.bytes);
  const auto window = windows_.lower_bound(range.base);
  GRANULE_CHECK(window == windows_.end() || window->first >= range.end());
  if (munmap(Pointer(range.base), range.bytes) != 0) {
    return Error(Code::kExhausted, "{} of addresses cannot be given back: {}",
                 FormatBytes(range.bytes), std::strerror(errno));
  }
  reservations_.erase(it);
  --mappings_;
  return {};
}

std::map<Address, HostVmm::Reservation>::const_iterator HostVmm::FindReservation(
    Address address, size_t bytes) const {
  auto it = reservations_.upper_bound(address);
  if (it == reservations_.begin()) return reservations_.end();
  --it;
  const size_t distance = address - it->first;
  const bool inside = distance < it->second.bytes && bytes <= it->second.bytes - distance;
  return inside ? std::as_const(it) : reservations_.end();
}

Result<uint64_t> HostVmm::TakeOffset(size_t bytes, Address home) {
  if (home != 0) {
    const auto reservation = FindReservation(home, bytes);
    GRANULE_CHECK(reservation != reservations_.end());
    const uint64_t offset = reservation->second.file_offset + (home - reservation->first);
    // A handle made here earlier may live on elsewhere as an alias; then this one is placed without
    // a home.
    const auto next = live_.lower_bound(offset);
    const bool clear_after = next == live_.end() || next->first >= offset + bytes;
    const bool clear_before =
        next == live_.begin() || std::prev(next)->first + std::prev(next)->second <= offset;
    if (clear_after && clear_before) return offset;
  }
  std::vector<uint64_t>& free = homeless_[bytes];
  if (free.empty()) {
    const uint64_t area = SaturatingMul(bytes, kHomelessAtOnce);
    const Result<uint64_t> offset = TakeFileRange(area);
    if (!offset.ok()) return offset.status();
    homeless_areas_.emplace(*offset, area);
    free.reserve(kHomelessAtOnce);
    for (uint64_t i = kHomelessAtOnce; i-- > 0;) free.push_back(*offset + i * bytes);
  }
  const uint64_t offset = free.back();
  free.pop_back();
  return offset;
}

void HostVmm::GiveBackOffset(uint64_t offset, size_t bytes) {
  auto area = homeless_areas_.upper_bound(offset);
  if (area == homeless_areas_.begin()) return;  // at its home: nothing to keep
  --area;
  if (offset - area->first < area->second) homeless_[bytes].push_back(offset);
}

Result<Handle> HostVmm::Create(size_t bytes, Address home) {
  GRANULE_CHECK(IsWhole(bytes) && bytes <= capabilities_.max_handle_bytes);
  GRANULE_CHECK(home % capabilities_.granule_bytes == 0);
  if (Status s = limits_.Admit(bytes); !s.ok()) return s;
  uint64_t offset = 0;
  {
    std::lock_guard lock(mutex_);
    const Result<uint64_t> taken = TakeOffset(bytes, home);
    if (!taken.ok()) return taken.status();
    offset = *taken;
    live_.emplace(offset, bytes);
  }
  const int error = Allocate(fd_, offset, bytes);
  if (error == 0) return Handle{offset, bytes};
  PunchHole(fd_, offset, bytes);  // file systems other than memory may keep a part
  {
    std::lock_guard lock(mutex_);
    live_.erase(offset);
    GiveBackOffset(offset, bytes);
  }
  const Result<MemoryLimit> limit = limits_.Tightest();
  return Error(Code::kExhausted, "the system refused {} more bytes of memory: {} ({})", bytes,
               std::strerror(error),
               limit.ok() ? Format("{} bytes left by {}", limit->available, limit->name)
                          : "the memory left is not known");
}

Status HostVmm::Release(Handle handle) {
  {
    std::lock_guard lock(mutex_);
    const auto it = live_.find(handle.id);
    GRANULE_CHECK(it != live_.end() && it->second == handle.bytes);
  }
  if (const int error = PunchHole(fd_, handle.id, handle.bytes); error != 0) {
    return Error(Code::kExhausted, "the system did not take {} bytes of memory back: {}",
                 handle.bytes, std::strerror(error));
  }
  std::lock_guard lock(mutex_);
  live_.erase(handle.id);
  GiveBackOffset(handle.id, handle.bytes);
  return {};
}

int64_t HostVmm::MappingsAddedBy(Windows::const_iterator it) const {
  const auto& [base, window] = *it;
  const auto reservation = FindReservation(base, window.bytes);
  const Address end = base + window.bytes;
  // What lies on either side: the reservation's edge, a window, or addresses with nothing behind
  // them.
  const bool at_front = base == reservation->first;
  const bool at_back = end == reservation->first + reservation->second.bytes;
  int64_t merged = 0;
  bool empty_before = !at_front;
  bool empty_after = !at_back;
  if (!at_front && it != windows_.begin()) {
    const auto& [other_base, other] = *std::prev(it);
    if (other_base + other.bytes == base) {
      empty_before = false;
      merged +=
          other.access == window.access && other.file_offset + other.bytes == window.file_offset;
    }
  }
  if (const auto next = std::next(it); !at_back && next != windows_.end() && next->first == end) {
    empty_after = false;
    merged += next->second.access == window.access &&
              window.file_offset + window.bytes == next->second.file_offset;
  }
  // The empty stretch around the window becomes 0, 1 or 2 stretches.
  return 1 - merged + int64_t{empty_before} + int64_t{empty_after} - 1;
}

Status HostVmm::AdmitMappings(uint64_t more) {
  const auto fits = [&] {
    return static_cast<uint64_t>(mappings_) + other_mappings_ + more + kMappingsKeptFree <=
           max_mappings_;
  };
  if (fits()) return {};
  // Both numbers may have changed since they were read; reading them takes milliseconds when there
  // are many.
  if (options_.max_mappings == 0) max_mappings_ = SystemMaxMappings();
  const uint64_t all = CountProcessMappings();
  other_mappings_ = all - std::min(all, static_cast<uint64_t>(mappings_));
  if (fits()) return {};
  return Error(
      Code::kExhausted,
      "too many memory mappings: {} of {} are in use and {} stay free for the rest of the "
      "process; raise the limit with `sysctl -w vm.max_map_count={}`, or use larger granules",
      static_cast<uint64_t>(mappings_) + other_mappings_, max_mappings_, kMappingsKeptFree,
      max_mappings_ * 4);
}

Status HostVmm::Map(Address address, Handle handle, Access access) {
  GRANULE_CHECK(IsWhole(handle.bytes) && address % capabilities_.granule_bytes == 0);
  std::lock_guard lock(mutex_);
  const auto live = live_.find(handle.id);
  GRANULE_CHECK(live != live_.end() && live->second == handle.bytes);
  GRANULE_CHECK(FindReservation(address, handle.bytes) != reservations_.end());
  const auto next = windows_.lower_bound(address);
  GRANULE_CHECK(next == windows_.end() || next->first >= address + handle.bytes);
  GRANULE_CHECK(next == windows_.begin() ||
                std::prev(next)->first + std::prev(next)->second.bytes <= address);
  const auto window = windows_.emplace_hint(next, address, Window{handle.bytes, handle.id, access});
  const int64_t added = MappingsAddedBy(window);
  // Splitting needs up to two mappings for a moment, also where neighbours merge in the end.
  if (Status s = AdmitMappings(2); !s.ok()) {
    windows_.erase(window);
    return s;
  }
  if (mmap(Pointer(address), handle.bytes, Protection(access), MAP_SHARED | MAP_FIXED, fd_,
           static_cast<off_t>(handle.id)) == MAP_FAILED) {
    const int error = errno;
    // A refused MAP_FIXED may already have removed what was there; nobody else may move in.
    MapNothing(Pointer(address), handle.bytes, MAP_FIXED);
    windows_.erase(window);
    return Error(Code::kExhausted,
                 "mapping {} bytes failed: {} (about {} mappings in use; see vm.max_map_count)",
                 handle.bytes, std::strerror(error), mappings_);
  }
  mappings_ += added;
  return {};
}

Status HostVmm::Unmap(AddressRange range) {
  std::lock_guard lock(mutex_);
  const auto window = windows_.find(range.base);
  GRANULE_CHECK(window != windows_.end() && window->second.bytes == range.bytes);
  if (MapNothing(Pointer(range.base), range.bytes, MAP_FIXED) == MAP_FAILED) {
    return Error(Code::kExhausted,
                 "taking away a mapping of {} bytes failed: {} (about {} mappings in use; see "
                 "vm.max_map_count)",
                 range.bytes, std::strerror(errno), mappings_);
  }
  mappings_ -= MappingsAddedBy(window);
  windows_.erase(window);
  return {};
}

Result<uint64_t> HostVmm::ResidentBytes() const {
  struct stat info {};
  if (fstat(fd_, &info) != 0) {
    return Error(Code::kInternal, "the memory file cannot be examined: {}", std::strerror(errno));
  }
  return static_cast<uint64_t>(info.st_blocks) * 512;
}

uint64_t HostVmm::kernel_mappings() const {
  std::lock_guard lock(mutex_);
  return static_cast<uint64_t>(mappings_);
}

}  // namespace granule::memory
