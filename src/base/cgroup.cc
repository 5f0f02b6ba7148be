#include "base/cgroup.h"

#include <algorithm>
#include <charconv>
#include <sstream>
#include <string_view>

#include "base/file.h"

namespace granule {
namespace {

constexpr uint64_t kMaxKernelFile = 4 << 20;

std::string ReadOrEmpty(const std::string& path) {
  Result<std::string> text = ReadFile(path, kMaxKernelFile);
  return text.ok() ? *std::move(text) : std::string();
}

// mountinfo writes blanks in paths as three octal digits.
std::string Unescape(const std::string& field) {
  std::string out;
  for (size_t i = 0; i < field.size(); ++i) {
    const auto digit = [&](size_t at) { return field[at] >= '0' && field[at] <= '7'; };
    if (field[i] == '\\' && i + 3 < field.size() && digit(i + 1) && digit(i + 2) && digit(i + 3)) {
      out += static_cast<char>((field[i + 1] - '0') * 64 + (field[i + 2] - '0') * 8 +
                               (field[i + 3] - '0'));
      i += 3;
    } else {
      out += field[i];
    }
  }
  return out;
}

bool HasItem(std::string_view list, std::string_view item) {
  while (!list.empty()) {
    const size_t comma = list.find(',');
    if (list.substr(0, comma) == item) return true;
    if (comma == std::string_view::npos) return false;
    list.remove_prefix(comma + 1);
  }
  return false;
}

struct Mount {
  std::string root;  // which group is visible at the mount point
  std::string point;
  int version = 2;
  std::string options;  // version 1: the controllers are among the super options
};

std::vector<Mount> CgroupMounts(const std::string& mountinfo) {
  std::vector<Mount> mounts;
  std::istringstream lines(mountinfo);
  for (std::string line; std::getline(lines, line);) {
    // ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [TAG...] - TYPE SOURCE SUPER-OPTIONS
    const size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream front(line.substr(0, dash));
    std::istringstream back(line.substr(dash + 3));
    std::string id, parent, device, root, point, type, from, options;
    if (!(front >> id >> parent >> device >> root >> point)) continue;
    if (!(back >> type >> from >> options)) continue;
    if (type != "cgroup" && type != "cgroup2") continue;
    mounts.push_back({Unescape(root), Unescape(point), type == "cgroup2" ? 2 : 1, options});
  }
  return mounts;
}

void AddWayUp(const Mount& mount, const std::string& group, std::vector<CgroupDirectory>& out) {
  // Inside a container the mount may show a subtree only; a group outside of it leaves the mount
  // point.
  std::string below;
  if (mount.root == "/") {
    below = group == "/" ? "" : group;
  } else if (group.starts_with(mount.root + "/")) {
    below = group.substr(mount.root.size());
  }
  if (below.find("/..") != std::string::npos) below.clear();
  std::string point = mount.point;
  while (!point.empty() && point.back() == '/') point.pop_back();
  for (;;) {
    out.push_back({point + below, mount.version});
    if (below.empty()) return;
    below.resize(below.rfind('/'));
  }
}

std::optional<double> Quota(const CgroupDirectory& directory) {
  if (directory.version == 1) {
    const auto quota = ReadCounter(directory.path + "/cpu.cfs_quota_us");
    const auto period = ReadCounter(directory.path + "/cpu.cfs_period_us");
    if (!quota || !period || *quota == 0 || *period == 0) return std::nullopt;
    return static_cast<double>(*quota) / static_cast<double>(*period);
  }
  std::istringstream words(ReadOrEmpty(directory.path + "/cpu.max"));
  double quota = 0;
  double period = 0;  // "max 100000" does not read as a number: unlimited
  if (!(words >> quota >> period) || quota <= 0 || period <= 0) return std::nullopt;
  return quota / period;
}

}  // namespace

std::vector<CgroupDirectory> CgroupDirectories(const std::string& controller,
                                               const CgroupSource& source) {
  const std::vector<Mount> mounts = CgroupMounts(ReadOrEmpty(source.mountinfo_file));
  std::vector<CgroupDirectory> out;
  std::istringstream lines(ReadOrEmpty(source.cgroup_file));
  for (std::string line; std::getline(lines, line);) {
    // HIERARCHY:CONTROLLERS:GROUP; version 2 is "0::GROUP"
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos || second + 1 >= line.size()) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    const int version = line.starts_with("0::") ? 2 : 1;
    if (version == 1 && !HasItem(controllers, controller)) continue;
    for (const Mount& mount : mounts) {
      if (mount.version != version) continue;
      if (version == 1 && !HasItem(mount.options, controller)) continue;
      AddWayUp(mount, group, out);
      break;
    }
  }
  return out;
}

std::optional<double> CgroupCpuQuota(const CgroupSource& source) {
  std::optional<double> smallest;
  for (const CgroupDirectory& directory : CgroupDirectories("cpu", source)) {
    const std::optional<double> quota = Quota(directory);
    if (quota && (!smallest || *quota < *smallest)) smallest = quota;
  }
  return smallest;
}

std::optional<uint64_t> ReadCounter(const std::string& path) {
  const std::string text = ReadOrEmpty(path);
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = end == text.data() + text.size() || *end == '\n' || *end == ' ';
  if (error != std::errc() || !whole) return std::nullopt;
  return value;
}

}  // namespace granule
