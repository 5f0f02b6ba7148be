#include "kv/errors.h"

#include "base/format.h"

namespace granule::kv {
namespace {

std::string MemoryLine(const std::optional<memory::MemoryInfo>& memory) {
  if (!memory) return "memory: query unavailable";
  return Format("{} memory: free={} bytes ({}), total={} bytes ({})", memory->where,
                memory->free_bytes, FormatBytes(memory->free_bytes), memory->total_bytes,
                FormatBytes(memory->total_bytes));
}

}  // namespace

Status CapacityExceededError(const CapacityExceededFacts& f) {
  const std::string model = f.model_context ? Format("{}", *f.model_context) : "unavailable";
  return Error(Code::kCapacityExceeded,
               "KV capacity exceeded: requested context length {}, hard maximum {} (source: {}); "
               "model context length: {}; KV bytes/token: {}; {}. To go on: shorten the prompt or "
               "lower -n/--predict, or raise -c/--ctx-size (GRANULE_CTX_SIZE) where the model's "
               "context allows it.",
               f.required, f.limit, f.source, model, f.bytes_per_token, MemoryLine(f.memory));
}

Status GrowthFailedError(const GrowthFailedFacts& f, const Status& cause) {
  return Error(
      cause.code() == Code::kInternal ? Code::kInternal : Code::kExhausted,
      "KV growth failed: growing from {} to {} tokens: {}; new memory asked for: {} bytes "
      "({}); transient peak is approximately {} bytes ({}): {}; KV bytes/token: {}; {}. The "
      "session is unchanged. To go on: retry with a shorter prompt, set a smaller "
      "-c/--ctx-size (GRANULE_CTX_SIZE), or free memory.",
      f.old_tokens, f.new_tokens, cause.message(), f.new_bytes, FormatBytes(f.new_bytes),
      f.peak_bytes, FormatBytes(f.peak_bytes), f.peak_reason, f.bytes_per_token,
      MemoryLine(f.memory));
}

}  // namespace granule::kv
