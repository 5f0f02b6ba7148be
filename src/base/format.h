// Text formatting with fmt's syntax, compile-time checked, without the cost of its headers in every
// translation unit: only format.cc instantiates the formatting engine.
#pragma once

#include <fmt/core.h>

#include <string>

namespace granule {

std::string VFormat(fmt::string_view format, fmt::format_args args);

template <class... Args>
std::string Format(fmt::format_string<Args...> format, Args&&... args) {
  return VFormat(format, fmt::make_format_args(args...));
}

// "1.5 MiB", "640 KiB", "17 B": binary units, for people. Exact counts go into JSON instead.
std::string FormatBytes(uint64_t bytes);

}  // namespace granule
