#include "base/cuda_driver.h"

#include <dlfcn.h>

namespace granule::cuda {

std::string Driver::Describe(DriverResult result) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (GetErrorName == nullptr || GetErrorName(result, &name) != kSuccess || name == nullptr) {
    return Format("CUDA error {}", result);
  }
  if (GetErrorString(result, &text) != kSuccess || text == nullptr) text = "no description";
  return Format("{} ({}): {}", name, result, text);
}

std::string DriverVersionText(int version) {
  return Format("{}.{}", version / 1000, version % 1000 / 10);
}

Result<std::shared_ptr<const Driver>> OpenDriver(const std::string& library) {
  // Never closed: the driver starts threads of its own, which outlive any unload.
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return Error(Code::kUnavailable,
                 "no CUDA driver: {} cannot be opened ({}). A GPU needs NVIDIA's driver 580 or "
                 "newer, which serves CUDA {}; --device cpu works without",
                 library, dlerror(), DriverVersionText(kOldestDriver));
  }
  auto driver = std::make_shared<Driver>();
  driver->path = library;
  std::string missing;
// NOLINTBEGIN(bugprone-macro-parentheses): names and parameter lists, not expressions.
#define GRANULE_CUDA_RESOLVE(name, symbol, parameters)                                 \
  driver->name = reinterpret_cast<DriverResult(*) parameters>(dlsym(handle, #symbol)); \
  if (driver->name == nullptr) missing += missing.empty() ? #symbol : ", " #symbol;
  GRANULE_CUDA_ENTRIES(GRANULE_CUDA_RESOLVE)
#undef GRANULE_CUDA_RESOLVE
  // NOLINTEND(bugprone-macro-parentheses)
  // The version first: a driver that is too old lacks entries because it is too old.
  if (driver->DriverGetVersion != nullptr) driver->DriverGetVersion(&driver->version);
  if (driver->version != 0 && driver->version < kOldestDriver) {
    return Error(Code::kUnavailable,
                 "the CUDA driver is too old: {} serves CUDA {}, expected {} or newer. Update "
                 "NVIDIA's driver (580 or newer), or use --device cpu",
                 library, DriverVersionText(driver->version), DriverVersionText(kOldestDriver));
  }
  if (!missing.empty()) {
    return Error(Code::kUnavailable, "{} is no CUDA driver that granule can use: it lacks {}",
                 library, missing);
  }
  if (const DriverResult result = driver->Init(0); result != kSuccess) {
    return Error(Code::kUnavailable, "the CUDA driver does not start: {}",
                 driver->Describe(result));
  }
  int devices = 0;
  if (const DriverResult result = driver->DeviceGetCount(&devices); result != kSuccess) {
    return Error(Code::kUnavailable, "the CUDA driver counts no devices: {}",
                 driver->Describe(result));
  }
  if (devices == 0) return Error(Code::kUnavailable, "the CUDA driver sees no device");
  return std::shared_ptr<const Driver>(std::move(driver));
}

}  // namespace granule::cuda
