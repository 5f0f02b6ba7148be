// One request: prompt in, tokens out.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/sample_params.h"
#include "base/status.h"
#include "engine/engine.h"

namespace granule::generate {

using engine::TokenId;

struct Request {
  std::vector<TokenId> prompt;  // >= 1 token
  int64_t max_new_tokens = -1;  // -1 = to the hard maximum, 0 = prefill only
  bool ignore_eos = false;
  std::vector<TokenId> eos_ids;
  SampleParams sampling;
  int64_t prefill_chunk = 512;  // rows per step while reading the prompt (-ub)
  const std::atomic<bool>* cancel =
      nullptr;  // set from a signal handler or another thread; read between steps
  // Whether Outcome::logits_hash is wanted. Without it, and without on_logits, a device that can
  // picks greedy tokens itself and the logits stay there.
  bool hash_logits = true;
  // Called with each new token in order, before the next step. May be empty.
  std::function<void(TokenId)> on_token;
  // Called with every logits row that is sampled from, before processors, in order. May be empty.
  std::function<void(std::span<const float>)> on_logits;
  // Called with prompt tokens done and total after each prefill step. May be empty.
  std::function<void(int64_t, int64_t)> on_prefill;
};

enum class FinishReason { kStop, kLength, kCancelled };
const char* FinishReasonName(FinishReason reason);  // "stop", "length", "cancelled"

struct Timings {
  double ttft_ms =
      0;  // from the accepted prompt to the first id (prefill only: to the end of the prefill)
  double prefill_ms = 0;
  double decode_ms = 0;  // all tokens after the first
  int64_t prompt_tokens = 0;
  int64_t decode_steps = 0;
  // Live KV bytes read by the decode steps together, for GB/s.
  uint64_t decode_kv_bytes = 0;
  double PromptPerSecond() const {
    return prefill_ms > 0 ? 1e3 * static_cast<double>(prompt_tokens) / prefill_ms : 0;
  }
  double PredictedPerSecond() const {
    return decode_ms > 0 ? 1e3 * static_cast<double>(decode_steps) / decode_ms : 0;
  }
};

struct Outcome {
  std::vector<TokenId> ids;
  FinishReason finish_reason = FinishReason::kLength;
  uint64_t logits_hash =
      0;  // XXH64 over the little-endian fp32 rows that were sampled from, in order; 0 unless asked
  Timings timings;
};

// Appends the prompt to the sequence and generates. An end token that stops is not among ids. When
// the hard maximum ends it, prompt + ids
// == hard maximum and the reason is kLength.
//   kCapacityExceeded  the prompt does not fit; kExhausted  the system refused memory in mid-way
//   (ids so far were reported by on_token; the sequence is usable)
Result<Outcome> Generate(engine::Engine& engine, kv::Sequence& sequence, const Request& request);

}  // namespace granule::generate
