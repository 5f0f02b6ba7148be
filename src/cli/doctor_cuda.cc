#include "cli/doctor_cuda.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "cli/terminal.h"
#include "engine/cuda/gpu.h"
#include "kernels/cuda/cuda_rowwise.h"
#include "memory/cuda/cuda_memory_probe.h"

namespace granule::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kReadBytes = uint64_t{4} << 30;  // far beyond the L2

Json ExamineGpu(const std::shared_ptr<const cuda::Driver>& driver, int index, CudaReport& report) {
  const std::string where = Format("cuda:{}", index);
  Json json = {{"device", where}};
  const auto line = [&](const std::string& text) { report.lines.push_back(where + ": " + text); };
  auto gpu = engine::OpenGpu(index);
  if (!gpu.ok()) {
    line("cannot be used: " + gpu.status().message());
    json["error"] = gpu.status().message();
    return json;
  }
  const cuda::DeviceFacts& facts = (*gpu)->device->facts();
  json["name"] = facts.name;
  json["compute_capability"] = Format("{}.{}", facts.capability_major, facts.capability_minor);
  json["multiprocessors"] = facts.multiprocessors;
  json["total_bytes"] = facts.total_bytes;
  if (const auto memory = (*gpu)->device->Memory(); memory.ok())
    json["free_bytes"] = memory->free_bytes;
  line(Format("{}, compute capability {}.{}, {} multiprocessors, {}", facts.name,
              facts.capability_major, facts.capability_minor, facts.multiprocessors,
              FormatBytes(facts.total_bytes)));
  json["cublaslt"] = (*gpu)->blas ? Json((*gpu)->blas_note) : Json();
  line("cuBLASLt " + ((*gpu)->blas ? (*gpu)->blas_note
                                   : "not found, our own slower kernels do large products: " +
                                         (*gpu)->blas_note));
  const auto free = (*gpu)->device->Memory();
  const uint64_t bytes = free.ok() ? std::min(kReadBytes, free->free_bytes / 2) : kReadBytes;
  const auto read = kernels::MeasureReadCeiling(*(*gpu)->launcher, bytes);
  if (read.ok()) {
    json["read_bytes_per_second"] = *read;
    line(Format("reads {:.2f} TB/s", *read / 1e12));
    report.ceilings.push_back(GpuCeiling(facts.name, *read));
  } else {
    line("the read ceiling could not be measured: " + read.status().message());
  }
  gpu->reset();  // its memory, before the probe asks for some

  const auto probe = memory::ProbeCudaMemory(driver, index);
  if (!probe.ok()) {
    line("virtual memory does not work: " + probe.status().message());
    json["virtual_memory"] = {{"error", probe.status().message()}};
    return json;
  }
  json["virtual_memory"] = {{"granule_bytes", probe->granule_bytes},
                            {"smallest_granule_bytes", probe->smallest_granule_bytes},
                            {"largest_reservation_bytes", probe->largest_reservation_bytes},
                            {"aliases", memory::SeenText(probe->aliases)},
                            {"read_only_refuses", memory::SeenText(probe->read_only_refuses)},
                            {"maps_beside_work", memory::SeenText(probe->maps_beside_work)},
                            {"note", probe->note}};
  line(
      Format("granule {}, {} of addresses granted; one memory at two addresses: {}; read-only "
             "maps refuse a write: {}; mapping beside running work was seen safe: {}{}",
             FormatBytes(probe->granule_bytes), FormatBytes(probe->largest_reservation_bytes),
             memory::SeenText(probe->aliases), memory::SeenText(probe->read_only_refuses),
             memory::SeenText(probe->maps_beside_work),
             probe->note.empty() ? "" : " (" + probe->note + ")"));
  return json;
}

}  // namespace

Ceiling GpuCeiling(const std::string& name, double read_bytes_per_second) {
  return {name, kGpuThreads, Isa::kPortable, read_bytes_per_second, 0};
}

CudaReport ExamineCuda() {
  CudaReport report;
  report.json = "null";
  if (!kernels::CudaKernels::InThisBuild()) {
    report.lines.push_back("no kernels in this build: nvcc was not found when it was configured");
    return report;
  }
  report.lines.push_back(Format(
      "kernels: {} in this program, for compute capability 8.0 and newer, need a driver that "
      "serves CUDA {} (580)",
      FormatBytes(kernels::CudaKernels::ImageBytes()),
      cuda::DriverVersionText(cuda::kOldestDriver)));
  auto driver = cuda::OpenDriver();
  if (!driver.ok()) {
    report.lines.push_back(driver.status().message());
    return report;
  }
  report.lines.push_back(Format("driver: {} serves CUDA {}", (*driver)->path,
                                cuda::DriverVersionText((*driver)->version)));
  int count = 0;
  (*driver)->DeviceGetCount(&count);
  Json devices = Json::array();
  for (int i = 0; i < count; ++i) devices.push_back(ExamineGpu(*driver, i, report));
  const Json json = {{"driver_library", (*driver)->path},
                     {"driver_version", cuda::DriverVersionText((*driver)->version)},
                     {"oldest_driver_version", cuda::DriverVersionText(cuda::kOldestDriver)},
                     {"kernel_image_bytes", kernels::CudaKernels::ImageBytes()},
                     {"devices", std::move(devices)}};
  report.json = json.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
  return report;
}

}  // namespace granule::cli
