#include "kv/layout.h"

#include <algorithm>
#include <charconv>

#include "base/arith.h"
#include "base/check.h"

namespace granule::kv {
namespace {

// Sub-granule spans are packed at cache-line alignment.
constexpr uint64_t kSlabAlignment = 64;

// Shapes and planes of the spans for one layout; offsets of spans come afterwards.
void DescribePerBinding(const Group& group, bool head_major, Layout& layout) {
  for (size_t l = 0; l < group.layers.size(); ++l) {
    const LayerGeometry& layer = group.layers[l];
    const uint64_t head_bytes =
        layer.BindingBytesPerToken() / static_cast<uint64_t>(layer.kv_heads);
    for (const Role role : {Role::kKey, Role::kValue}) {
      Span span;
      span.shape = head_major ? SpanShape{static_cast<uint64_t>(layer.kv_heads), head_bytes}
                              : SpanShape{1, layer.BindingBytesPerToken()};
      Plane plane;
      plane.layer = static_cast<int32_t>(l);
      plane.role = role;
      plane.dtype = layer.dtype;
      plane.span = static_cast<int32_t>(layout.spans.size());
      plane.head_stride = head_major ? layout.capacity * head_bytes : head_bytes;
      layout.planes.push_back(plane);
      layout.spans.push_back(span);
    }
  }
}

void DescribeStripes(const Group& group, size_t layers_per_stripe, Layout& layout) {
  for (size_t first = 0; first < group.layers.size(); first += layers_per_stripe) {
    Span span;
    const size_t end = std::min(first + layers_per_stripe, group.layers.size());
    for (size_t l = first; l < end; ++l) {
      const LayerGeometry& layer = group.layers[l];
      for (const Role role : {Role::kKey, Role::kValue}) {
        Plane plane;
        plane.layer = static_cast<int32_t>(l);
        plane.role = role;
        plane.dtype = layer.dtype;
        plane.span = static_cast<int32_t>(layout.spans.size());
        plane.offset = span.shape.token_bytes;
        plane.head_stride = layer.BindingBytesPerToken() / static_cast<uint64_t>(layer.kv_heads);
        layout.planes.push_back(plane);
        span.shape.token_bytes += layer.BindingBytesPerToken();
      }
    }
    layout.spans.push_back(span);
  }
}

std::optional<uint64_t> SpanBytes(const SpanShape& shape, uint64_t capacity) {
  const auto per_fragment = CheckedMul(capacity, shape.token_bytes);
  return per_fragment ? CheckedMul(*per_fragment, shape.fragments) : std::nullopt;
}

// First the spans of a granule and more, each on a granule; then the small ones in one slab.
bool PlaceSpans(uint64_t granule_bytes, Layout& layout) {
  uint64_t offset = 0;
  for (const bool large : {true, false}) {
    for (Span& span : layout.spans) {
      if ((span.bytes >= granule_bytes) != large) continue;
      const uint64_t alignment = large ? granule_bytes : kSlabAlignment;
      if (!CheckedAdd(offset, alignment)) return false;
      span.offset = RoundUp(offset, alignment);
      const auto end = CheckedAdd(span.offset, span.bytes);
      if (!end) return false;
      offset = *end;
    }
  }
  if (!CheckedAdd(offset, granule_bytes)) return false;
  layout.bytes = RoundUp(offset, granule_bytes);
  return true;
}

// The shortest stretch, over fragments, from its start to the end of the granule where token
// `length` ends.
uint64_t LengthToGranuleEnds(const Layout& layout, uint64_t length, uint64_t granule_bytes) {
  uint64_t held = layout.capacity;
  for (const Span& span : layout.spans) {
    const uint64_t fragment_bytes = layout.capacity * span.shape.token_bytes;
    for (uint64_t f = 0; f < span.shape.fragments; ++f) {
      const uint64_t start = span.offset + f * fragment_bytes;
      const uint64_t backed_end = RoundUp(start + length * span.shape.token_bytes, granule_bytes);
      held = std::min(held, (backed_end - start) / span.shape.token_bytes);
    }
  }
  return held;
}

}  // namespace

Result<LayoutChoice> ParseLayout(const std::string& text) {
  if (text == "auto") return LayoutChoice{LayoutKind::kTokenMajor, 0};
  if (text == "seq-major") return LayoutChoice{LayoutKind::kSeqMajor, 0};
  if (text == "head-major") return LayoutChoice{LayoutKind::kHeadMajor, 0};
  if (text == "token-major") return LayoutChoice{LayoutKind::kTokenMajor, 0};
  constexpr std::string_view kStripe = "stripe:";
  if (text.starts_with(kStripe)) {
    int64_t layers = 0;
    const char* begin = text.data() + kStripe.size();
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(begin, end, layers);
    if (error == std::errc() && stop == end && layers >= 1) {
      return LayoutChoice{LayoutKind::kStripe, layers};
    }
  }
  return Error(Code::kUsage,
               "unknown KV layout '{}': expected auto, head-major, seq-major, stripe:G with G >= 1 "
               "layers, or token-major",
               text);
}

std::string LayoutName(const LayoutChoice& choice) {
  switch (choice.kind) {
    case LayoutKind::kHeadMajor:
      return "head-major";
    case LayoutKind::kSeqMajor:
      return "seq-major";
    case LayoutKind::kStripe:
      return Format("stripe:{}", choice.layers_per_stripe);
    case LayoutKind::kTokenMajor:
      return "token-major";
  }
  return "?";
}

const char* RetentionName(Retention retention) {
  switch (retention) {
    case Retention::kFull:
      return "full";
    case Retention::kWindow:
      return "window";
    case Retention::kCross:
      return "cross";
    case Retention::kShared:
      return "shared";
    case Retention::kState:
      return "state";
  }
  return "?";
}

uint64_t Group::BytesPerToken() const {
  uint64_t bytes = 0;
  for (const LayerGeometry& layer : layers) bytes += 2 * layer.BindingBytesPerToken();
  return bytes;
}

KvView Layout::View(std::byte* base, int32_t layer) const {
  const Plane& key = planes[2 * static_cast<size_t>(layer)];
  const Plane& value = planes[2 * static_cast<size_t>(layer) + 1];
  GRANULE_DCHECK(key.layer == layer && key.role == Role::kKey && value.role == Role::kValue);
  const Span& key_span = spans[static_cast<size_t>(key.span)];
  const Span& value_span = spans[static_cast<size_t>(value.span)];
  KvView view;
  view.k = base + key_span.offset + key.offset;
  view.v = base + value_span.offset + value.offset;
  view.k_token_stride = static_cast<int64_t>(key_span.shape.token_bytes);
  view.k_head_stride = static_cast<int64_t>(key.head_stride);
  view.v_token_stride = static_cast<int64_t>(value_span.shape.token_bytes);
  view.v_head_stride = static_cast<int64_t>(value.head_stride);
  view.dtype = key.dtype;
  return view;
}

Result<Layout> MakeLayout(const LayoutChoice& choice, const Group& group, uint64_t capacity,
                          uint64_t granule_bytes) {
  GRANULE_CHECK(granule_bytes > 0 && !group.layers.empty());
  Layout layout;
  layout.choice = choice;
  layout.capacity = capacity;
  layout.bytes_per_token = group.BytesPerToken();
  switch (choice.kind) {
    case LayoutKind::kHeadMajor:
    case LayoutKind::kSeqMajor:
      DescribePerBinding(group, choice.kind == LayoutKind::kHeadMajor, layout);
      break;
    case LayoutKind::kStripe:
      GRANULE_CHECK(choice.layers_per_stripe >= 1);
      DescribeStripes(group, static_cast<size_t>(choice.layers_per_stripe), layout);
      break;
    case LayoutKind::kTokenMajor:
      DescribeStripes(group, group.layers.size(), layout);
      break;
  }
  bool fits = true;
  for (Span& span : layout.spans) {
    const auto bytes = SpanBytes(span.shape, capacity);
    fits = fits && bytes.has_value();
    span.bytes = bytes.value_or(0);
  }
  if (!fits || !PlaceSpans(granule_bytes, layout)) {
    return Error(Code::kExhausted,
                 "a KV reservation of {} tokens x {} bytes does not fit a 64-bit address space: "
                 "lower it with --ctx-size",
                 capacity, layout.bytes_per_token);
  }
  return layout;
}

std::optional<std::vector<ByteRange>> LiveRanges(const SpanShape& shape, uint64_t batch,
                                                 uint64_t capacity, uint64_t first, uint64_t end) {
  std::vector<ByteRange> ranges;
  end = std::min(end, capacity);
  if (batch == 0 || first >= end) return ranges;
  const auto fragments = CheckedMul(batch, shape.fragments);
  const auto fragment_bytes = CheckedMul(capacity, shape.token_bytes);
  // The last byte of the last fragment is the largest offset: if it fits, everything does.
  if (!fragments || !fragment_bytes || !CheckedMul(*fragments, *fragment_bytes))
    return std::nullopt;
  ranges.reserve(*fragments);
  for (uint64_t i = 0; i < *fragments; ++i) {
    const uint64_t start = i * *fragment_bytes;
    ranges.push_back({start + first * shape.token_bytes, start + end * shape.token_bytes});
  }
  return ranges;
}

std::vector<ByteRange> LiveRanges(const Layout& layout, uint64_t first, uint64_t end) {
  std::vector<ByteRange> all;
  for (const Span& span : layout.spans) {
    const auto ranges = LiveRanges(span.shape, /*batch=*/1, layout.capacity, first, end);
    GRANULE_CHECK(ranges.has_value());
    for (const ByteRange& range : *ranges) {
      all.push_back({span.offset + range.begin, span.offset + range.end});
    }
  }
  return all;
}

uint64_t TouchedGranules(const std::vector<ByteRange>& ranges, uint64_t granule_bytes) {
  GRANULE_CHECK(granule_bytes > 0);
  std::vector<ByteRange> windows;  // in granules, [begin, end)
  for (const ByteRange& range : ranges) {
    if (range.begin >= range.end) continue;
    windows.push_back({range.begin / granule_bytes, (range.end - 1) / granule_bytes + 1});
  }
  std::sort(windows.begin(), windows.end(),
            [](const ByteRange& a, const ByteRange& b) { return a.begin < b.begin; });
  uint64_t count = 0;
  uint64_t covered = 0;  // granules below it are counted
  for (const ByteRange& window : windows) {
    const uint64_t begin = std::max(window.begin, covered);
    if (window.end <= begin) continue;
    count += window.end - begin;
    covered = window.end;
  }
  return count;
}

uint64_t SpanwiseGranules(const Layout& layout, uint64_t end, uint64_t granule_bytes) {
  uint64_t count = 0;
  for (const Span& span : layout.spans) {
    auto ranges = LiveRanges(span.shape, /*batch=*/1, layout.capacity, 0, end);
    GRANULE_CHECK(ranges.has_value());
    for (ByteRange& range : *ranges) {
      range.begin += span.offset;
      range.end += span.offset;
    }
    count += TouchedGranules(*ranges, granule_bytes);
  }
  return count;
}

uint64_t LengthHeldByGranules(const Layout& layout, uint64_t length, uint64_t granule_bytes) {
  length = std::min(length, layout.capacity);
  if (length == 0) return 0;
  const auto touched = [&](uint64_t n) {
    return TouchedGranules(LiveRanges(layout, 0, n), granule_bytes);
  };
  const uint64_t paid = touched(length);
  uint64_t held = length;
  // A fragment holds what reaches the end of its last granule. Where fragments share granules (the
  // slab), a neighbour may have paid for the next one already, so try again from one token more.
  while (true) {
    held = LengthToGranuleEnds(layout, held, granule_bytes);
    if (held >= layout.capacity || touched(held + 1) != paid) return held;
    ++held;
  }
}

}  // namespace granule::kv
