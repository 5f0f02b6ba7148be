// How a function says that it failed.
//
// One rule per boundary: bytes from outside (files, prompts, requests, the environment) and
// refusals of the system give a Status with words for a person: what, where, expected, found, what
// to do. A bug of ours trips a check (base/check.h) instead. The library never prints, aborts or
// exits on user input.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/format.h"

namespace granule {

enum class Code {
  kOk,
  kUsage,             // a flag, an environment value, or a lever that this build or device lacks
  kInvalidInput,      // the model, the file or the request is bad
  kCapacityExceeded,  // more tokens than the sequence may ever hold
  kExhausted,         // the system refused memory, address space, mappings, disk, ...
  kUnavailable,       // something optional is not on this machine (GPU, ONNX Runtime, network)
  kPoisoned,          // an earlier failure could not be undone; this object can only be closed
  kDeviceLost,        // a GPU's context broke: all that lives on it can only be closed
  kInterrupted,
  kInternal,  // a bug of ours that was caught before it did harm
};

// The process exit code of a failed command: 2 usage, 3 bad input, 4 out of a resource,
// 130 interrupted, 1 ours (design.md 7).
int ExitCode(Code code);
const char* CodeName(Code code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {
    GRANULE_CHECK(code != Code::kOk);
  }

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  // Complete sentences without a trailing newline. Empty when ok.
  const std::string& message() const { return message_; }

  // The same failure seen from further out: "WHERE: message".
  Status In(const std::string& where) const {
    return ok() ? *this : Status(code_, where + ": " + message_);
  }

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

template <class... Args>
Status Error(Code code, fmt::format_string<Args...> format, Args&&... args) {
  return Status(code, VFormat(format, fmt::make_format_args(args...)));
}
template <class... Args>
Status InvalidInput(fmt::format_string<Args...> format, Args&&... args) {
  return Status(Code::kInvalidInput, VFormat(format, fmt::make_format_args(args...)));
}

// A value or the reason why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}                                         // NOLINT
  Result(Status status) : status_(std::move(status)) { GRANULE_CHECK(!status_.ok()); }  // NOLINT

  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }

  T& operator*() & { return Get(); }
  const T& operator*() const& { return Get(); }
  T&& operator*() && { return std::move(Get()); }
  T* operator->() { return &Get(); }
  const T* operator->() const { return &Get(); }

 private:
  T& Get() {
    GRANULE_CHECK(value_.has_value());
    return *value_;
  }
  const T& Get() const {
    GRANULE_CHECK(value_.has_value());
    return *value_;
  }

  std::optional<T> value_;
  Status status_;
};

}  // namespace granule
