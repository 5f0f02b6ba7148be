// Small JSON files of a model folder, read defensively.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace granule::package {

using Json = nlohmann::json;

// The file's object. Errors name the file and say in words what it is instead: missing, empty, cut
// off, a Git LFS pointer, an HTML page, nested deeper than 64 levels, no object. `skip_key`: a
// top-level member that is passed over unread (may be null).
Result<Json> ReadJsonObject(const std::filesystem::path& path, const char* skip_key = nullptr);
Result<Json> ParseJsonObject(std::string_view text, const std::string& name_for_errors,
                             const char* skip_key = nullptr);

// A member of an object; null when `object` is none, or the member is absent or null.
const Json* Member(const Json& object, const char* key);

// The member as that type: empty when absent, an error that names `where` (the file and the
// object's place in it) and the found value otherwise. Whole numbers must lie in [min, max].
Result<std::optional<int64_t>> IntMember(const Json& object, const char* key,
                                         const std::string& where, int64_t min,
                                         int64_t max = std::numeric_limits<int32_t>::max());
Result<std::optional<double>> NumberMember(const Json& object, const char* key,
                                           const std::string& where);
Result<std::optional<bool>> BoolMember(const Json& object, const char* key,
                                       const std::string& where);
Result<std::optional<std::string>> StringMember(const Json& object, const char* key,
                                                const std::string& where);
// One id or a list of ids, each in [0, 2^31).
Result<std::vector<int32_t>> IdsMember(const Json& object, const char* key,
                                       const std::string& where);

}  // namespace granule::package
