#include "text/json.h"

#include <nlohmann/json.hpp>

#include "text/utf8.h"

namespace granule::text {
namespace {

using Nlohmann = nlohmann::json;

// Receives the library's parse events; returning false stops it.
class TreeBuilder : public nlohmann::json_sax<Nlohmann> {
 public:
  explicit TreeBuilder(size_t input_bytes) : input_bytes_(input_bytes) {}

  bool null() override { return Add(JsonValue{}); }
  bool boolean(bool value) override {
    JsonValue node;
    node.kind = JsonValue::Kind::kBool;
    node.boolean = value;
    return Add(std::move(node));
  }
  bool number_integer(number_integer_t value) override {
    JsonValue node;
    node.kind = JsonValue::Kind::kInteger;
    node.integer = value;
    node.number = static_cast<double>(value);
    return Add(std::move(node));
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (value <= static_cast<number_unsigned_t>(INT64_MAX)) {
      return number_integer(static_cast<number_integer_t>(value));
    }
    return number_float(static_cast<double>(value), "");
  }
  bool number_float(number_float_t value, const string_t&) override {
    JsonValue node;
    node.kind = JsonValue::Kind::kNumber;
    node.number = value;
    return Add(std::move(node));
  }
  bool string(string_t& value) override {
    JsonValue node;
    node.kind = JsonValue::Kind::kString;
    node.string = std::move(value);
    return Add(std::move(node));
  }
  bool binary(binary_t&) override { return false; }  // the text format has none
  bool key(string_t& value) override {
    open_.back()->keys.push_back(std::move(value));
    return true;
  }
  bool start_object(size_t) override { return Open(JsonValue::Kind::kObject); }
  bool end_object() override { return Close(); }
  bool start_array(size_t) override { return Open(JsonValue::Kind::kArray); }
  bool end_array() override { return Close(); }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    // Positions count the bytes read, the one at fault included; the end counts as one more.
    if (position > input_bytes_) {
      status_ = InvalidInput(
          "the JSON ends early, at byte {}: the file is cut off (an unfinished download or copy?)",
          input_bytes_);
      return false;
    }
    // The library's text repeats its own name and the position; the reason stands after the last
    // colon group, so the whole is kept short and the position comes first.
    std::string reason = error.what();
    if (const size_t cut = reason.find(": syntax error"); cut != std::string::npos) {
      reason = reason.substr(cut + 2);
    } else if (const size_t column = reason.find("column "); column != std::string::npos) {
      if (const size_t colon = reason.find(": ", column); colon != std::string::npos) {
        reason = reason.substr(colon + 2);
      }
    }
    if (reason.size() > 200) reason = reason.substr(0, 200) + "...";
    status_ = InvalidInput("not valid JSON at byte {}: {}", position - 1, reason);
    return false;
  }

  Status& status() { return status_; }
  JsonValue& root() { return root_; }

 private:
  JsonValue* Place(JsonValue&& node) {
    if (open_.empty()) {
      root_ = std::move(node);
      return &root_;
    }
    std::vector<JsonValue>& items = open_.back()->items;
    items.push_back(std::move(node));
    return &items.back();
  }
  bool Add(JsonValue&& node) {
    Place(std::move(node));
    return true;
  }
  bool Open(JsonValue::Kind kind) {
    if (open_.size() >= kMaxJsonDepth) {
      status_ = InvalidInput("the JSON nests deeper than {} levels", kMaxJsonDepth);
      return false;
    }
    JsonValue node;
    node.kind = kind;
    // Pointers on the stack stay valid: a container grows only while it is the innermost open one.
    open_.push_back(Place(std::move(node)));
    return true;
  }
  bool Close() {
    open_.pop_back();
    return true;
  }

  const size_t input_bytes_;
  JsonValue root_;
  std::vector<JsonValue*> open_;
  Status status_;
};

JsonValue EmptyOf(JsonValue::Kind kind) {
  JsonValue value;
  value.kind = kind;
  return value;
}

}  // namespace

const JsonValue* JsonValue::Find(std::string_view key) const {
  for (size_t i = keys.size(); i-- > 0;) {
    if (keys[i] == key) return &items[i];
  }
  return nullptr;
}

JsonValue* JsonValue::Find(std::string_view key) {
  return const_cast<JsonValue*>(std::as_const(*this).Find(key));
}

const char* KindName(JsonValue::Kind kind) {
  switch (kind) {
    case JsonValue::Kind::kNull:
      return "null";
    case JsonValue::Kind::kBool:
      return "true or false";
    case JsonValue::Kind::kInteger:
      return "an integer";
    case JsonValue::Kind::kNumber:
      return "a number";
    case JsonValue::Kind::kString:
      return "a string";
    case JsonValue::Kind::kArray:
      return "an array";
    case JsonValue::Kind::kObject:
      return "an object";
  }
  return "?";
}

Result<JsonValue> ParseJson(std::string_view text) {
  TreeBuilder builder(text.size());
  try {
    const bool ok = Nlohmann::sax_parse(text.begin(), text.end(), &builder);
    if (!builder.status().ok()) return std::move(builder.status());
    if (!ok) return InvalidInput("not valid JSON");
  } catch (const std::exception& e) {
    return InvalidInput("not readable as JSON: {}", e.what());
  }
  return std::move(builder.root());
}

Fields::Fields(const JsonValue& object, std::string path)
    : object_(object), path_(std::move(path)) {
  if (!object.is_object()) {
    status_ = InvalidInput("{} must be an object, not {}", path_, KindName(object.kind));
  }
}

std::string Fields::PathOf(std::string_view key) const {
  std::string path = path_;
  if (!path.empty()) path += '.';
  path += key;
  return path;
}

void Fields::Fail(Status status) {
  if (status_.ok()) status_ = std::move(status);
}

const JsonValue* Fields::Get(const char* key, JsonValue::Kind kind, bool required) {
  if (!status_.ok()) return nullptr;
  const JsonValue* value = object_.Find(key);
  if (value == nullptr || value->is_null()) {
    if (required) Fail(InvalidInput("{} is missing; it must be {}", PathOf(key), KindName(kind)));
    return nullptr;
  }
  if (value->kind != kind) {
    Fail(InvalidInput("{} must be {}, not {}", PathOf(key), KindName(kind), KindName(value->kind)));
    return nullptr;
  }
  return value;
}

bool Fields::Bool(const char* key, bool fallback) {
  const JsonValue* value = Get(key, JsonValue::Kind::kBool, /*required=*/false);
  return value != nullptr ? value->boolean : fallback;
}

int64_t Fields::Integer(const char* key, int64_t fallback, int64_t low, int64_t high) {
  const JsonValue* value = Get(key, JsonValue::Kind::kInteger, /*required=*/false);
  if (value == nullptr) return fallback;
  if (value->integer < low || value->integer > high) {
    Fail(
        InvalidInput("{} is {}; it must be from {} to {}", PathOf(key), value->integer, low, high));
    return fallback;
  }
  return value->integer;
}

std::string Fields::String(const char* key, const std::string& fallback) {
  const JsonValue* value = Get(key, JsonValue::Kind::kString, /*required=*/false);
  return value != nullptr ? value->string : fallback;
}

std::string Fields::RequiredString(const char* key) {
  const JsonValue* value = Get(key, JsonValue::Kind::kString, /*required=*/true);
  return value != nullptr ? value->string : std::string();
}

char32_t Fields::Char(const char* key, char32_t fallback) {
  const JsonValue* value = Get(key, JsonValue::Kind::kString, /*required=*/false);
  if (value == nullptr) return fallback;
  size_t pos = 0;
  const char32_t c = value->string.empty() ? 0 : NextChar(value->string, &pos);
  if (pos == 0 || pos != value->string.size()) {
    Fail(
        InvalidInput("{} is \"{}\"; it must be exactly one character", PathOf(key), value->string));
    return fallback;
  }
  return c;
}

const JsonValue* Fields::RequiredArray(const char* key) {
  static const JsonValue kEmpty = EmptyOf(JsonValue::Kind::kArray);
  const JsonValue* value = Get(key, JsonValue::Kind::kArray, /*required=*/true);
  return value != nullptr ? value : &kEmpty;
}

const JsonValue* Fields::RequiredObject(const char* key) {
  static const JsonValue kEmpty = EmptyOf(JsonValue::Kind::kObject);
  const JsonValue* value = Get(key, JsonValue::Kind::kObject, /*required=*/true);
  return value != nullptr ? value : &kEmpty;
}

}  // namespace granule::text
