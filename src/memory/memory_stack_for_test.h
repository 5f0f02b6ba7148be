// The layer's parts on top of each other, for tests: real host memory behind a Vmm that fails on
// demand.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "memory/address_space.h"
#include "memory/fault/fault_vmm.h"
#include "memory/handle_pool.h"
#include "memory/host/host_vmm.h"
#include "memory/mapping_table.h"

namespace granule::memory {

struct MemoryStack {
  explicit MemoryStack(const HostVmmOptions& options = {}, uint64_t retained_bytes = 0)
      : host(*HostVmm::Open(options)),
        vmm(*host),
        pool(vmm, retained_bytes),
        table(vmm, pool),
        space(vmm),
        granule(vmm.capabilities().granule_bytes) {}

  // Everything that must hold at any moment, checked against the system's own count.
  void ExpectSound() const {
    EXPECT_TRUE(table.IsValid());
    EXPECT_TRUE(pool.IsValid());
    EXPECT_TRUE(space.IsValid());
    const HandleCounters c = pool.counters();
    EXPECT_EQ(c.live_bytes, table.unique_bytes());
    EXPECT_EQ(*vmm.ResidentBytes(), table.unique_bytes() + c.pooled_bytes + c.quarantined_bytes);
    EXPECT_EQ(table.shared_bytes(), table.mapped_bytes() - table.unique_bytes());
  }

  std::unique_ptr<HostVmm> host;
  FaultVmm vmm;
  HandlePool pool;
  MappingTable table;
  AddressSpace space;
  const size_t granule;
};

inline char* Bytes(Address address) { return reinterpret_cast<char*>(address); }

}  // namespace granule::memory
