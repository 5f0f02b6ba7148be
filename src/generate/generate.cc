#include "generate/generate.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>

#include "sample/sampler.h"

namespace granule::generate {
namespace {

using Clock = std::chrono::steady_clock;

double MillisecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// The hash of the rows that were sampled from. The state lives on the stack: no allocation.
class RowHash {
 public:
  RowHash() { XXH64_reset(&state_, /*seed=*/0); }
  void Add(std::span<const float> row) {
    static_assert(std::endian::native == std::endian::little, "rows are hashed as little-endian");
    XXH64_update(&state_, row.data(), row.size_bytes());
  }
  uint64_t Value() const { return XXH64_digest(&state_); }

 private:
  XXH64_state_t state_;
};

bool IsCancelled(const Request& request) {
  return request.cancel != nullptr && request.cancel->load(std::memory_order_relaxed);
}

Status CheckRequest(const Request& request) {
  if (request.prompt.empty()) {
    return InvalidInput("the prompt has no tokens; there is nothing to continue");
  }
  if (request.max_new_tokens < -1) {
    return InvalidInput("{} new tokens are asked for; expected -1 (to the limit), 0 or more",
                        request.max_new_tokens);
  }
  if (request.prefill_chunk < 1) {
    return InvalidInput("prompt chunks of {} tokens are asked for; expected 1 or more",
                        request.prefill_chunk);
  }
  return sample::Validate(request.sampling);
}

// Refuses a prompt that does not fit before any of it is computed.
Status CheckRoom(kv::Sequence& sequence, const Request& request) {
  const kv::HardMax& hard_max = sequence.hard_max();
  const uint64_t needed = sequence.live_length() + request.prompt.size();
  if (needed > hard_max.or_unbounded()) return sequence.Ensure(needed);  // says it in full
  if (needed == hard_max.or_unbounded() && request.max_new_tokens != 0) {
    return Error(Code::kCapacityExceeded,
                 "the prompt fills the context: {} of {} tokens ({}), so nothing can be generated; "
                 "shorten the prompt, raise the limit, or ask for no new tokens",
                 needed, hard_max.or_unbounded(), hard_max.source);
  }
  return {};
}

// What one call carries from stage to stage.
class Generation {
 public:
  Generation(engine::Engine& engine, kv::Sequence& sequence, const Request& request)
      : engine_(engine), sequence_(sequence), request_(request), sampler_(request.sampling) {
    // CheckRoom made sure that nothing wraps here.
    const uint64_t room = sequence.hard_max().or_unbounded() - sequence.live_length() -
                          static_cast<uint64_t>(request.prompt.size());
    budget_ = request.max_new_tokens < 0
                  ? room
                  : std::min(room, static_cast<uint64_t>(request.max_new_tokens));
    // Room for every id up front, so that no token allocates; untouched pages cost nothing. Beyond
    // a million ids the vector doubles like any other.
    outcome_.ids.reserve(std::min<uint64_t>(budget_, uint64_t{1} << 20));
    outcome_.timings.prompt_tokens = static_cast<int64_t>(request.prompt.size());
  }

  Result<Outcome> Run() {
    if (Status s = Prefill(); !s.ok()) return s;
    if (budget_ > 0 && !cancelled_) {
      if (Status s = Decode(); !s.ok()) return s;
    }
    if (cancelled_) outcome_.finish_reason = FinishReason::kCancelled;
    if (request_.hash_logits) outcome_.logits_hash = hash_.Value();
    return std::move(outcome_);
  }

 private:
  // Reads the prompt in chunks; only the very last row's logits are wanted.
  Status Prefill() {
    const std::span<const TokenId> prompt(request_.prompt);
    const auto chunk = static_cast<size_t>(request_.prefill_chunk);
    for (size_t done = 0; done < prompt.size();) {
      if ((cancelled_ = IsCancelled(request_))) break;
      const std::span<const TokenId> part =
          prompt.subspan(done, std::min(chunk, prompt.size() - done));
      done += part.size();
      const auto last_row = static_cast<int32_t>(part.size() - 1);
      const bool wanted = done == prompt.size() && budget_ > 0;
      if (Status s = Step(part, {&last_row, wanted ? size_t{1} : size_t{0}}); !s.ok()) return s;
      if (request_.on_prefill) {
        request_.on_prefill(static_cast<int64_t>(done), static_cast<int64_t>(prompt.size()));
      }
    }
    outcome_.timings.prefill_ms = MillisecondsSince(start_);
    outcome_.timings.ttft_ms = outcome_.timings.prefill_ms;
    return {};
  }

  // One token per turn: sample from the last row, report, feed it back. The last token is not fed
  // back: nobody asks what follows it.
  Status Decode() {
    Clock::time_point first_token;
    for (;;) {
      const TokenId token = SampleRow();
      if (outcome_.ids.empty()) {
        outcome_.timings.ttft_ms = MillisecondsSince(start_);
        first_token = Clock::now();
      } else {
        outcome_.timings.decode_ms = MillisecondsSince(first_token);
      }
      if (IsEnd(token)) {
        outcome_.finish_reason = FinishReason::kStop;
        return {};
      }
      outcome_.ids.push_back(token);
      if (request_.on_token) request_.on_token(token);
      if (outcome_.ids.size() == budget_) {
        outcome_.finish_reason = FinishReason::kLength;
        return {};
      }
      if ((cancelled_ = IsCancelled(request_))) return {};

      static constexpr int32_t kOnlyRow = 0;
      if (Status s = Step({&token, 1}, {&kOnlyRow, 1}); !s.ok()) return s;
      ++outcome_.timings.decode_steps;
      outcome_.timings.decode_kv_bytes += sequence_.live_length() * sequence_.bytes_per_token();
    }
  }

  Status Step(std::span<const TokenId> tokens, std::span<const int32_t> wanted_rows) {
    const engine::StepItem item{&sequence_, tokens, wanted_rows};
    if (picks_on_device_ && !wanted_rows.empty()) {
      const engine::RowSampling greedy{request_.sampling};
      auto ids = engine_.StepAndSample({&item, 1}, {&greedy, 1});
      if (!ids.ok()) return ids.status();
      picked_ = ids->front();
      return {};
    }
    Result<engine::StepOutput> output = engine_.Step({&item, 1});
    if (!output.ok()) return output.status();
    output_ = *output;
    return {};
  }

  TokenId SampleRow() {
    if (picks_on_device_) return picked_;
    const std::span<const float> row = output_.Row(0);
    if (request_.hash_logits) hash_.Add(row);
    if (request_.on_logits) request_.on_logits(row);
    return sampler_.Sample(row);
  }

  bool IsEnd(TokenId token) const {
    return !request_.ignore_eos && std::find(request_.eos_ids.begin(), request_.eos_ids.end(),
                                             token) != request_.eos_ids.end();
  }

  engine::Engine& engine_;
  kv::Sequence& sequence_;
  const Request& request_;
  sample::Sampler sampler_;
  RowHash hash_;
  const Clock::time_point start_ = Clock::now();
  uint64_t budget_ = 0;
  bool cancelled_ = false;
  engine::StepOutput output_;
  // Greedy picks are the same wherever they are made; draws stay on the host, where a seed gives
  // the same text on every machine.
  const bool picks_on_device_ = engine_.SamplesOnDevice() &&
                                request_.sampling.temperature == 0.0f && !request_.hash_logits &&
                                !request_.on_logits;
  TokenId picked_ = 0;
  Outcome outcome_;
};

}  // namespace

const char* FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
  }
  return "unknown";
}

Result<Outcome> Generate(engine::Engine& engine, kv::Sequence& sequence, const Request& request) {
  if (Status s = CheckRequest(request); !s.ok()) return s;
  if (Status s = CheckRoom(sequence, request); !s.ok()) return s;
  return Generation(engine, sequence, request).Run();
}

}  // namespace granule::generate
