// Growth: the one driver that raises the committed length, for every backend and every kind of
// growth.
//
// Stages, in this order; each may fail but the last:
//   build    put memory behind the new length (map and zero; or allocate, zero and copy)
//   mask     the same for an attention mask that the graph reads
//   capture  decide whether a captured graph survives; drop it where it does not
//   publish  plain assignment of lengths and pointers; cannot fail
// After a failure at any stage the old state is live and the same call may be tried again.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "kv/capacity.h"
#include "memory/vmm.h"

namespace granule::kv {

// How the committed length is raised.
enum class GrowthKind {
  kCommit,    // memory is put behind addresses that were reserved: nothing moves
  kRestride,  // the same, but strides follow the bucket (head-major): live tokens move in place
  kRealloc,   // a larger buffer replaces the old one: live tokens are copied
};
const char* GrowthName(GrowthKind kind);  // "commit", "restride", "realloc"
Result<GrowthKind> ParseGrowth(const std::string& text);

struct Lengths {
  uint64_t live = 0;       // tokens whose KV is valid
  uint64_t committed = 0;  // tokens whose slots are backed by policy
  uint64_t capacity = 0;   // tokens that the strides assume
  // live <= committed <= capacity <= hard maximum
};

struct GrowthStep {
  uint64_t required = 0;
  uint64_t old_committed = 0;
  uint64_t new_committed = 0;
  uint64_t live = 0;
};

// What a captured graph depends on: pointer and shape of every binding. Equal before and after ->
// the graph is kept.
using CaptureSignature = std::vector<std::pair<uintptr_t, uint64_t>>;

// What differs between backends. A stage that returns an error has undone its own part.
class GrowthBackend {
 public:
  virtual ~GrowthBackend() = default;

  virtual Lengths lengths() const = 0;
  // The most tokens that the reservation can take; at most the hard maximum where one is known.
  virtual uint64_t Limit() const = 0;
  // The committed length that will be published for `required` (rounding), at least `required`.
  virtual uint64_t Target(uint64_t required) const = 0;
  // Of what Publish would make live where something is staged, of what is live otherwise.
  virtual CaptureSignature Signature() const = 0;

  virtual Status Build(const GrowthStep& step) = 0;
  virtual Status BuildMask(const GrowthStep& step) = 0;
  virtual Status InvalidateCapture(const std::string& reason) = 0;
  virtual void Publish(const GrowthStep& step, bool kept, const std::string& reason) = 0;
  // Undoes what Build and BuildMask staged. A part that cannot be undone poisons the backend by
  // name.
  virtual Status Abandon(const GrowthStep& step) = 0;

  // The two errors, with every operand (errors.h).
  virtual Status CapacityExceeded(uint64_t required) const = 0;
  virtual Status GrowthFailed(const GrowthStep& step, const Status& cause) const = 0;
};

struct GrowthOutcome {
  bool grew = false;
  GrowthStep step;
  bool kept = false;
};

// required > hard_max -> CapacityExceeded, nothing else is called. required <= committed ->
// unchanged.
Result<GrowthOutcome> EnsureCapacity(GrowthBackend& backend, uint64_t hard_max, uint64_t required);

}  // namespace granule::kv
