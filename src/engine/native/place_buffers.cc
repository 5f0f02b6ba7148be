#include "engine/native/place_buffers.h"

#include <algorithm>

#include "base/arith.h"
#include "base/check.h"

namespace granule::engine {
namespace {

constexpr int64_t kCacheLineFloats = 16;

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;

void Drop(std::vector<BufferId>& buffers) { std::erase(buffers, kNoBuffer); }

}  // namespace

StepBuffers BuffersOf(const PlanStep& step) {
  StepBuffers b = std::visit(Overloaded{
                                 [](const GatherStep& s) {
                                   return StepBuffers{{}, {s.y}};
                                 },
                                 [](const GatherQuantizedStep& s) {
                                   return StepBuffers{{}, {s.y}};
                                 },
                                 [](const MatMulStep& s) {
                                   StepBuffers m{{s.x.buffer}, {}};
                                   for (const auto& output : s.outputs)
                                     m.writes.push_back(output.y);
                                   return m;
                                 },
                                 [](const RmsNormStep& s) {
                                   return StepBuffers{{s.x.buffer}, {s.y}};
                                 },
                                 [](const SkipRmsNormStep& s) {
                                   return StepBuffers{{s.x, s.skip}, {s.y, s.sum}};
                                 },
                                 [](const BinaryStep& s) {
                                   return StepBuffers{{s.x, s.z}, {s.y}};
                                 },
                                 [](const UnaryStep& s) {
                                   return StepBuffers{{s.x}, {s.y}};
                                 },
                                 [](const SiluMulStep& s) {
                                   return StepBuffers{{s.gate, s.up}, {s.y}};
                                 },
                                 [](const ConcatStep& s) {
                                   StepBuffers c{{}, {s.y}};
                                   for (const Operand& part : s.parts)
                                     c.reads.push_back(part.buffer);
                                   return c;
                                 },
                                 // q is rotated in place.
                                 [](const AttentionStep& s) {
                                   return StepBuffers{{s.q.buffer, s.k.buffer, s.v.buffer}, {s.y}};
                                 },
                             },
                             step);
  Drop(b.reads);
  Drop(b.writes);
  return b;
}

void PlaceBuffers(Plan& plan) {
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    const StepBuffers b = BuffersOf(plan.steps[i]);
    const auto step = static_cast<int32_t>(i);
    for (const BufferId id : b.writes) {
      plan.buffers[static_cast<size_t>(id)].first_step = step;
      plan.buffers[static_cast<size_t>(id)].last_step = step;
    }
    for (const BufferId id : b.reads) plan.buffers[static_cast<size_t>(id)].last_step = step;
  }

  // First fit in the order of creation. A few hundred buffers, once per load: the simple quadratic
  // search is enough.
  std::vector<size_t> placed;
  for (size_t i = 0; i < plan.buffers.size(); ++i) {
    Buffer& buffer = plan.buffers[i];
    if (buffer.is_logits || buffer.width == 0) continue;
    std::vector<std::pair<int64_t, int64_t>>
        taken;  // [begin, end) of buffers alive at the same time
    for (const size_t j : placed) {
      const Buffer& other = plan.buffers[j];
      if (other.first_step <= buffer.last_step && buffer.first_step <= other.last_step) {
        taken.emplace_back(other.offset_per_row,
                           other.offset_per_row + RoundUp(other.width, kCacheLineFloats));
      }
    }
    std::sort(taken.begin(), taken.end());
    const int64_t size = RoundUp(buffer.width, kCacheLineFloats);
    int64_t offset = 0;
    for (const auto& [begin, end] : taken) {
      if (offset + size <= begin) break;
      offset = std::max(offset, end);
    }
    buffer.offset_per_row = offset;
    plan.arena_floats_per_row = std::max(plan.arena_floats_per_row, offset + size);
    placed.push_back(i);
  }

  const auto& attention =
      std::get<AttentionStep>(plan.steps[static_cast<size_t>(plan.last_attention)]);
  for (size_t i = 0; i < plan.buffers.size(); ++i) {
    const Buffer& buffer = plan.buffers[i];
    const bool crosses =
        buffer.first_step < plan.last_attention && buffer.last_step > plan.last_attention;
    if (crosses || static_cast<BufferId>(i) == attention.q.buffer) {
      plan.cut_buffers.push_back(static_cast<BufferId>(i));
    }
  }
}

}  // namespace granule::engine
