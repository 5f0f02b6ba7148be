#include "cli/run_report.h"

#include <nlohmann/json.hpp>

#include "cli/terminal.h"

namespace granule::cli {
namespace {

using Json = nlohmann::ordered_json;

template <class T>
Json OrNull(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

template <class T>
Json WithSource(const Setting<T>& setting) {
  return {{"value", setting.value}, {"source", setting.source}};
}

Json SamplingJson(const Sampling& sampling) {
  return {{"temperature", WithSource(sampling.temperature)},
          {"top_k", WithSource(sampling.top_k)},
          {"top_p", WithSource(sampling.top_p)},
          {"min_p", WithSource(sampling.min_p)},
          {"seed", WithSource(sampling.seed)}};
}

Json TimingsJson(const RunReport& report) {
  const generate::Timings& t = report.outcome.timings;
  const auto rate = [](double value) { return value > 0 ? Json(value) : Json(nullptr); };
  return {{"load_ms", report.load_ms},
          {"ttft_ms", t.ttft_ms},
          {"first_token_ms", OrNull(report.first_token_ms)},
          {"prompt_ms", t.prefill_ms},
          {"predicted_ms", t.decode_ms},
          {"prompt_per_second", rate(t.PromptPerSecond())},
          {"predicted_per_second", rate(t.PredictedPerSecond())},
          {"gb_per_second", OrNull(report.GigabytesPerSecond())},
          {"ceiling_share", OrNull(report.CeilingShare())}};
}

Json KvJson(const RunReport& report) {
  const kv::Sequence& sequence = *report.sequence;
  const kv::Counters c = sequence.counters();
  const kv::HardMax& hard_max = sequence.hard_max();
  return {
      {"live_length", sequence.live_length()},
      {"committed_length", sequence.committed_length()},
      {"capacity", sequence.capacity()},
      {"hard_max", OrNull(hard_max.tokens)},
      {"hard_max_source", hard_max.source},
      {"layout", kv::LayoutName(sequence.layout().choice)},
      {"growth", report.levers.kv_growth.value},
      {"rounding", kv::RoundingName(sequence.policy().rounding)},
      {"min_bucket", sequence.policy().min_bucket},
      {"bytes_per_token", sequence.bytes_per_token()},
      {"growth_events", c.growth_events},
      {"kv_bytes_moved", c.kv_bytes_moved},
      {"kv_bytes_copied", c.kv_bytes_copied},
      {"captures", c.captures},
      {"replays", c.replays},
      {"fallbacks", c.fallbacks},
      {"invalidations", c.invalidations},
      {"growth_keeps", c.growth_keeps},
      {"graph_existed", c.graph_existed},
      {"committed_bytes", c.committed_bytes},
      {"unique_physical_bytes", c.unique_physical_bytes},
      {"reserved_bytes", c.reserved_bytes},
      {"shared_bytes", c.shared_bytes},
      {"parked_bytes", c.parked_bytes},
      {"pooled_bytes", c.pooled_bytes},
      {"tail_waste_bytes", c.tail_waste_bytes},
      {"granules_mapped", c.granules_mapped},
      {"commit_stall_us",
       {{"counts", c.commit_stall_us.counts},
        {"total_us", c.commit_stall_us.total_us},
        {"max_us", c.commit_stall_us.max_us}}},
  };
}

std::string HexHash(uint64_t hash) { return Format("{:016x}", hash); }

}  // namespace

std::optional<double> RunReport::GigabytesPerSecond() const {
  const generate::Timings& t = outcome.timings;
  if (t.decode_steps == 0 || t.decode_ms <= 0) return std::nullopt;
  const double weights = static_cast<double>(t.decode_steps) *
                         static_cast<double>(engine->model().info().source_weight_bytes);
  return (weights + static_cast<double>(t.decode_kv_bytes)) / (t.decode_ms * 1e6);
}

std::optional<double> RunReport::CeilingShare() const {
  const std::optional<double> speed = GigabytesPerSecond();
  if (!speed || !ceiling || ceiling->read_bytes_per_second <= 0) return std::nullopt;
  return *speed * 1e9 / ceiling->read_bytes_per_second;
}

std::string RunReportJson(const RunReport& report) {
  const ProcessMemory memory = ReadProcessMemory();
  const Json json = {
      {"text", OrNull(report.text)},
      {"prompt_ids", report.prompt_ids},
      {"ids", report.outcome.ids},
      {"finish_reason", generate::FinishReasonName(report.outcome.finish_reason)},
      {"logits_hash", HexHash(report.outcome.logits_hash)},
      {"sampling", SamplingJson(report.sampling)},
      {"timings", TimingsJson(report)},
      {"kv", KvJson(report)},
      {"memory",
       {{"rss_bytes", memory.rss_bytes},
        {"peak_rss_bytes", memory.peak_rss_bytes},
        {"device_bytes", report.device_bytes}}},
      {"device", report.levers.device.value},
      {"cuda_graph",
       {{"enabled", report.engine->capture_decision().enabled},
        {"reason", report.engine->capture_decision().reason},
        {"last", report.sequence->capture().last_reason()}}},
      {"threads", report.threads},
      {"threads_reason", report.threads_reason},
      {"isa", IsaName(report.isa)},
      {"ubatch_size", report.levers.ubatch_size.value},
      {"steps", report.engine->steps()},
      {"largest_step_rows", report.engine->largest_step_rows()},
  };
  return json.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

std::string ClosingLine(const RunReport& report) {
  const generate::Timings& t = report.outcome.timings;
  std::string line;
  if (t.decode_steps > 0) line += Format("{:.1f} tokens/s, ", t.PredictedPerSecond());
  line += Format("prompt {:.1f} tokens/s", t.PromptPerSecond());
  if (const std::optional<double> speed = report.GigabytesPerSecond()) {
    line += Format(", {:.2f} GB/s", *speed);
    if (const std::optional<double> share = report.CeilingShare()) {
      line += Format(" = {:.1f} % of this machine's {:.1f}", 100 * *share,
                     report.ceiling->read_bytes_per_second / 1e9);
    } else {
      line += " (no ceiling: run `granule doctor`)";
    }
  }
  const kv::Sequence& sequence = *report.sequence;
  const kv::Counters c = sequence.counters();
  line += Format("; KV live {} / committed {} / reserved {} tokens ({} / {} / {}); {}",
                 sequence.live_length(), sequence.committed_length(), sequence.capacity(),
                 FormatBytes(sequence.live_length() * sequence.bytes_per_token()),
                 FormatBytes(c.unique_physical_bytes), FormatBytes(c.reserved_bytes),
                 generate::FinishReasonName(report.outcome.finish_reason));
  return line;
}

std::vector<std::string> VerboseLines(const engine::Engine& engine, const kv::Sequence& sequence,
                                      const LeverValues& levers, const Sampling& sampling,
                                      const std::string& threads, const std::string& isa) {
  std::vector<std::string> lines;
  const auto line = [&](std::string name, const std::string& value, const std::string& source) {
    name.resize(16, ' ');
    std::string text = name + value;
    if (!source.empty()) text += " (" + source + ")";
    lines.push_back(std::move(text));
  };
  const engine::ModelInfo& info = engine.model().info();
  line("model",
       Format("{}: {}, {} layers with attention, vocabulary {}", info.name, info.model_type,
              info.layers, info.vocab_size),
       "");
  line("weights",
       Format("{} in the source, {} packed", FormatBytes(info.source_weight_bytes),
              FormatBytes(info.packed_weight_bytes)),
       "");
  line("threads", threads, levers.threads.source);
  line("isa", isa, levers.isa.source);
  line("device", levers.device.value, levers.device.source);
  line("cuda-graph", engine.capture_decision().reason, levers.cuda_graph.source);
  line("backend", levers.backend.value, levers.backend.source);
  line("act", levers.act.value, levers.act.source);
  line("ubatch-size", std::to_string(levers.ubatch_size.value), levers.ubatch_size.source);
  const kv::HardMax& hard_max = sequence.hard_max();
  line("hard maximum",
       hard_max.tokens ? Format("{} tokens", *hard_max.tokens) : std::string("none"),
       hard_max.source);
  std::string layout = kv::LayoutName(sequence.layout().choice);
  if (levers.kv_layout.value == "auto") layout += ", chosen by auto";
  line("kv-layout", layout, levers.kv_layout.source);
  line("kv-growth", levers.kv_growth.value, levers.kv_growth.source);
  line("kv-rounding", levers.kv_rounding.value, levers.kv_rounding.source);
  line("kv-min-bucket", std::to_string(levers.kv_min_bucket.value), levers.kv_min_bucket.source);
  line("kv-granule", FormatBytes(levers.kv_granule.value), levers.kv_granule.source);
  line("temperature", Format("{:g}", sampling.temperature.value), sampling.temperature.source);
  line("top-k", std::to_string(sampling.top_k.value), sampling.top_k.source);
  line("top-p", Format("{:g}", sampling.top_p.value), sampling.top_p.source);
  line("min-p", Format("{:g}", sampling.min_p.value), sampling.min_p.source);
  line("seed", std::to_string(sampling.seed.value), sampling.seed.source);
  line("KV reserved",
       Format("{} of addresses for {} tokens of {}; nothing committed yet",
              FormatBytes(sequence.counters().reserved_bytes), sequence.capacity(),
              FormatBytes(sequence.bytes_per_token())),
       "");
  return lines;
}

}  // namespace granule::cli
