// granule run MODEL: continues a prompt. The way of a request starts here: generate/generate.h is
// next.
#include <sys/random.h>

#include <chrono>
#include <memory>

#include "base/file.h"
#include "cli/ceilings.h"
#include "cli/prompt.h"
#include "cli/run_options.h"
#include "cli/run_report.h"
#include "cli/sampling.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "engine/cuda/gpu.h"
#include "engine/engine.h"
#include "generate/generate.h"
#include "package/package.h"
#include "text/tokenizer.h"

namespace granule::cli {
namespace {

using Clock = std::chrono::steady_clock;

// New tokens where -n is left out and no limit is known.
constexpr int64_t kFallbackTokens = 512;

uint64_t RandomSeed() {
  uint64_t seed = 0;
  // Without the kernel's random numbers the clock has to do; nothing secret depends on it.
  if (getrandom(&seed, sizeof seed, 0) != static_cast<ssize_t>(sizeof seed)) {
    seed = static_cast<uint64_t>(Clock::now().time_since_epoch().count());
  }
  return seed;
}

double Milliseconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

// A model that is loaded, with one empty sequence. Members die in the reverse order.
struct Session {
  std::unique_ptr<text::Tokenizer> tokenizer;  // null: the folder has none
  std::vector<text::TokenId> prompt;
  std::unique_ptr<engine::DeviceContext> device;
  std::unique_ptr<engine::Model> model;
  std::unique_ptr<engine::Engine> engine;
  std::unique_ptr<kv::Sequence> sequence;
};

// The prompt is read before the weights: what is wrong with it is said at once.
Status ReadPrompt(const RunOptions& options, const package::Package& package, Session& session) {
  if (!package.tokenizer_json.empty() || !package.tokenizer_text.empty()) {
    Result<std::unique_ptr<text::Tokenizer>> tokenizer =
        package.tokenizer_text.empty()
            ? text::Tokenizer::Load(package.tokenizer_json)
            : text::Tokenizer::Parse(package.tokenizer_text, package.folder.native());
    if (!tokenizer.ok()) return tokenizer.status();
    session.tokenizer = std::move(*tokenizer);
  }
  if (!options.prompt) {
    session.prompt = options.prompt_ids;
  } else if (session.tokenizer == nullptr) {
    return InvalidInput("{}: no tokenizer.json, so text cannot be read; --prompt-ids works",
                        package.folder.native());
  } else {
    Result<std::vector<text::TokenId>> ids = EncodePrompt(*session.tokenizer, *options.prompt);
    if (!ids.ok()) return ids.status();
    session.prompt = std::move(*ids);
  }
  return CheckPromptIds(session.prompt, package.vocab_size);
}

engine::KvOptions KvOptionsOf(const RunOptions& options) {
  engine::KvOptions kv;
  kv.layout = options.layout;
  kv.growth = options.growth;
  kv.policy.rounding =
      options.levers.kv_rounding.value == "bucket" ? kv::Rounding::kBucket : kv::Rounding::kGranule;
  kv.policy.min_bucket = options.levers.kv_min_bucket.value;
  if (const Setting<std::optional<uint64_t>>& size = options.levers.ctx_size; size.value) {
    kv.explicit_limit = kv::Limit{*size.value, size.source};
  }
  kv.capture = kv::CaptureModeOf(options.levers.cuda_graph.value);
  kv.capture_source = options.levers.cuda_graph.source;
  return kv;
}

Status OpenSession(const RunOptions& options, Session& session) {
  const std::optional<int> gpu = options.levers.CudaIndex();
  Result<package::Package> package =
      package::Open(options.model, gpu ? package::Weights::kOnDemand : package::Weights::kAll);
  if (!package.ok()) return package.status();
  for (const std::string& warning : package->warnings) Warn("run", warning);
  if (Status s = ReadPrompt(options, *package, session); !s.ok()) return s;

  engine::DeviceOptions device_options;
  device_options.threads = options.levers.threads.value;
  device_options.isa = options.levers.isa.value;
  device_options.granule_bytes = options.levers.kv_granule.value;
  Result<std::unique_ptr<engine::DeviceContext>> device =
      engine::DeviceContext::Create(device_options, gpu);
  if (!device.ok()) return device.status();
  session.device = std::move(*device);
  Progress progress("loading weights");
  Result<std::unique_ptr<engine::Model>> model = engine::Model::Load(
      *session.device, std::move(*package), options.backend, [&](uint64_t done, uint64_t total) {
        progress.Update(done, total, Format("{} of {}", FormatBytes(done), FormatBytes(total)));
      });
  progress.Clear();
  if (!model.ok()) return model.status();
  session.model = std::move(*model);
  session.engine =
      std::make_unique<engine::Engine>(*session.device, *session.model, KvOptionsOf(options));
  if (!session.engine->hard_max().warning.empty()) {
    Warn("run", session.engine->hard_max().warning);
  }
  Result<std::unique_ptr<kv::Sequence>> sequence = session.engine->NewSequence();
  if (!sequence.ok()) return sequence.status();
  session.sequence = std::move(*sequence);
  return {};
}

// Takes tokens and logits as they come; stops the generation when nobody wants more.
class Output {
 public:
  Output(const RunOptions& options, const Session& session, Clock::time_point process_start)
      : stream_(!options.json), process_start_(process_start), progress_("reading the prompt") {
    if (session.tokenizer != nullptr) {
      decoder_.emplace(*session.tokenizer, /*skip_special_tokens=*/!options.show_special);
    }
  }

  // Opens the file of --dump-logits; a bad path is told before anything is computed.
  Status DumpTo(const std::string& path) {
    Result<AtomicFile> file = AtomicFile::Create(path);
    if (!file.ok()) return file.status().In("--dump-logits");
    dump_.emplace(std::move(*file));
    return {};
  }

  void Connect(generate::Request& request) {
    request.cancel = &stop_;
    request.on_prefill = [this](int64_t done, int64_t total) {
      progress_.Update(static_cast<uint64_t>(done), static_cast<uint64_t>(total),
                       Format("{} of {} tokens", done, total));
      if (InterruptFlag().load()) stop_ = true;
    };
    request.on_token = [this](engine::TokenId token) { OnToken(token); };
    if (dump_) {
      request.on_logits = [this](std::span<const float> row) {
        if (status_.ok()) status_ = dump_->Write(std::as_bytes(row));
      };
    }
  }

  // The rest of the text, and the dump under its name. Called after a generation without an error.
  Status Finish() {
    progress_.Clear();
    if (!status_.ok()) return status_;
    if (decoder_) Emit(decoder_->Finish());
    if (stream_ && StdoutIsTerminal() && !text_.ends_with('\n')) Write("\n");
    if (!status_.ok()) return status_;
    return dump_ ? dump_->Commit() : Status();
  }

  // After a failed generation: leaves the cursor on a line of its own.
  void Abandon() {
    progress_.Clear();
    if (stream_ && !text_.empty() && StdoutIsTerminal() && !text_.ends_with('\n')) Write("\n");
  }

  std::optional<std::string> text() const {
    return decoder_ ? std::optional<std::string>(text_) : std::nullopt;
  }
  std::optional<double> first_token_ms() const { return first_token_ms_; }

 private:
  void OnToken(engine::TokenId token) {
    progress_.Clear();
    if (!first_token_ms_) first_token_ms_ = Milliseconds(process_start_, Clock::now());
    if (decoder_) Emit(decoder_->Push(token));
    if (InterruptFlag().load() || StdoutClosed() || !status_.ok()) stop_ = true;
  }

  void Emit(const std::string& piece) {
    if (piece.empty()) return;
    text_ += piece;
    if (stream_) Write(piece);
  }

  void Write(std::string_view text) {
    if (Status s = WriteStdout(text); !s.ok() && status_.ok()) status_ = s;
  }

  const bool stream_;
  const Clock::time_point process_start_;
  Progress progress_;
  std::optional<text::StreamDecoder> decoder_;
  std::optional<AtomicFile> dump_;
  std::atomic<bool> stop_{false};
  std::string text_;
  std::optional<double> first_token_ms_;
  Status status_;
};

generate::Request MakeRequest(const RunOptions& options, const Session& session,
                              const Sampling& sampling) {
  generate::Request request;
  request.prompt = session.prompt;
  request.hash_logits = options.json;
  request.ignore_eos = options.ignore_eos;
  request.eos_ids = session.model->package().eos_ids;
  request.sampling = sampling.Params();
  request.prefill_chunk = options.levers.ubatch_size.value;
  request.max_new_tokens = options.new_tokens.value_or(-1);
  if (!options.new_tokens && !session.sequence->hard_max().tokens) {
    request.max_new_tokens = kFallbackTokens;
    Warn("run", Format("the model states no context length and -n is not given: stopping after {} "
                       "tokens; -n -1 goes on until memory ends",
                       kFallbackTokens));
  }
  return request;
}

// The stored ceiling of this machine for the threads in use. A cache that cannot be read is no
// reason to bother anyone here: doctor says what is wrong with it.
std::optional<Ceiling> KnownCeiling(engine::DeviceContext& device) {
  const Result<std::vector<Ceiling>> stored = ReadCeilings(CeilingsPath());
  if (!stored.ok()) return std::nullopt;
  if (const engine::Gpu* gpu = device.gpu())
    return FindCeiling(*stored, gpu->device->facts().name, kGpuThreads, Isa::kPortable);
  return FindCeiling(*stored, CpuModelName(), device.threads(), device.kernels().isa);
}

Result<int> Run(const Invocation& invocation) {
  const Clock::time_point start = Clock::now();
  Result<RunOptions> options = ReadRunOptions(invocation.arguments);
  if (!options.ok()) return options.status();
  InstallInterruptHandler();
  Session session;
  if (Status s = OpenSession(*options, session); !s.ok()) return s;
  const Sampling sampling =
      ResolveSampling(options->sampling, session.model->package().generation, RandomSeed());
  engine::DeviceContext& device = *session.device;

  RunReport report;
  report.load_ms = Milliseconds(start, Clock::now());
  if (options->verbose) {
    for (const std::string& line :
         VerboseLines(*session.engine, *session.sequence, options->levers, sampling,
                      Format("{}, {}", device.threads(), device.threads_reason()),
                      IsaName(device.kernels().isa))) {
      Say("run", line);
    }
  }
  Output output(*options, session, invocation.process_start);
  if (options->dump_logits) {
    if (Status s = output.DumpTo(*options->dump_logits); !s.ok()) return s;
  }
  generate::Request request = MakeRequest(*options, session, sampling);
  output.Connect(request);
  if (InterruptFlag().load()) return ExitCode(Code::kInterrupted);
  Result<generate::Outcome> outcome =
      generate::Generate(*session.engine, *session.sequence, request);
  if (!outcome.ok()) {
    output.Abandon();
    return outcome.status();
  }
  if (Status s = output.Finish(); !s.ok()) return s;

  report.text = output.text();
  report.prompt_ids = session.prompt;
  report.outcome = std::move(*outcome);
  report.sampling = sampling;
  report.levers = options->levers;
  report.device_bytes = device.device_bytes();
  report.threads = device.threads();
  report.threads_reason = device.threads_reason();
  report.isa = device.kernels().isa;
  report.first_token_ms = output.first_token_ms();
  report.ceiling = KnownCeiling(device);
  report.engine = session.engine.get();
  report.sequence = session.sequence.get();
  if (options->json) {
    if (Status s = WriteStdout(RunReportJson(report)); !s.ok()) return s;
  } else if (!StdoutClosed()) {
    Say("run", ClosingLine(report));
  }
  return InterruptFlag().load() ? ExitCode(Code::kInterrupted) : 0;
}

}  // namespace

Verb RunVerb() { return {RunSyntax(), Run}; }

}  // namespace granule::cli
