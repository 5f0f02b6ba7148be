// ONNX Runtime as a library that is opened at run time, or the reason why it is not there.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/levers.h"
#include "base/status.h"
#include "engine/ort/ort_api.h"

namespace granule::engine {

// Where the library is looked for.
struct OrtPlaces {
  // GRANULE_ORT_LIB: the library file or the folder that holds it. Set = nothing else is tried.
  std::string named;
  // Folders, in order; of several libraries in one folder the newest.
  std::vector<std::filesystem::path> folders;
  // Names for the dynamic loader, tried last.
  std::vector<std::string> loader_names;

  // GRANULE_ORT_LIB; beside the program and in the Python environment of its build; the activated
  // Python environment; the user's and the system's Python packages; the loader's own search.
  static OrtPlaces Usual(EnvironmentLookup environment);
};

// Whether a library of this version ("1.20.0") is new enough. The reason, or empty.
std::string WhyOrtVersionIsRefused(std::string_view version);

// An opened library with its process-wide environment. Const after Open; any thread may use it.
class OrtLibrary {
 public:
  // kUnavailable, with everything that was tried and how to get it, where none is found; where the
  // first one found is too old, likewise.
  static Result<std::shared_ptr<const OrtLibrary>> Open(const OrtPlaces& places);
  // The part of Open after the library is loaded.
  static Result<std::shared_ptr<const OrtLibrary>> FromBase(const OrtApiBase& base,
                                                            std::string path);
  ~OrtLibrary();
  OrtLibrary(const OrtLibrary&) = delete;
  OrtLibrary& operator=(const OrtLibrary&) = delete;

  const OrtCalls& calls() const { return calls_; }
  OrtEnv* env() const { return env_; }
  const std::string& version() const { return version_; }  // "1.32.0"
  const std::string& path() const { return path_; }        // as the loader was given it

  // The status as ours, released: "WHAT failed in ONNX Runtime 1.32.0: message". Null is success.
  // What the library says about memory is kExhausted, everything else about the model
  // kInvalidInput.
  Status Take(OrtStatus* status, std::string_view what) const;

 private:
  OrtLibrary() = default;
  OrtCalls calls_{};
  OrtEnv* env_ = nullptr;
  std::string version_;
  std::string path_;
};

}  // namespace granule::engine
