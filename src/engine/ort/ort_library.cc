#include "engine/ort/ort_library.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <optional>
#include <system_error>

namespace granule::engine {
namespace {

namespace fs = std::filesystem;

constexpr const char* kHowToGetIt =
    "Install it with `pip install onnxruntime` (make setup does so in build/venv), or point "
    "GRANULE_ORT_LIB at libonnxruntime.so";

using Version = std::array<uint64_t, 3>;

// "1.20.0", "1.20", "1.21.0-rc1".
std::optional<Version> ParseVersion(std::string_view text) {
  Version version{};
  for (size_t part = 0; part < version.size(); ++part) {
    const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
    const auto number = ParseUnsigned(text.substr(0, digits));
    if (!number) return std::nullopt;
    version[part] = *number;
    if (digits == text.size() || text[digits] != '.') {
      return part >= 1 ? std::optional<Version>(version) : std::nullopt;
    }
    text.remove_prefix(digits + 1);
  }
  return version;
}

// The newest libonnxruntime.so* of a folder, by the version in its name; empty when there is none.
fs::path LibraryIn(const fs::path& folder) {
  constexpr std::string_view kName = "libonnxruntime.so";
  fs::path best;
  Version best_version{};
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().native();
    if (!name.starts_with(kName)) continue;
    std::string_view rest = std::string_view(name).substr(kName.size());
    if (!rest.empty() && rest.front() != '.') continue;
    if (!rest.empty()) rest.remove_prefix(1);
    const Version version = ParseVersion(rest).value_or(Version{});
    if (best.empty() || version > best_version) {
      best = it->path();
      best_version = version;
    }
  }
  return best;
}

// PREFIX/lib/python3*/PACKAGES/onnxruntime/capi, newest Python first.
void AddPythonFolders(const fs::path& prefix, const char* packages, std::vector<fs::path>& out) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator it(prefix / "lib", error), end; !error && it != end;
       it.increment(error)) {
    if (it->path().filename().native().starts_with("python3")) {
      found.push_back(it->path() / packages / "onnxruntime" / "capi");
    }
  }
  const auto newer = [](const fs::path& a, const fs::path& b) {
    const std::string& x = a.native();
    const std::string& y = b.native();
    return x.size() != y.size() ? x.size() > y.size() : x > y;  // python3.11 after python3.9
  };
  std::sort(found.begin(), found.end(), newer);
  out.insert(out.end(), found.begin(), found.end());
}

// Libraries stay loaded for good: ONNX Runtime has threads and global objects of its own, and
// unloading it while they wind down is not safe.
const OrtApiBase* LoadBase(const std::string& path, std::string& why) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* text = dlerror();
    why = text != nullptr ? text : "the loader gives no reason";
    return nullptr;
  }
  const auto get_base = reinterpret_cast<OrtGetApiBaseFunction>(dlsym(library, "OrtGetApiBase"));
  const OrtApiBase* base = get_base != nullptr ? get_base() : nullptr;
  if (base == nullptr) why = path + ": not ONNX Runtime (it has no OrtGetApiBase)";
  return base;
}

// What ONNX Runtime has to tell comes back as a status; the library writes nothing to our stderr.
void DropLog(void*, OrtSeverity, const char*, const char*, const char*, const char*) {}

bool IsAboutMemory(std::string_view message) {
  return message.find("bad_alloc") != std::string_view::npos ||
         message.find("Failed to allocate memory") != std::string_view::npos ||
         message.find("Available memory of") != std::string_view::npos;
}

}  // namespace

OrtPlaces OrtPlaces::Usual(EnvironmentLookup environment) {
  const auto variable = [&](const char* name) {
    const char* text = environment(name);
    return std::string(text != nullptr ? text : "");
  };
  OrtPlaces places;
  places.named = variable("GRANULE_ORT_LIB");
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (!error) {
    // build/PRESET/granule finds build/venv, bin/granule finds lib/.
    const fs::path folder = program.parent_path();
    places.folders.push_back(folder);
    places.folders.push_back(folder.parent_path() / "lib");
    AddPythonFolders(folder.parent_path() / "venv", "site-packages", places.folders);
  }
  if (const std::string active = variable("VIRTUAL_ENV"); !active.empty()) {
    AddPythonFolders(active, "site-packages", places.folders);
  }
  if (const std::string home = variable("HOME"); !home.empty()) {
    AddPythonFolders(fs::path(home) / ".local", "site-packages", places.folders);
  }
  for (const char* prefix : {"/usr/local", "/usr"}) {
    for (const char* packages : {"site-packages", "dist-packages"}) {
      AddPythonFolders(prefix, packages, places.folders);
    }
  }
  places.loader_names = {"libonnxruntime.so.1", "libonnxruntime.so"};
  return places;
}

std::string WhyOrtVersionIsRefused(std::string_view text) {
  const auto version = ParseVersion(text);
  if (!version) return Format("its version \"{}\" is not of the form 1.N.N", text);
  const Version oldest = *ParseVersion(kOldestOrtVersion);
  if (*version < oldest) {
    return Format("it is version {}; {} or newer is needed", text, kOldestOrtVersion);
  }
  return "";
}

Result<std::shared_ptr<const OrtLibrary>> OrtLibrary::Open(const OrtPlaces& places) {
  std::string tried;
  const auto try_path = [&](const std::string& path) -> const OrtApiBase* {
    std::string why;
    const OrtApiBase* base = LoadBase(path, why);
    if (base == nullptr) tried += Format("\n  {}", why);
    return base;
  };
  if (!places.named.empty()) {
    std::error_code error;
    const fs::path named = places.named;
    const bool is_folder = fs::is_directory(named, error);
    const fs::path file = is_folder ? LibraryIn(named) : named;
    if (file.empty()) {
      return Error(Code::kUnavailable, "GRANULE_ORT_LIB={}: the folder holds no libonnxruntime.so",
                   places.named);
    }
    // A bare name would send the loader searching.
    const std::string path = fs::absolute(file, error).native();
    if (const OrtApiBase* base = try_path(path)) return FromBase(*base, path);
    return Error(Code::kUnavailable, "GRANULE_ORT_LIB={} cannot be used:{}", places.named, tried);
  }
  for (const fs::path& folder : places.folders) {
    const fs::path file = LibraryIn(folder);
    if (file.empty()) {
      tried += Format("\n  {}: no libonnxruntime.so there", folder.native());
    } else if (const OrtApiBase* base = try_path(file.native())) {
      return FromBase(*base, file.native());
    }
  }
  for (const std::string& name : places.loader_names) {
    if (const OrtApiBase* base = try_path(name)) return FromBase(*base, name);
  }
  return Error(Code::kUnavailable, "ONNX Runtime was not found. {}. Tried:{}", kHowToGetIt, tried);
}

Result<std::shared_ptr<const OrtLibrary>> OrtLibrary::FromBase(const OrtApiBase& base,
                                                               std::string path) {
  const char* text = base.get_version();
  const std::string version = text != nullptr ? text : "";
  // Checked before get_api, which would complain on stderr.
  std::string refused = WhyOrtVersionIsRefused(version);
  const OrtApiTable* table = refused.empty() ? base.get_api(kOrtApiVersion) : nullptr;
  if (table == nullptr) {
    if (refused.empty()) refused = Format("it has no API of version {}", kOrtApiVersion);
    return Error(Code::kUnavailable, "the ONNX Runtime at {} cannot be used: {}. {}", path, refused,
                 kHowToGetIt);
  }
  std::shared_ptr<OrtLibrary> library(new OrtLibrary());
  library->calls_ = ReadOrtTable(table);
  library->version_ = version;
  library->path_ = std::move(path);
  if (Status s =
          library->Take(library->calls_.create_env_with_logger(
                            DropLog, nullptr, OrtSeverity::kFatal, "granule", &library->env_),
                        "making the environment");
      !s.ok()) {
    return s;
  }
  return std::shared_ptr<const OrtLibrary>(std::move(library));
}

OrtLibrary::~OrtLibrary() {
  if (env_ != nullptr) calls_.release_env(env_);
}

Status OrtLibrary::Take(OrtStatus* status, std::string_view what) const {
  if (status == nullptr) return {};
  const std::string message = calls_.get_error_message(status);
  const auto code = static_cast<int>(calls_.get_error_code(status));
  calls_.release_status(status);
  return Error(IsAboutMemory(message) ? Code::kExhausted : Code::kInvalidInput,
               "{} failed in ONNX Runtime {} (error {}): {}", what, version_, code, message);
}

}  // namespace granule::engine
