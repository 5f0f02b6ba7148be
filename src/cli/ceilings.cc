#include "cli/ceilings.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/file.h"

namespace granule::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kMaxFileBytes = 16 << 20;
constexpr int kFormatVersion = 1;

std::optional<Isa> IsaFromName(const std::string& name) {
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
    if (name == IsaName(isa)) return isa;
  }
  return std::nullopt;
}

bool SameKey(const Ceiling& a, const Ceiling& b) {
  return a.cpu == b.cpu && a.threads == b.threads && a.isa == b.isa;
}

// A number above zero, or 0: a ceiling of nothing divides nothing.
double Positive(const Json& record, const char* key) {
  const auto it = record.find(key);
  if (it == record.end() || !it->is_number()) return 0;
  const double value = it->get<double>();
  return std::isfinite(value) && value > 0 ? value : 0;
}

}  // namespace

std::filesystem::path CeilingsPath() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  // The XDG base directory specification: a relative path is to be ignored.
  if (cache != nullptr && *cache == '/') {
    return std::filesystem::path(cache) / "granule/ceilings.json";
  }
  const char* home = std::getenv("HOME");
  if (home != nullptr && *home == '/') {
    return std::filesystem::path(home) / ".cache/granule/ceilings.json";
  }
  return {};
}

Result<std::vector<Ceiling>> ReadCeilings(const std::filesystem::path& path) {
  std::vector<Ceiling> records;
  std::error_code error;
  if (path.empty() || !std::filesystem::exists(path, error)) return records;
  Result<std::string> text = ReadFile(path, kMaxFileBytes);
  if (!text.ok()) return text.status();
  const Json file = Json::parse(*text, /*cb=*/nullptr, /*allow_exceptions=*/false);
  const auto list = file.is_object() ? file.find("records") : file.end();
  if (file.is_discarded() || !file.is_object() || list == file.end() || !list->is_array()) {
    return InvalidInput("{}: not a file of measured ceilings; `granule doctor` writes it anew",
                        path.native());
  }
  for (const Json& item : *list) {
    if (!item.is_object()) continue;
    const auto cpu = item.find("cpu");
    const auto threads = item.find("threads");
    const auto isa = item.find("isa");
    if (cpu == item.end() || !cpu->is_string() || threads == item.end() ||
        !threads->is_number_integer() || isa == item.end() || !isa->is_string()) {
      continue;
    }
    const std::optional<Isa> level = IsaFromName(isa->get<std::string>());
    Ceiling record{cpu->get<std::string>(), threads->get<int>(), level.value_or(Isa::kPortable),
                   Positive(item, "read_bytes_per_second"), Positive(item, "fma_flops_per_second")};
    if (level && record.read_bytes_per_second > 0) records.push_back(std::move(record));
  }
  return records;
}

Status StoreCeilings(const std::filesystem::path& path, const std::vector<Ceiling>& records) {
  if (path.empty()) {
    return Error(Code::kExhausted,
                 "no cache folder: neither XDG_CACHE_HOME nor HOME names an absolute path");
  }
  std::vector<Ceiling> all;
  if (Result<std::vector<Ceiling>> old = ReadCeilings(path); old.ok()) all = std::move(*old);
  std::erase_if(all, [&](const Ceiling& old) {
    return std::any_of(records.begin(), records.end(),
                       [&](const Ceiling& record) { return SameKey(old, record); });
  });
  all.insert(all.end(), records.begin(), records.end());
  Json list = Json::array();
  for (const Ceiling& c : all) {
    list.push_back({{"cpu", c.cpu},
                    {"threads", c.threads},
                    {"isa", IsaName(c.isa)},
                    {"read_bytes_per_second", c.read_bytes_per_second},
                    {"fma_flops_per_second", c.fma_flops_per_second}});
  }
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  if (error) {
    return Error(Code::kExhausted, "{}: cannot make this folder: {}", path.parent_path().native(),
                 error.message());
  }
  const Json file = {{"version", kFormatVersion}, {"records", std::move(list)}};
  return WriteFileAtomically(
      path, file.dump(1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n");
}

std::optional<Ceiling> FindCeiling(const std::vector<Ceiling>& records, const std::string& cpu,
                                   int threads, Isa isa) {
  const Ceiling key{cpu, threads, isa, 0, 0};
  const auto it = std::find_if(records.begin(), records.end(),
                               [&](const Ceiling& record) { return SameKey(record, key); });
  if (it == records.end()) return std::nullopt;
  return *it;
}

}  // namespace granule::cli
