// JSON as a plain tree, for files that strangers wrote: bounded nesting, no exceptions, and errors
// that say where.
//
// Why not the library's own tree: its ordered object searches linearly on every insertion, which is
// quadratic on a vocabulary, and its sorted one loses the order of added tokens.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace granule::text {

struct JsonValue {
  enum class Kind { kNull, kBool, kInteger, kNumber, kString, kArray, kObject };

  // The member of an object; null when there is none (or this is no object). The last one wins.
  const JsonValue* Find(std::string_view key) const;
  JsonValue* Find(std::string_view key);
  bool is_null() const { return kind == Kind::kNull; }
  bool is_object() const { return kind == Kind::kObject; }
  bool is_array() const { return kind == Kind::kArray; }
  bool is_string() const { return kind == Kind::kString; }

  Kind kind = Kind::kNull;
  bool boolean = false;
  int64_t integer = 0;  // kInteger; unsigned values above the range are kNumber
  double number = 0;    // kInteger and kNumber
  std::string string;
  std::vector<JsonValue> items;   // of an array; of an object the values,
  std::vector<std::string> keys;  // with their names: keys[i] belongs to items[i]
};

const char* KindName(JsonValue::Kind kind);  // "a string", "an object", ...

inline constexpr int kMaxJsonDepth = 64;

// Errors name the byte offset, and tell a file that ends early from one that is malformed.
Result<JsonValue> ParseJson(std::string_view text);

// Reads members of one object. The first thing that is wrong is kept, with its JSON path, and later
// reads return fallbacks; look at status() once at the end.
class Fields {
 public:
  Fields(const JsonValue& object, std::string path);

  bool Bool(const char* key, bool fallback);
  int64_t Integer(const char* key, int64_t fallback, int64_t low, int64_t high);
  std::string String(const char* key, const std::string& fallback);  // null counts as absent
  std::string RequiredString(const char* key);
  char32_t Char(const char* key, char32_t fallback);  // a string of exactly one character
  const JsonValue* RequiredArray(const char* key);    // never null: an empty array on error
  const JsonValue* RequiredObject(const char* key);

  void Fail(Status status);  // keeps the first
  std::string PathOf(std::string_view key) const;
  const Status& status() const { return status_; }

 private:
  const JsonValue* Get(const char* key, JsonValue::Kind kind, bool required);

  const JsonValue& object_;
  const std::string path_;
  Status status_;
};

}  // namespace granule::text
