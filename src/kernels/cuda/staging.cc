#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/cuda/cuda_matmul.h"

namespace granule::kernels {
namespace {

constexpr size_t kStagingBytes = size_t{32} << 20;  // of each of the two

}  // namespace

struct Staging::State {
  explicit State(cuda::Device& device_in) : device(device_in) {}
  ~State() {
    // Page-locked memory must not go while a transfer reads it.
    static_cast<void>(device.Synchronize());
    device.MakeCurrent();
    for (cuda::EventHandle event : taken) {
      if (event != nullptr) device.driver().EventDestroy(event);
    }
  }

  cuda::Device& device;
  cuda::Buffer pass_through;
  cuda::PinnedBuffer buffers[2];
  cuda::EventHandle taken[2] = {};  // the last transfer from this buffer is done
  bool used[2] = {};
  int next = 0;
  size_t filled = 0;  // of buffers[next]: small pieces share a buffer
  uint64_t uploaded = 0;
};

Staging::Staging() = default;
Staging::~Staging() = default;

Result<std::unique_ptr<Staging>> Staging::Create(cuda::Device& device) {
  std::unique_ptr<Staging> staging(new Staging);
  staging->state_ = std::make_unique<State>(device);
  State& state = *staging->state_;
  for (int i = 0; i < 2; ++i) {
    auto buffer = cuda::PinnedBuffer::Allocate(device, kStagingBytes, "staging weights");
    if (!buffer.ok()) return buffer.status();
    state.buffers[i] = std::move(*buffer);
    if (Status s =
            device.Check(device.driver().EventCreate(&state.taken[i], cuda::kEventDisableTiming),
                         "making an event");
        !s.ok()) {
      return s;
    }
  }
  return staging;
}

Status Staging::Upload(cuda::DevicePtr to, std::span<const std::byte> from) {
  State& state = *state_;
  const cuda::Driver& driver = state.device.driver();
  if (from_device && !from.empty()) {
    const auto source = reinterpret_cast<cuda::DevicePtr>(from.data());
    if (Status s = state.device.CopyAsync(to, source, from.size()); !s.ok()) return s;
    state.uploaded += from.size();
    if (progress) progress(state.uploaded);
    return {};
  }
  while (!from.empty()) {
    const int i = state.next;
    state.device.MakeCurrent();
    if (state.filled == 0 && state.used[i]) {
      if (Status s =
              state.device.Check(driver.EventSynchronize(state.taken[i]), "waiting for an upload");
          !s.ok()) {
        return s;
      }
    }
    const size_t bytes = std::min(from.size(), kStagingBytes - state.filled);
    std::byte* piece = state.buffers[i].data() + state.filled;
    std::memcpy(piece, from.data(), bytes);
    if (Status s = state.device.UploadAsync(to, piece, bytes); !s.ok()) return s;
    state.filled += bytes;
    if (state.filled == kStagingBytes) {
      if (Status s = state.device.Check(driver.EventRecord(state.taken[i], state.device.stream()),
                                        "marking an upload");
          !s.ok()) {
        return s;
      }
      state.used[i] = true;
      state.next = 1 - i;
      state.filled = 0;
    }
    to += bytes;
    from = from.subspan(bytes);
    state.uploaded += bytes;
    if (progress) progress(state.uploaded);
  }
  return {};
}

Status Staging::Finish() {
  State& state = *state_;
  if (Status s = state.device.Synchronize(); !s.ok()) return s;
  // Nothing reads either buffer any more.
  state.used[0] = state.used[1] = false;
  state.filled = 0;
  return {};
}

Result<cuda::DevicePtr> Staging::PassThrough(size_t bytes) {
  State& state = *state_;
  if (state.pass_through.bytes() < bytes) {
    if (Status s = state.device.Synchronize(); !s.ok()) return s;
    state.pass_through.Reset();
    auto larger = cuda::Buffer::Allocate(state.device, bytes, "rearranging weights");
    if (!larger.ok()) return larger.status();
    state.pass_through = std::move(*larger);
  }
  return state.pass_through.address();
}

}  // namespace granule::kernels
