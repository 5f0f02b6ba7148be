// granule version: this build, and the libraries in it.
#include <fmt/core.h>
#include <pcre2.h>
#include <utf8proc.h>
#include <xxhash.h>

#include <CLI/CLI.hpp>
#include <array>
#include <nlohmann/json.hpp>
#include <protozero/version.hpp>

#include "cli/terminal.h"
#include "cli/verbs.h"
#include "kernels/cuda/launcher.h"

namespace granule::cli {
namespace {

struct Library {
  const char* name;
  std::string version;
};

std::string Pcre2Version() {
  std::array<char, 64> text{};
  if (pcre2_config(PCRE2_CONFIG_VERSION, text.data()) < 0) return "unknown";
  return text.data();
}

const char* BuildType() {
#if defined(__SANITIZE_ADDRESS__)
  return "address sanitizer";
#elif defined(__SANITIZE_THREAD__)
  return "thread sanitizer";
#elif defined(NDEBUG)
  return "release";
#else
  return "with checks";
#endif
}

std::vector<Library> Libraries() {
  return {
      {"fmt", Format("{}.{}.{}", FMT_VERSION / 10000, FMT_VERSION / 100 % 100, FMT_VERSION % 100)},
      {"CLI11", CLI11_VERSION},
      {"nlohmann-json", Format("{}.{}.{}", NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR,
                               NLOHMANN_JSON_VERSION_PATCH)},
      {"protozero", PROTOZERO_VERSION_STRING},
      {"PCRE2", Pcre2Version()},
      {"utf8proc", utf8proc_version()},
      {"xxHash", Format("{}.{}.{}", XXH_VERSION_MAJOR, XXH_VERSION_MINOR, XXH_VERSION_RELEASE)},
  };
}

Result<int> Version(const Invocation&) {
  std::string out = Format("granule {} ({})\n", GRANULE_VERSION, BuildType());
#if defined(__clang__)
  out += Format("compiler       clang {}\n", __clang_version__);
#else
  out += Format("compiler       g++ {}\n", __VERSION__);
#endif
  for (const Library& library : Libraries()) {
    std::string name = library.name;
    name.resize(15, ' ');
    out += name + library.version + "\n";
  }
  out += Format("CUDA kernels   {}\n", kernels::CudaKernels::InThisBuild()
                                           ? FormatBytes(kernels::CudaKernels::ImageBytes())
                                           : "none in this build");
  if (Status s = WriteStdout(out); !s.ok()) return s;
  return 0;
}

}  // namespace

Verb VersionVerb() {
  return {{.name = "version",
           .purpose = "this build and the libraries in it (also granule --version)",
           .usage = "",
           .exit_codes = UsualExitCodes()},
          Version};
}

}  // namespace granule::cli
