#include "cli/bench_vmm.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>
#include <vector>

#include "base/cuda_device.h"
#include "base/levers.h"
#include "cli/terminal.h"
#include "memory/address_space.h"
#include "memory/cuda/cuda_vmm.h"
#include "memory/handle_pool.h"
#include "memory/host/host_vmm.h"
#include "memory/mapping_table.h"

namespace granule::cli {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr size_t kBurstGranules = 96;  // K and V of 48 layers
constexpr int kBursts = 30;
constexpr int kZeroings = 30;

struct Samples {
  std::string call;
  std::vector<double> us;
};

// The calls of one device, one handle at a time.
class Subject {
 public:
  virtual ~Subject() = default;
  virtual memory::Vmm& vmm() = 0;
  virtual std::vector<uint64_t> sizes() const = 0;  // of handles
  virtual uint64_t most_bytes() const = 0;          // of memory held at once
  // Every call on `count` handles of this size, each call in turn over all of them.
  virtual Result<std::vector<Samples>> Calls(uint64_t bytes, size_t count) = 0;
  // Work that runs until Rest; KeepBusy is called again and again meanwhile.
  virtual Status KeepBusy() = 0;
  virtual Status Rest() = 0;
  virtual Status Wait() = 0;  // until what was asked for is done

 protected:
  bool busy_ = false;

  // Times `call` once for each i, and stops at the first failure.
  template <class Call>
  Result<Samples> Time(const char* name, size_t count, const Call& call) {
    Samples samples{name, {}};
    samples.us.reserve(count);
    for (size_t i = 0; i < count; ++i) {
      if (busy_) {
        if (Status s = KeepBusy(); !s.ok()) return s;
      }
      const auto start = Clock::now();
      Status status = call(i);
      const std::chrono::duration<double, std::micro> took = Clock::now() - start;
      if (!status.ok()) return status;
      samples.us.push_back(took.count());
    }
    return samples;
  }
};

class HostSubject final : public Subject {
 public:
  static Result<std::unique_ptr<Subject>> Open() {
    auto vmm = memory::HostVmm::Open({.max_handle_bytes = 2 * kMiB});
    if (!vmm.ok()) return vmm.status();
    return std::unique_ptr<Subject>(new HostSubject(std::move(*vmm)));
  }
  ~HostSubject() override { (void)Rest(); }

  memory::Vmm& vmm() override { return *vmm_; }
  std::vector<uint64_t> sizes() const override {
    return {64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 * kMiB, 2 * kMiB};
  }
  uint64_t most_bytes() const override { return 128 * kMiB; }

  Result<std::vector<Samples>> Calls(uint64_t bytes, size_t count) override {
    const auto range = vmm_->Reserve(bytes * count);
    if (!range.ok()) return range.status();
    const auto at = [&](size_t i) { return range->base + i * bytes; };
    std::vector<memory::Handle> handles(count);
    std::vector<Samples> all;
    const auto add = [&](Result<Samples> samples) {
      if (!samples.ok()) return samples.status();
      all.push_back(std::move(*samples));
      return Status();
    };
    Status status = add(Time("create", count, [&](size_t i) {
      const auto handle = vmm_->Create(bytes, at(i));
      if (handle.ok()) handles[i] = *handle;
      return handle.status();
    }));
    if (!status.ok()) return status;
    status = add(Time("map", count, [&](size_t i) {
      return vmm_->Map(at(i), handles[i], memory::Access::kReadWrite);
    }));
    if (!status.ok()) return status;
    status = add(Time("unmap", count, [&](size_t i) { return vmm_->Unmap({at(i), bytes}); }));
    if (!status.ok()) return status;
    status = add(Time("release", count, [&](size_t i) { return vmm_->Release(handles[i]); }));
    if (!status.ok()) return status;
    if (Status s = vmm_->Free(*range); !s.ok()) return s;
    return all;
  }

  // Another thread that copies memory.
  Status KeepBusy() override {
    busy_ = true;
    if (worker_.joinable()) return {};
    stop_ = false;
    worker_ = std::thread([this] {
      std::vector<char> from(32 * kMiB, 1), to(32 * kMiB);
      while (!stop_) std::memcpy(to.data(), from.data(), from.size());
    });
    return {};
  }
  Status Rest() override {
    busy_ = false;
    stop_ = true;
    if (worker_.joinable()) worker_.join();
    return {};
  }
  Status Wait() override { return {}; }

 private:
  explicit HostSubject(std::unique_ptr<memory::HostVmm> vmm) : vmm_(std::move(vmm)) {}

  std::unique_ptr<memory::HostVmm> vmm_;
  std::thread worker_;
  std::atomic<bool> stop_{false};
};

// The driver's own calls: the seam joins map and access, and waits before it takes away.
class CudaSubject final : public Subject {
 public:
  static Result<std::unique_ptr<Subject>> Open(int index) {
    auto driver = cuda::OpenDriver();
    if (!driver.ok()) return driver.status();
    auto device = cuda::Device::Open(std::move(*driver), index);
    if (!device.ok()) return device.status();
    std::unique_ptr<CudaSubject> subject(new CudaSubject(std::move(*device)));
    auto vmm = memory::CudaVmm::Open(*subject->device_, {.max_handle_bytes = 64 * kMiB});
    if (!vmm.ok()) return vmm.status();
    subject->vmm_ = std::move(*vmm);
    for (cuda::Buffer* buffer : {&subject->from_, &subject->to_}) {
      auto made = cuda::Buffer::Allocate(*subject->device_, 64 * kMiB, "the work beside");
      if (!made.ok()) return made.status();
      *buffer = std::move(*made);
    }
    return std::unique_ptr<Subject>(std::move(subject));
  }
  ~CudaSubject() override { (void)device_->Synchronize(); }

  memory::Vmm& vmm() override { return *vmm_; }
  std::vector<uint64_t> sizes() const override {
    std::vector<uint64_t> sizes;
    for (uint64_t size = vmm_->capabilities().granule_bytes; size <= 64 * kMiB; size *= 2)
      sizes.push_back(size);
    return sizes;
  }
  uint64_t most_bytes() const override { return 2048 * kMiB; }

  Result<std::vector<Samples>> Calls(uint64_t bytes, size_t count) override {
    const cuda::Driver& driver = device_->driver();
    const auto range = vmm_->Reserve(bytes * count);
    if (!range.ok()) return range.status();
    device_->MakeCurrent();
    cuda::AllocationProperties properties;
    properties.location.id = device_->facts().index;
    cuda::AccessDescription access;
    access.location = properties.location;
    std::vector<cuda::MemoryHandle> handles(count);
    const auto at = [&](size_t i) { return range->base + i * bytes; };
    const std::pair<const char*, std::function<cuda::DriverResult(size_t)>> calls[] = {
        {"create", [&](size_t i) { return driver.MemCreate(&handles[i], bytes, &properties, 0); }},
        {"map", [&](size_t i) { return driver.MemMap(at(i), bytes, 0, handles[i], 0); }},
        {"set access", [&](size_t i) { return driver.MemSetAccess(at(i), bytes, &access, 1); }},
        {"unmap", [&](size_t i) { return driver.MemUnmap(at(i), bytes); }},
        {"release", [&](size_t i) { return driver.MemRelease(handles[i]); }}};
    std::vector<Samples> all;
    for (const auto& [name, call] : calls) {
      const char* what = name;
      const auto& act = call;
      auto samples = Time(what, count, [&](size_t i) { return device_->Check(act(i), what); });
      if (!samples.ok()) return samples.status();  // what is left goes with the context
      all.push_back(std::move(*samples));
    }
    if (Status s = vmm_->Free(*range); !s.ok()) return s;
    return all;
  }

  // Copies on the stream, never less than a few milliseconds of them ahead.
  Status KeepBusy() override {
    busy_ = true;
    device_->MakeCurrent();
    if (device_->driver().StreamQuery(device_->stream()) == cuda::kNotReady) return {};
    for (int i = 0; i < 128; ++i) {
      Status s = device_->CopyAsync(to_.address(), from_.address(), from_.bytes());
      if (!s.ok()) return s;
    }
    return {};
  }
  Status Rest() override {
    busy_ = false;
    return device_->Synchronize();
  }
  Status Wait() override { return device_->Synchronize(); }

 private:
  explicit CudaSubject(std::unique_ptr<cuda::Device> device) : device_(std::move(device)) {}

  std::unique_ptr<cuda::Device> device_;
  std::unique_ptr<memory::CudaVmm> vmm_;
  cuda::Buffer from_, to_;
};

// A pooled commit of separate granules through the mapping table, as a growth over the bindings of
// a model does it.
Result<std::vector<double>> Bursts(Subject& subject, bool busy) {
  memory::Vmm& vmm = subject.vmm();
  const size_t granule = vmm.capabilities().granule_bytes;
  memory::HandlePool pool(vmm, kBurstGranules * granule);
  memory::MappingTable table(vmm, pool);
  memory::AddressSpace space(vmm);
  if (Status s = pool.Prefill(granule, kBurstGranules); !s.ok()) return s;
  const auto area = space.Carve(2 * kBurstGranules * granule);
  if (!area.ok()) return area.status();
  std::vector<memory::AddressRange> ranges(kBurstGranules);
  for (size_t i = 0; i < ranges.size(); ++i) ranges[i] = {area->base + 2 * i * granule, granule};
  std::vector<double> us;
  for (int i = 0; i < kBursts; ++i) {
    if (busy) {
      if (Status s = subject.KeepBusy(); !s.ok()) return s;
    }
    const auto start = Clock::now();
    const auto committed = table.Commit(ranges);
    const std::chrono::duration<double, std::micro> took = Clock::now() - start;
    if (!committed.ok()) return committed.status();
    us.push_back(took.count());
    if (Status s = table.Decommit(*area); !s.ok()) return s;
  }
  space.Return(*area);
  return us;
}

// From the call until the bytes are zero.
Result<std::vector<double>> Zeroings(Subject& subject, uint64_t* bytes) {
  memory::Vmm& vmm = subject.vmm();
  *bytes = 64 * kMiB;
  memory::HandlePool pool(vmm, 0);
  memory::MappingTable table(vmm, pool);
  memory::AddressSpace space(vmm);
  const auto area = space.Carve(*bytes);
  if (!area.ok()) return area.status();
  const auto committed = table.Commit(std::vector<memory::AddressRange>{*area});
  if (!committed.ok()) return committed.status();
  std::vector<double> us;
  for (int i = 0; i < kZeroings; ++i) {
    const auto start = Clock::now();
    Status status = vmm.Zero(*area);
    if (status.ok()) status = subject.Wait();
    const std::chrono::duration<double, std::micro> took = Clock::now() - start;
    if (!status.ok()) return status;
    if (i > 0) us.push_back(took.count());  // the first one touches new pages
  }
  if (Status s = table.Decommit(*area); !s.ok()) return s;
  space.Return(*area);
  return us;
}

double Round(double us) { return std::round(us * 100) / 100; }

Json Row(const std::string& call, uint64_t bytes, bool busy, std::vector<double> us) {
  std::sort(us.begin(), us.end());
  return {{"call", call},
          {"bytes", bytes},
          {"beside", busy ? "work" : "nothing"},
          {"count", us.size()},
          {"median_us", Round(us[us.size() / 2])},
          {"p99_us", Round(us[(us.size() - 1) * 99 / 100])},
          {"max_us", Round(us.back())}};
}

Result<Json> Measure(Subject& subject) {
  Json rows = Json::array();
  Progress progress("bench vmm");
  const auto sizes = subject.sizes();
  uint64_t done = 0;
  for (const bool busy : {false, true}) {
    for (const uint64_t bytes : sizes) {
      if (InterruptFlag().load()) return Error(Code::kInterrupted, "interrupted");
      progress.Update(done++, 2 * sizes.size() + 1, FormatBytes(bytes));
      const size_t count = std::clamp<uint64_t>(subject.most_bytes() / bytes, 16, 512);
      // Once to warm up; what counts is the second pass.
      auto calls = subject.Calls(bytes, count);
      if (!calls.ok()) return calls.status();
      if (busy) {
        if (Status s = subject.KeepBusy(); !s.ok()) return s;
      }
      calls = subject.Calls(bytes, count);
      if (!calls.ok()) return calls.status();
      if (Status s = subject.Rest(); !s.ok()) return s;
      for (Samples& samples : *calls)
        rows.push_back(Row(samples.call, bytes, busy, std::move(samples.us)));
    }
    auto bursts = Bursts(subject, busy);
    if (!bursts.ok()) return bursts.status();
    if (Status s = subject.Rest(); !s.ok()) return s;
    rows.push_back(Row(Format("commit {} pooled", kBurstGranules),
                       kBurstGranules * subject.vmm().capabilities().granule_bytes, busy,
                       std::move(*bursts)));
  }
  uint64_t bytes = 0;
  auto zeroings = Zeroings(subject, &bytes);
  if (!zeroings.ok()) return zeroings.status();
  rows.push_back(Row("zero", bytes, false, std::move(*zeroings)));
  return rows;
}

std::string Table(const Json& rows, bool markdown) {
  std::vector<std::vector<std::string>> lines = {
      {"call", "bytes", "beside", "count", "median us", "p99 us", "max us"}};
  for (const Json& row : rows) {
    std::vector<std::string>& line = lines.emplace_back();
    line.push_back(row["call"].get<std::string>());
    line.push_back(FormatBytes(row["bytes"].get<uint64_t>()));
    line.push_back(row["beside"].get<std::string>());
    line.push_back(row["count"].dump());
    for (const char* key : {"median_us", "p99_us", "max_us"})
      line.push_back(Format("{:.1f}", row[key].get<double>()));
  }
  std::vector<size_t> widths(lines[0].size(), 0);
  for (const auto& line : lines) {
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string out;
  for (size_t l = 0; l < lines.size(); ++l) {
    for (size_t i = 0; i < lines[l].size(); ++i) {
      const std::string& cell = lines[l][i];
      const std::string pad(widths[i] - cell.size(), ' ');
      out += markdown ? "| " : i == 0 ? "" : "  ";
      out += i < 3 ? cell + pad : pad + cell;
      out += markdown ? " " : "";
    }
    out += markdown ? "|\n" : "\n";
    if (markdown && l == 0) {
      for (size_t i = 0; i < widths.size(); ++i) out += i < 3 ? "|---" : "|---:";
      out += "|\n";
    }
  }
  return out;
}

}  // namespace

Result<int> BenchVmm(const Arguments& arguments) {
  constexpr LeverId kDevice[] = {LeverId::kDevice};
  const auto levers = ReadLevers(kDevice, arguments.flags, ProcessEnvironment);
  if (!levers.ok()) return levers.status();
  const auto index = levers->CudaIndex();
  auto subject = index ? CudaSubject::Open(*index) : HostSubject::Open();
  if (!subject.ok()) return subject.status();
  auto rows = Measure(**subject);
  if (!rows.ok()) return rows.status();
  std::string out;
  if (arguments.Has("--json")) {
    out = Json{{"device", levers->device.value},
               {"granule_bytes", (*subject)->vmm().capabilities().granule_bytes},
               {"rows", *rows}}
              .dump(1) +
          "\n";
  } else {
    out = Table(*rows, arguments.Has("--markdown"));
  }
  if (Status s = WriteStdout(out); !s.ok()) return s;
  return 0;
}

}  // namespace granule::cli
