#include "engine/ort/shared_kv.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "base/arith.h"
#include "engine/ort/ort_decoder.h"

namespace granule::engine {
namespace {

constexpr int64_t kPromptTokens = 3;
constexpr int64_t kProbeTokens = kPromptTokens + 1;
// A head's slots span at least so many pages, so that most of them hold no live row.
constexpr int64_t kPagesPerHead = 4;

// Anonymous memory without huge pages, so that a touched page is one page.
class ProbeMemory {
 public:
  explicit ProbeMemory(size_t bytes) : bytes_(bytes) {
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) return;
    data_ = static_cast<std::byte*>(data);
    madvise(data_, bytes_, MADV_NOHUGEPAGE);
  }
  ~ProbeMemory() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  ProbeMemory(const ProbeMemory&) = delete;
  ProbeMemory& operator=(const ProbeMemory&) = delete;

  std::byte* data() const { return data_; }
  // One flag per page; empty when the system does not say.
  std::vector<unsigned char> TouchedPages(size_t page) const {
    std::vector<unsigned char> flags(bytes_ / page);
    if (mincore(data_, bytes_, flags.data()) != 0) flags.clear();
    return flags;
  }

 private:
  size_t bytes_ = 0;
  std::byte* data_ = nullptr;
};

// Where the bindings lie in the probe's memory: each starts on a page.
struct Placement {
  struct Binding {
    size_t offset = 0;
    int64_t heads = 0;
    int64_t head_bytes = 0;  // of all slots of one head
    int64_t row_bytes = 0;
  };
  std::vector<Binding> bindings;  // key, value of layer 0, of layer 1, ...
  size_t bytes = 0;
};

Placement Place(const OrtModel& model, int64_t page) {
  Placement placement;
  for (const OrtKvPort& port : model.layers) {
    const auto row = static_cast<int64_t>(port.RowBytes());
    int64_t slots = page / std::gcd(page, row);  // the least that is whole pages
    slots *= CeilDiv(kPagesPerHead * page, slots * row);
    if (model.fixed_capacity >= 0) slots = model.fixed_capacity;
    for (int i = 0; i < 2; ++i) {
      placement.bindings.push_back({placement.bytes, port.geometry.kv_heads, slots * row, row});
      placement.bytes += static_cast<size_t>(RoundUp(port.geometry.kv_heads * slots * row, page));
    }
  }
  return placement;
}

std::vector<KvView> ViewsOf(const OrtModel& model, const Placement& placement, std::byte* data) {
  std::vector<KvView> views;
  for (size_t l = 0; l < model.layers.size(); ++l) {
    const Placement::Binding& key = placement.bindings[2 * l];
    const Placement::Binding& value = placement.bindings[2 * l + 1];
    views.push_back({data + key.offset, data + value.offset, key.row_bytes, key.head_bytes,
                     value.row_bytes, value.head_bytes, model.layers[l].geometry.dtype});
  }
  return views;
}

// Pages that may be touched because they hold a slot of the probe's tokens.
std::vector<bool> PagesWithTokens(const Placement& placement, size_t page) {
  std::vector<bool> pages(placement.bytes / page);
  for (const Placement::Binding& binding : placement.bindings) {
    for (int64_t head = 0; head < binding.heads; ++head) {
      const size_t begin = binding.offset + static_cast<size_t>(head * binding.head_bytes);
      const size_t end = begin + static_cast<size_t>(kProbeTokens * binding.row_bytes);
      for (size_t p = begin / page; p < CeilDiv(end, page); ++p) pages[p] = true;
    }
  }
  return pages;
}

}  // namespace

std::string WhyGraphCannotShareKv(const package::Package& package) {
  const onnx::Graph& graph = package.model.graph;
  std::vector<int> uses(graph.values.size());
  std::vector<const onnx::Node*> user(graph.values.size());
  for (const onnx::Node& node : graph.nodes) {
    for (const onnx::ValueId input : node.inputs) {
      if (input == onnx::kNone) continue;
      ++uses[static_cast<size_t>(input)];
      user[static_cast<size_t>(input)] = &node;
    }
  }
  for (const package::KvPort& port : package.roles.kv) {
    const auto key = static_cast<size_t>(port.past_key);
    const auto value = static_cast<size_t>(port.past_value);
    const onnx::Node* node = user[key];
    const bool attention = uses[key] == 1 && uses[value] == 1 && user[value] == node &&
                           node->op == "GroupQueryAttention" && node->domain == "com.microsoft" &&
                           node->input(3) == port.past_key && node->input(4) == port.past_value &&
                           node->output(1) == port.present_key &&
                           node->output(2) == port.present_value;
    if (!attention) {
      return Format("the KV of layer {} does not only pass through one GroupQueryAttention",
                    port.layer);
    }
    if (node->Int("sliding_window_cache", 0) != 0) {
      return Format("layer {} keeps a sliding window in its KV", port.layer);
    }
  }
  return "";
}

Result<std::string> WhyLibraryCannotShareKv(const OrtModel& model) {
  if (model.fixed_tokens() >= 0 && model.fixed_tokens() < kProbeTokens) {
    return Format("its {} slots are too few to try it", model.fixed_tokens());
  }
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const Placement placement = Place(model, static_cast<int64_t>(page));
  const ProbeMemory memory(placement.bytes);
  if (memory.data() == nullptr) {
    return Error(Code::kExhausted, "no address space for {} bytes of KV to try the model with",
                 placement.bytes);
  }
  const std::vector<KvView> views = ViewsOf(model, placement, memory.data());
  OrtDecoder decoder(model);
  const std::array<int64_t, kProbeTokens> ids{};
  for (int64_t live = 0; live < kProbeTokens;) {
    // A prompt and a decode step; models that take one token at a time, four of these.
    const int64_t count = model.one_row || live > 0 ? 1 : kPromptTokens;
    const auto logits = decoder.Run(views, live, std::span(ids).first(static_cast<size_t>(count)));
    if (!logits.ok()) return logits.status();
    live += count;
  }

  const std::vector<unsigned char> touched = memory.TouchedPages(page);
  if (touched.empty()) return std::string("the system does not tell which pages were touched");
  const std::vector<bool> expected = PagesWithTokens(placement, page);
  size_t outside = 0;
  size_t missing = 0;
  for (size_t p = 0; p < touched.size(); ++p) {
    const bool is_touched = (touched[p] & 1) != 0;
    outside += is_touched && !expected[p];
    missing += expected[p] && !is_touched;
  }
  if (outside > 0) {
    return Format("ONNX Runtime {} touches {} of {} pages that hold no token",
                  model.graph->library().version(), outside, touched.size());
  }
  if (missing > 0) {
    return Format("ONNX Runtime {} left {} pages of the new tokens untouched",
                  model.graph->library().version(), missing);
  }
  return std::string();
}

}  // namespace granule::engine
