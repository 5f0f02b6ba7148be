#define FMT_HEADER_ONLY 1
#include "base/format.h"

#include <fmt/format.h>

namespace granule {

std::string VFormat(fmt::string_view format, fmt::format_args args) {
  return fmt::vformat(format, args);
}

std::string FormatBytes(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024.0 && unit < 6) {
    value /= 1024.0;
    ++unit;
  }
  const bool whole = value == static_cast<double>(static_cast<uint64_t>(value));
  return whole ? Format("{:.0f} {}", value, kUnits[unit])
               : Format("{:.1f} {}", value, kUnits[unit]);
}

}  // namespace granule
