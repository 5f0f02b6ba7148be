#include "kernels/cuda/cublas_lt.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

namespace granule::kernels {
namespace {

// cuBLASLt wants to know the alignment of every operand, up to 256 bytes.
uint32_t AlignmentOf(const void* address, int64_t row_bytes) {
  const uint64_t bits =
      reinterpret_cast<uint64_t>(address) | static_cast<uint64_t>(row_bytes) | 256;
  return static_cast<uint32_t>(bits & (~bits + 1));
}

Status Check(const lt::Entries& entries, lt::Code code, const char* what) {
  if (code == 0) return {};
  return Error(Code::kInternal, "cuBLASLt: {}: {} ({})", what, entries.GetStatusString(code), code);
}

std::vector<std::string> Names() {
  std::vector<std::string> names = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"};
  // Toolkits that the linker's cache does not know.
  if (const char* home = std::getenv("CUDA_HOME"); home != nullptr && *home != '\0')
    names.push_back(std::string(home) + "/lib64/libcublasLt.so");
  names.push_back("/usr/local/cuda/lib64/libcublasLt.so");
  return names;
}

}  // namespace

CublasLt::Api::Plan::~Plan() {
  if (descriptor != nullptr) entries.DescriptorDestroy(descriptor);
  for (lt::MatrixLayout layout : {w, x, y}) {
    if (layout != nullptr) entries.LayoutDestroy(layout);
  }
}

namespace {

// Row-major y[m, n] is column-major [n, m]: y^T = w * x^T. Both operands lie with k fastest, so in
// column-major terms w is [k, n] and transposed, x is [k, m] and not.
Status Prepare(const CublasLt::Api::Key& key, const CublasLt::Api& api, CublasLt::Api::Plan& plan) {
  const lt::Entries& e = api.entries;
  const int type = key.bf16 ? lt::kTypeBF16 : lt::kTypeF16;
  const auto n = static_cast<uint64_t>(key.n);
  const auto m = static_cast<uint64_t>(key.m);
  const auto k = static_cast<uint64_t>(key.k);
  Status s = Check(e, e.DescriptorCreate(&plan.descriptor, lt::kComputeF32, lt::kTypeF32),
                   "describing a product");
  if (!s.ok()) return s;
  const int transposed = lt::kTransposed;
  s = Check(
      e,
      e.DescriptorSet(plan.descriptor, lt::kDescriptorTransposeA, &transposed, sizeof transposed),
      "describing a product");
  if (!s.ok()) return s;
  s = Check(e, e.LayoutCreate(&plan.w, type, k, n, key.ldw), "describing the weights");
  if (!s.ok()) return s;
  s = Check(e, e.LayoutCreate(&plan.x, type, k, m, key.ldx), "describing the left side");
  if (!s.ok()) return s;
  s = Check(e, e.LayoutCreate(&plan.y, lt::kTypeF32, n, m, key.ldy), "describing the result");
  if (!s.ok()) return s;

  lt::Preference preference = nullptr;
  s = Check(e, e.PreferenceCreate(&preference), "preparing the choice of an algorithm");
  if (!s.ok()) return s;
  const std::pair<int, uint32_t> alignments[] = {{lt::kPreferAlignmentA, key.w_alignment},
                                                 {lt::kPreferAlignmentB, key.x_alignment},
                                                 {lt::kPreferAlignmentC, key.y_alignment},
                                                 {lt::kPreferAlignmentD, key.y_alignment}};
  const size_t workspace = kLtWorkspaceBytes;
  lt::Code code =
      e.PreferenceSet(preference, lt::kPreferWorkspaceBytes, &workspace, sizeof workspace);
  for (const auto& [attribute, bytes] : alignments) {
    if (code == 0) code = e.PreferenceSet(preference, attribute, &bytes, sizeof bytes);
  }
  lt::Candidate candidate = {};
  int found = 0;
  if (code == 0) {
    code = e.Heuristic(api.handle, plan.descriptor, plan.w, plan.x, plan.y, plan.y, preference, 1,
                       &candidate, &found);
  }
  e.PreferenceDestroy(preference);
  if (code == 0 && found > 0) code = candidate.code;
  if (code != 0 || found == 0) {
    return Error(Code::kInternal, "cuBLASLt has no algorithm for [{}, {}] x [{}, {}] ({}): {}",
                 key.m, key.k, key.n, key.k, key.bf16 ? "bf16" : "fp16",
                 code == 0 ? "none was found" : e.GetStatusString(code));
  }
  plan.algorithm = candidate.algorithm;
  return {};
}

}  // namespace

CublasLt::CublasLt() = default;
CublasLt::~CublasLt() = default;
const std::string& CublasLt::path() const { return api_->path; }
int64_t CublasLt::version() const { return static_cast<int64_t>(api_->entries.GetVersion()); }

CublasLt::Api::~Api() {
  device.MakeCurrent();
  plans.clear();
  if (handle != nullptr) entries.Destroy(handle);
}

Result<std::unique_ptr<CublasLt>> CublasLt::Open(cuda::Device& device) {
  auto api = std::make_unique<Api>(device);
  std::string tried;
  void* library = nullptr;
  for (const std::string& name : Names()) {
    // Never closed: it registers its kernels with the driver for good.
    library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) {
      api->path = name;
      break;
    }
    tried += Format("{}{}", tried.empty() ? "" : "; ", dlerror());
  }
  if (library == nullptr) {
    return Error(Code::kUnavailable,
                 "cuBLASLt cannot be opened ({}). Prompts then run on granule's own kernels; "
                 "install the CUDA runtime libraries, or add their folder to LD_LIBRARY_PATH",
                 tried);
  }
  std::string missing;
#define GRANULE_CUBLASLT_RESOLVE(name, symbol, result, parameters)                            \
  api->entries.name = reinterpret_cast<decltype(api->entries.name)>(dlsym(library, #symbol)); \
  if (api->entries.name == nullptr) missing += missing.empty() ? #symbol : ", " #symbol;
  {
    using namespace lt;  // NOLINT: the entries' types
    GRANULE_CUBLASLT_ENTRIES(GRANULE_CUBLASLT_RESOLVE)
  }
#undef GRANULE_CUBLASLT_RESOLVE
  if (!missing.empty()) {
    return Error(Code::kUnavailable, "{} is no cuBLASLt that granule can use: it lacks {}",
                 api->path, missing);
  }
  device.MakeCurrent();
  if (const lt::Code code = api->entries.Create(&api->handle); code != 0) {
    api->handle = nullptr;
    return Error(Code::kUnavailable, "{} does not start on {}: {}", api->path, device.where(),
                 api->entries.GetStatusString(code));
  }
  std::unique_ptr<CublasLt> blas(new CublasLt);
  blas->api_ = std::move(api);
  return blas;
}

Status CublasLt::Api::Multiply(const LtProduct& p, void* workspace) const {
  const Key key{p.bf16,
                p.m,
                p.n,
                p.k,
                p.ldx,
                p.ldw,
                p.ldy,
                AlignmentOf(p.x, p.ldx * 2),
                AlignmentOf(p.w, p.ldw * 2),
                AlignmentOf(p.y, p.ldy * 4)};
  device.MakeCurrent();
  std::unique_ptr<Plan>& plan = plans[key];
  if (plan == nullptr) {
    auto made = std::make_unique<Plan>(entries);
    if (Status s = Prepare(key, *this, *made); !s.ok()) return s;
    plan = std::move(made);
  }
  const float one = 1.0f;
  const float zero = 0.0f;
  return Check(entries,
               entries.Matmul(handle, plan->descriptor, &one, p.w, plan->w, p.x, plan->x, &zero,
                              p.y, plan->y, p.y, plan->y, &plan->algorithm, workspace,
                              kLtWorkspaceBytes, device.stream()),
               "a product");
}

}  // namespace granule::kernels
