#include "engine/ort/ort_decoder.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "base/arith.h"

namespace granule::engine {
namespace {

// K or V of one layer, in its slots.
struct Plane {
  std::byte* data = nullptr;
  int64_t token_stride = 0;
  int64_t head_stride = 0;

  static std::array<Plane, 2> Of(const KvView& view) {
    return {Plane{view.k, view.k_token_stride, view.k_head_stride},
            Plane{view.v, view.v_token_stride, view.v_head_stride}};
  }
  std::byte* At(int64_t head, int64_t token) const {
    return data + head * head_stride + token * token_stride;
  }
};

// [Hk, rows, D] without gaps.
struct Dense {
  std::byte* data = nullptr;
  int64_t rows = 0;
  int64_t row_bytes = 0;

  std::byte* At(int64_t head, int64_t row) const { return data + (head * rows + row) * row_bytes; }
};

// `count` rows from one place to another, each with its stride.
void CopyRows(std::byte* to, int64_t to_stride, const std::byte* from, int64_t from_stride,
              int64_t count, int64_t row_bytes) {
  if (to_stride == row_bytes && from_stride == row_bytes) {
    std::memcpy(to, from, static_cast<size_t>(count * row_bytes));
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(to + i * to_stride, from + i * from_stride, static_cast<size_t>(row_bytes));
  }
}

std::string ShapeText(std::span<const int64_t> dims) {
  std::string text = "[";
  for (size_t i = 0; i < dims.size(); ++i) text += Format("{}{}", i == 0 ? "" : ", ", dims[i]);
  return text + "]";
}

}  // namespace

// Binds the numbers_ as [1, count] integers of the type that the graph takes.
Status OrtDecoder::FeedNumbers(const std::string& name, OrtElementType type, int64_t count,
                               Scratch& scratch) {
  const bool narrow = type == OrtElementType::kInt32;
  const size_t bytes = static_cast<size_t>(count) * (narrow ? sizeof(int32_t) : sizeof(int64_t));
  if (Status s = scratch.Reserve(bytes, "the inputs of a step"); !s.ok()) return s;
  std::byte* data = scratch.bytes().data();
  if (narrow) {
    auto* out = reinterpret_cast<int32_t*>(data);
    for (size_t i = 0; i < numbers_.size(); ++i) out[i] = static_cast<int32_t>(numbers_[i]);
  } else {
    std::memcpy(data, numbers_.data(), bytes);
  }
  const int64_t dims[] = {1, count};
  auto tensor = model_.graph->Wrap(data, bytes, dims, type);
  if (!tensor.ok()) return tensor.status();
  inputs_.push_back({name.c_str(), std::move(*tensor)});
  return {};
}

Status OrtDecoder::FeedTokens(int64_t live, std::span<const int64_t> ids) {
  const auto count = static_cast<int64_t>(ids.size());
  numbers_.assign(ids.begin(), ids.end());
  if (Status s = FeedNumbers(model_.input_ids, model_.input_ids_type, count, ids_); !s.ok()) {
    return s;
  }
  if (!model_.attention_mask.empty()) {
    // Exactly the live and the new tokens: operators take the total length from it.
    const int64_t width = std::max(model_.fixed_mask, live + count);
    numbers_.assign(static_cast<size_t>(width), 0);
    std::fill_n(numbers_.begin(), live + count, 1);
    if (Status s = FeedNumbers(model_.attention_mask, model_.attention_mask_type, width, mask_);
        !s.ok()) {
      return s;
    }
  }
  if (model_.position_ids.empty()) return {};
  numbers_.resize(ids.size());
  std::iota(numbers_.begin(), numbers_.end(), live);
  return FeedNumbers(model_.position_ids, model_.position_ids_type, count, positions_);
}

bool OrtDecoder::CanShare(std::span<const KvView> views) const {
  if (model_.kv_mode != OrtKvMode::kShared) return false;
  if (model_.fixed_capacity < 0) return true;
  // A smaller --ctx-size gives other strides than a graph with a fixed capacity asks for.
  const OrtKvPort& first = model_.layers.front();
  return views.front().k_head_stride ==
         model_.fixed_capacity * static_cast<int64_t>(first.RowBytes());
}

Status OrtDecoder::BindShared(std::span<const KvView> views) {
  for (size_t l = 0; l < model_.layers.size(); ++l) {
    const OrtKvPort& port = model_.layers[l];
    const auto row_bytes = static_cast<int64_t>(port.RowBytes());
    const std::array<const std::string*, 2> past = {&port.past_key, &port.past_value};
    const std::array<const std::string*, 2> present = {&port.present_key, &port.present_value};
    const std::array<Plane, 2> planes = Plane::Of(views[l]);
    for (size_t i = 0; i < 2; ++i) {
      const Plane& plane = planes[i];
      GRANULE_CHECK(plane.token_stride == row_bytes && plane.head_stride % row_bytes == 0);
      const int64_t dims[] = {1, port.geometry.kv_heads, plane.head_stride / row_bytes,
                              port.geometry.head_dim};
      const int64_t bytes = port.geometry.kv_heads * plane.head_stride;
      auto tensor = model_.graph->Wrap(plane.data, static_cast<size_t>(bytes), dims,
                                       OrtTypeOf(port.geometry.dtype));
      if (!tensor.ok()) return tensor.status();
      aliases_.push_back({outputs_.size(), inputs_.size()});
      inputs_.push_back({past[i]->c_str(), std::move(*tensor)});
      outputs_.push_back({present[i]->c_str(), {}});
    }
  }
  return {};
}

Status OrtDecoder::BindCopies(std::span<const KvView> views, int64_t live) {
  const int64_t rows = model_.fixed_capacity < 0 ? live : model_.fixed_capacity;
  uint64_t total = 0;
  for (const OrtKvPort& port : model_.layers) {
    const uint64_t both = 2 * port.geometry.BindingBytesPerToken();
    total = SaturatingAdd(total, SaturatingMul(both, static_cast<uint64_t>(rows)));
  }
  // Never empty: a tensor of no elements still wants an address.
  if (Status s = past_.Reserve(std::max<uint64_t>(total, 1), "a copy of the KV"); !s.ok()) return s;
  std::byte* next = past_.bytes().data();
  for (size_t l = 0; l < model_.layers.size(); ++l) {
    const OrtKvPort& port = model_.layers[l];
    const auto row_bytes = static_cast<int64_t>(port.RowBytes());
    const std::array<const std::string*, 2> past = {&port.past_key, &port.past_value};
    const std::array<const std::string*, 2> present = {&port.present_key, &port.present_value};
    const std::array<Plane, 2> planes = Plane::Of(views[l]);
    for (size_t i = 0; i < 2; ++i) {
      const Dense dense{next, rows, row_bytes};
      for (int64_t h = 0; h < port.geometry.kv_heads; ++h) {
        CopyRows(dense.At(h, 0), row_bytes, planes[i].At(h, 0), planes[i].token_stride, live,
                 row_bytes);
        // Rows that the graph masks must still be numbers.
        std::memset(dense.At(h, live), 0, static_cast<size_t>((rows - live) * row_bytes));
      }
      const int64_t dims[] = {1, port.geometry.kv_heads, rows, port.geometry.head_dim};
      const int64_t bytes = port.geometry.kv_heads * rows * row_bytes;
      auto tensor = model_.graph->Wrap(next, static_cast<size_t>(bytes), dims,
                                       OrtTypeOf(port.geometry.dtype));
      if (!tensor.ok()) return tensor.status();
      inputs_.push_back({past[i]->c_str(), std::move(*tensor)});
      outputs_.push_back({present[i]->c_str(), {}});
      next += bytes;
    }
  }
  return {};
}

// The new rows of present: at `live` where it holds the past too, at 0 where it holds them alone.
Status OrtDecoder::CopyBack(std::span<const KvView> views, int64_t live, int64_t count) const {
  struct Source {
    const std::byte* data;
    int64_t rows;
    int64_t first;
  };
  std::vector<Source> sources;
  for (size_t i = 1; i < outputs_.size(); ++i) {
    const OrtKvPort& port = model_.layers[(i - 1) / 2];
    auto contents = model_.graph->Read(outputs_[i].tensor);
    if (!contents.ok()) return contents.status();
    const std::vector<int64_t>& dims = contents->dims;
    const int64_t rows = dims.size() == 4 ? dims[2] : -1;
    const bool whole = rows >= live + count;
    if (model_.fixed_capacity >= 0 && rows > model_.fixed_capacity) {
      // Concat of all slots and the new tokens: their slots would be behind the empty ones, and the
      // mask of such a graph is laid out by a convention of its exporter.
      return InvalidInput(
          "KV output \"{}\" has {} slots, but its input is fixed to {}: the graph appends to a "
          "full "
          "buffer, which is not supported; write new tokens to their slots (GroupQueryAttention, "
          "ScatterND) or leave the length of the past open",
          outputs_[i].name, rows, model_.fixed_capacity);
    }
    if (dims.size() != 4 || dims[0] != 1 || dims[1] != port.geometry.kv_heads ||
        dims[3] != port.geometry.head_dim || (!whole && rows != count) ||
        contents->type != OrtTypeOf(port.geometry.dtype)) {
      return InvalidInput(
          "KV output \"{}\" has the shape {}; expected [1, {}, {} or {}, {}] of {} (a step of {} "
          "tokens after {})",
          outputs_[i].name, ShapeText(dims), port.geometry.kv_heads, live + count, count,
          port.geometry.head_dim, DTypeName(port.geometry.dtype), count, live);
    }
    sources.push_back(
        {static_cast<const std::byte*>(contents->data), rows, whole ? live : int64_t{0}});
  }
  // Only after all of them were found good.
  for (size_t i = 0; i < sources.size(); ++i) {
    const OrtKvPort& port = model_.layers[i / 2];
    const auto row_bytes = static_cast<int64_t>(port.RowBytes());
    const Plane plane = Plane::Of(views[i / 2])[i % 2];
    for (int64_t h = 0; h < port.geometry.kv_heads; ++h) {
      const int64_t row = h * sources[i].rows + sources[i].first;
      CopyRows(plane.At(h, live), plane.token_stride, sources[i].data + row * row_bytes, row_bytes,
               count, row_bytes);
    }
  }
  return {};
}

Result<OrtDecoder::Logits> OrtDecoder::ReadLogits(int64_t count) const {
  auto contents = model_.graph->Read(outputs_[0].tensor);
  if (!contents.ok()) return contents.status();
  const std::vector<int64_t>& dims = contents->dims;
  const int64_t rows = dims.size() == 3 ? dims[1] : 1;  // [1, rows, V] or [1, V]
  const bool fits = dims.size() >= 2 && dims.size() <= 3 && dims.front() == 1 &&
                    dims.back() == model_.vocab_size && (rows == count || rows == 1);
  const bool floating = contents->type == OrtElementType::kFloat ||
                        contents->type == OrtElementType::kFloat16 ||
                        contents->type == OrtElementType::kBFloat16;
  if (!fits || !floating) {
    return InvalidInput(
        "output \"{}\" has the shape {} and element type {}; expected [1, {} or 1, "
        "{}] of float32, float16 or bfloat16",
        model_.logits, ShapeText(dims), static_cast<int>(contents->type), count, model_.vocab_size);
  }
  return Logits{contents->data, contents->type, rows};
}

Result<OrtDecoder::Logits> OrtDecoder::Run(std::span<const KvView> views, int64_t live,
                                           std::span<const int64_t> ids) {
  inputs_.clear();
  outputs_.clear();
  aliases_.clear();
  if (Status s = FeedTokens(live, ids); !s.ok()) return s;
  outputs_.push_back({model_.logits.c_str(), {}});
  const bool shared = CanShare(views);
  if (Status s = shared ? BindShared(views) : BindCopies(views, live); !s.ok()) return s;
  if (Status s = model_.graph->Run(inputs_, outputs_, aliases_); !s.ok()) return s;
  const auto count = static_cast<int64_t>(ids.size());
  auto logits = ReadLogits(count);
  if (!logits.ok() || shared) return logits;
  if (Status s = CopyBack(views, live, count); !s.ok()) return s;
  outputs_.resize(1);  // the library's copies of the KV are not needed any more
  return logits;
}

}  // namespace granule::engine
