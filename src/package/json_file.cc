#include "package/json_file.h"

#include <algorithm>
#include <exception>
#include <span>
#include <utility>

#include "base/file.h"

namespace granule::package {
namespace {

constexpr int kMaxDepth = 64;
constexpr uint64_t kMaxBytes = uint64_t{256} << 20;

// The deepest nesting of brackets outside of strings. Held down before parsing, because the tree is
// walked recursively.
int NestingDepth(std::string_view text) {
  int depth = 0, deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      deepest = std::max(deepest, ++depth);
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return deepest;
}

// A value for messages, cut short.
std::string Show(const Json& value) {
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  constexpr size_t kLongest = 60;
  return text.size() <= kLongest ? text : text.substr(0, kLongest) + "...";
}

Status WrongType(const std::string& where, const char* key, const Json& value,
                 const std::string& expected) {
  return InvalidInput("{}.{} is {}; {} is expected", where, key, Show(value), expected);
}

std::optional<int64_t> AsInt(const Json& value) {
  if (value.is_number_unsigned()) {
    const uint64_t number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  return std::nullopt;
}

}  // namespace

Result<Json> ParseJsonObject(std::string_view text, const std::string& name, const char* skip_key) {
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos)
    return InvalidInput("{} is empty", name);
  const std::string foreign = ExplainForeignBytes(std::as_bytes(std::span(text)));
  if (!foreign.empty()) return InvalidInput("{} {}", name, foreign);
  if (const int depth = NestingDepth(text); depth > kMaxDepth) {
    return InvalidInput("{} nests {} levels deep; {} are read", name, depth, kMaxDepth);
  }
  try {
    const auto keep = [skip_key](int depth, Json::parse_event_t event, Json& parsed) {
      return !(skip_key != nullptr && depth == 1 && event == Json::parse_event_t::key &&
               parsed == skip_key);
    };
    Json json = skip_key != nullptr ? Json::parse(text, keep) : Json::parse(text);
    if (!json.is_object()) return InvalidInput("{} is not a JSON object", name);
    return json;
  } catch (const Json::parse_error& error) {
    if (error.byte > text.size())
      return InvalidInput("{} ends early: its JSON stops at byte {}", name, text.size());
    return InvalidInput("{} is not valid JSON at byte {}", name, error.byte);
  } catch (const std::exception& error) {
    return InvalidInput("{}: {}", name, error.what());
  }
}

Result<Json> ReadJsonObject(const std::filesystem::path& path, const char* skip_key) {
  Result<std::string> text = ReadFile(path, kMaxBytes);
  if (!text.ok()) return text.status();
  return ParseJsonObject(*text, path.native(), skip_key);
}

const Json* Member(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

Result<std::optional<int64_t>> IntMember(const Json& object, const char* key,
                                         const std::string& where, int64_t min, int64_t max) {
  const Json* value = Member(object, key);
  if (value == nullptr) return std::optional<int64_t>();
  const std::optional<int64_t> number = AsInt(*value);
  if (!number || *number < min || *number > max) {
    return WrongType(where, key, *value, Format("a whole number from {} to {}", min, max));
  }
  return number;
}

Result<std::optional<double>> NumberMember(const Json& object, const char* key,
                                           const std::string& where) {
  const Json* value = Member(object, key);
  if (value == nullptr) return std::optional<double>();
  if (!value->is_number()) return WrongType(where, key, *value, "a number");
  return std::optional<double>(value->get<double>());
}

Result<std::optional<bool>> BoolMember(const Json& object, const char* key,
                                       const std::string& where) {
  const Json* value = Member(object, key);
  if (value == nullptr) return std::optional<bool>();
  if (!value->is_boolean()) return WrongType(where, key, *value, "true or false");
  return std::optional<bool>(value->get<bool>());
}

Result<std::optional<std::string>> StringMember(const Json& object, const char* key,
                                                const std::string& where) {
  const Json* value = Member(object, key);
  if (value == nullptr) return std::optional<std::string>();
  if (!value->is_string()) return WrongType(where, key, *value, "a text");
  return std::optional<std::string>(value->get<std::string>());
}

Result<std::vector<int32_t>> IdsMember(const Json& object, const char* key,
                                       const std::string& where) {
  const Json* value = Member(object, key);
  std::vector<int32_t> ids;
  if (value == nullptr) return ids;
  const Json list = value->is_array() ? *value : Json::array({*value});
  for (const Json& element : list) {
    const std::optional<int64_t> id = AsInt(element);
    if (!id || *id < 0 || *id > std::numeric_limits<int32_t>::max()) {
      return WrongType(where, key, *value, "a token id or a list of token ids");
    }
    ids.push_back(static_cast<int32_t>(*id));
  }
  return ids;
}

}  // namespace granule::package
