// Where keys and values of a sequence lie inside its reservation: layout as data.
//
// A sequence reserves one range of addresses per KV group. The range holds spans; a span is a
// region that is strided by token:
//   head-major   one span per binding (K or V of one layer), Hk fragments of [capacity, D]
//   seq-major    one span per binding, one fragment of [capacity, Hk*D]
//   stripe:G     one span per G layers, one fragment of [capacity, G layers x (K, V)]
//   token-major  one span for all layers
// A fragment is a contiguous array of `capacity` token records. Tokens [first, end) of a fragment
// are one byte range; so LiveRanges below is the only place that turns tokens into bytes, for the
// code and for the tests.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/kv_view.h"
#include "base/status.h"

namespace granule::kv {

enum class LayoutKind { kHeadMajor, kSeqMajor, kStripe, kTokenMajor };

// What the user asked for. "auto" is resolved before it gets here.
struct LayoutChoice {
  LayoutKind kind = LayoutKind::kTokenMajor;
  int64_t layers_per_stripe = 0;  // of kStripe, >= 1
  friend bool operator==(const LayoutChoice&, const LayoutChoice&) = default;
};

// "head-major", "seq-major", "stripe:G", "token-major"; "auto" is the measured default of the CPU
// (docs/decisions/005-cpu-layout.md).
Result<LayoutChoice> ParseLayout(const std::string& text);
std::string LayoutName(const LayoutChoice& choice);

// How long a group keeps its tokens. Only kFull works so far; the others are refused by name when a
// model needs them.
enum class Retention { kFull, kWindow, kCross, kShared, kState };
const char* RetentionName(Retention retention);

// One layer's KV as the graph states it.
struct LayerGeometry {
  int64_t kv_heads = 0;  // Hk
  int64_t head_dim = 0;  // D
  DType dtype = DType::kF32;

  uint64_t BindingBytesPerToken() const {  // of K alone, or V alone
    return static_cast<uint64_t>(kv_heads) * static_cast<uint64_t>(head_dim) * BitsOf(dtype) / 8;
  }
};

// Layers that keep their tokens equally long and therefore share a reservation.
struct Group {
  Retention retention = Retention::kFull;
  int64_t window = 0;  // of kWindow
  std::vector<LayerGeometry> layers;

  uint64_t BytesPerToken() const;  // K and V of all layers
};

enum class Role { kKey, kValue, kKeyScale, kValueScale };

// One tensor's place: element d of head h of token t lies at
//   span.offset + offset + h * head_stride + t * span.token_bytes + d * sizeof(element).
struct Plane {
  int32_t layer = 0;  // index into Group::layers
  Role role = Role::kKey;
  DType dtype = DType::kF32;
  int32_t span = 0;
  uint64_t offset = 0;       // within the token record
  uint64_t head_stride = 0;  // bytes
  friend bool operator==(const Plane&, const Plane&) = default;
};

struct SpanShape {
  uint64_t fragments = 1;    // Hk in head-major, 1 elsewhere
  uint64_t token_bytes = 0;  // of one fragment's token record
  friend bool operator==(const SpanShape&, const SpanShape&) = default;
};

struct Span {
  SpanShape shape;
  uint64_t offset = 0;  // from the base of the reservation
  uint64_t bytes = 0;   // fragments * capacity * token_bytes
  friend bool operator==(const Span&, const Span&) = default;
};

// A range of bytes relative to the base of a reservation (or of a span, where stated).
struct ByteRange {
  uint64_t begin = 0;
  uint64_t end = 0;
  friend bool operator==(const ByteRange&, const ByteRange&) = default;
};

struct Layout {
  LayoutChoice choice;
  uint64_t capacity = 0;      // tokens that the strides assume
  std::vector<Plane> planes;  // key, value of layer 0, of layer 1, ...
  std::vector<Span> spans;
  uint64_t bytes = 0;  // of the whole reservation, a multiple of the granule
  uint64_t bytes_per_token = 0;

  KvView View(std::byte* base, int32_t layer) const;
  friend bool operator==(const Layout&, const Layout&) = default;
};

// Spans of a granule or more start on a granule; smaller ones share one slab, 64-byte aligned.
// Fails with kExhausted when the addresses would not fit 64 bits.
Result<Layout> MakeLayout(const LayoutChoice& choice, const Group& group, uint64_t capacity,
                          uint64_t granule_bytes);

// Byte ranges, relative to the span, that hold tokens [first, end) of `batch` sequences laid one
// after the other; end is lowered to the capacity. Empty for nothing; nullopt where a product
// overflows (never a wrapped range).
std::optional<std::vector<ByteRange>> LiveRanges(const SpanShape& shape, uint64_t batch,
                                                 uint64_t capacity, uint64_t first, uint64_t end);
// All spans of a layout, relative to the reservation. The layout was made by MakeLayout, so nothing
// overflows.
std::vector<ByteRange> LiveRanges(const Layout& layout, uint64_t first, uint64_t end);

// Distinct granules that the ranges touch. granule_bytes > 0.
uint64_t TouchedGranules(const std::vector<ByteRange>& ranges, uint64_t granule_bytes);

// The number of `committed_bytes`: granules touched by tokens [0, end), summed over spans, so a
// granule under several spans counts for each.
uint64_t SpanwiseGranules(const Layout& layout, uint64_t end, uint64_t granule_bytes);

// The longest length whose ranges lie inside the granules that tokens [0, length) touch: what
// committing for `length` really pays for.
uint64_t LengthHeldByGranules(const Layout& layout, uint64_t length, uint64_t granule_bytes);

}  // namespace granule::kv
