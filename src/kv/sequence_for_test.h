// What the tests of sequences share: memory with faults, a group of layers, and marks in every
// element of a token.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>

#include "kv/parking.h"
#include "kv/sequence.h"
#include "memory/fault/fault_vmm.h"
#include "memory/host/host_vmm.h"

namespace granule::kv {

constexpr size_t kGranule = 4096;

// Plain buffers, with a call that may fail and a count of what is out.
class FaultBuffers : public BufferAllocator {
 public:
  explicit FaultBuffers(BufferAllocator& inner = PlainBuffers()) : inner_(inner) {}
  uint64_t fail_at = 0;
  uint64_t calls = 0;
  int64_t live = 0;
  Result<std::byte*> Allocate(uint64_t bytes) override {
    if (++calls == fail_at) return Error(Code::kExhausted, "injected: no buffer");
    auto buffer = inner_.Allocate(bytes);
    live += buffer.ok();
    return buffer;
  }
  void Free(std::byte* buffer) override {
    --live;
    inner_.Free(buffer);
  }

 private:
  BufferAllocator& inner_;
};

struct Fixture {
  explicit Fixture(uint64_t retained_bytes = 0, size_t max_handle_bytes = 0) {
    memory::HostVmmOptions options;
    options.granule_bytes = kGranule;
    options.max_handle_bytes = max_handle_bytes;
    auto opened = memory::HostVmm::Open(options);
    EXPECT_TRUE(opened.ok());
    inner = std::move(*opened);
    buffers = std::make_unique<FaultBuffers>();
    Stack(retained_bytes);
  }
  // Over another virtual memory, with plain buffers of the same device.
  Fixture(std::unique_ptr<memory::Vmm> vmm, BufferAllocator& plain, uint64_t retained_bytes)
      : inner(std::move(vmm)), buffers(std::make_unique<FaultBuffers>(plain)) {
    Stack(retained_bytes);
  }
  Store store() const {
    return {fault.get(), space.get(), pool.get(), table.get(), parking.get(), buffers.get()};
  }

  std::unique_ptr<memory::Vmm> inner;
  std::unique_ptr<memory::FaultVmm> fault;
  std::unique_ptr<memory::AddressSpace> space;
  std::unique_ptr<memory::HandlePool> pool;
  std::unique_ptr<memory::MappingTable> table;
  std::unique_ptr<ParkingLot> parking;
  std::unique_ptr<FaultBuffers> buffers;

 private:
  void Stack(uint64_t retained_bytes) {
    fault = std::make_unique<memory::FaultVmm>(*inner);
    space = std::make_unique<memory::AddressSpace>(*fault);
    pool = std::make_unique<memory::HandlePool>(*fault, retained_bytes);
    table = std::make_unique<memory::MappingTable>(*fault, *pool);
    parking = std::make_unique<ParkingLot>(*space, *table);
  }
};

inline Group TestGroup() {
  Group group;
  group.layers = {{3, 20, DType::kF32}, {1, 80, DType::kF16}};
  return group;
}

inline SequenceOptions Options(const LayoutChoice& layout, CapacityPolicy policy,
                               uint64_t hard_max) {
  SequenceOptions options;
  options.layout = layout;
  options.policy = policy;
  if (hard_max != 0) {
    options.hard_max.tokens = hard_max;
    options.hard_max.source = "--ctx-size";
  }
  return options;
}

const LayoutChoice kLayouts[] = {{LayoutKind::kHeadMajor, 0},
                                 {LayoutKind::kSeqMajor, 0},
                                 {LayoutKind::kStripe, 1},
                                 {LayoutKind::kTokenMajor, 0}};
const CapacityPolicy kPolicies[] = {
    {Rounding::kGranule, 256}, {Rounding::kBucket, 4}, {Rounding::kBucket, 256}};

// Writes a mark into every element of a token, and checks it later: a lost, moved or shared slot
// shows.
inline void Mark(const Sequence& s, const Group& group, uint64_t token, uint8_t mark, bool check) {
  for (int32_t l = 0; l < static_cast<int32_t>(group.layers.size()); ++l) {
    const KvView view = s.View(l);
    const LayerGeometry& g = group.layers[static_cast<size_t>(l)];
    for (int64_t h = 0; h < g.kv_heads; ++h) {
      for (std::byte* p :
           {view.k + static_cast<int64_t>(token) * view.k_token_stride + h * view.k_head_stride,
            view.v + static_cast<int64_t>(token) * view.v_token_stride + h * view.v_head_stride}) {
        const size_t bytes = static_cast<size_t>(g.head_dim * BitsOf(g.dtype) / 8);
        if (!check) {
          std::memset(p, mark, bytes);
        } else {
          for (size_t i = 0; i < bytes; ++i)
            ASSERT_EQ(static_cast<uint8_t>(p[i]), mark) << "token " << token << " layer " << l;
        }
      }
    }
  }
}

}  // namespace granule::kv
