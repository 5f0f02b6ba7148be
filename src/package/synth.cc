#include "package/synth.h"

#include <array>
#include <charconv>
#include <exception>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/file.h"
#include "package/genai_config.h"
#include "package/staged_folder.h"
#include "package/synth_graph.h"
#include "package/synth_memory.h"
#include "package/synth_tokenizer.h"

namespace granule::package {
namespace {

using Json = nlohmann::ordered_json;

struct Geometry {
  const char* name;
  const char* model_type;
  int64_t layers, hidden, feed_forward, heads, kv_heads, head_dim, vocab, context;
  float rope_base;
  bool qkv_bias;
  DType kv;
  // Which weights, where nobody asks. With any seed some step in a hundred is closer than the
  // rounding of another runtime may be trusted with; these have none among the 48 tokens of the
  // growth table (src/cli/synth_test.cc). 1 where that was not tried.
  uint64_t seed;
};

// Sizes: the config.json of each model on the Hugging Face hub.
constexpr Geometry kGeometries[] = {
    {"qwen2.5-0.5b", "qwen2", 24, 896, 4864, 14, 2, 64, 151936, 131072, 1e6f, true, DType::kF16, 7},
    {"qwen2.5-7b", "qwen2", 28, 3584, 18944, 28, 4, 128, 152064, 131072, 1e6f, true, DType::kF16,
     1},
    {"qwen2.5-14b", "qwen2", 48, 5120, 13824, 40, 8, 128, 152064, 131072, 1e6f, true, DType::kF16,
     1},
    {"llama-3.1-8b", "llama", 32, 4096, 14336, 32, 8, 128, 128256, 131072, 5e5f, false, DType::kF16,
     1},
    {"llama-3.2-1b", "llama", 16, 2048, 8192, 32, 8, 64, 128256, 131072, 5e5f, false, DType::kF16,
     1},
    {"smollm2-135m", "llama", 30, 576, 1536, 9, 3, 64, 49152, 131072, 1e5f, false, DType::kF32, 6},
    {"tiny", "llama", 2, 256, 512, 8, 2, 32, 1024, 4096, 1e4f, false, DType::kF32, 13},
};

// A whole number that may be given by name.
struct SizeKey {
  const char* name;
  int64_t SynthModel::*member;
  int64_t min, max;
};

constexpr int64_t kMaxSize = int64_t{1} << 24;  // products of three stay far from 2^63

constexpr SizeKey kSizeKeys[] = {
    {"layers", &SynthModel::layers, 1, 4096},      {"heads", &SynthModel::heads, 1, 65536},
    {"kv_heads", &SynthModel::kv_heads, 1, 65536}, {"head_dim", &SynthModel::head_dim, 8, 65536},
    {"hidden", &SynthModel::hidden, 32, kMaxSize}, {"ffn", &SynthModel::feed_forward, 32, kMaxSize},
    {"vocab", &SynthModel::vocab, 1024, kMaxSize}, {"context", &SynthModel::context, 1, kMaxSize},
};

std::string AllNames() {
  std::string names;
  for (const Geometry& geometry : kGeometries)
    names += Format("{}{}", names.empty() ? "" : ", ", geometry.name);
  return names;
}

std::string AllKeys() {
  std::string keys;
  for (const SizeKey& key : kSizeKeys) keys += std::string(key.name) + ", ";
  return keys + "kv, seed";
}

Status SetName(std::string_view name, SynthModel* model) {
  for (const Geometry& g : kGeometries) {
    if (name != g.name) continue;
    model->model_type = g.model_type;
    model->layers = g.layers;
    model->hidden = g.hidden;
    model->feed_forward = g.feed_forward;
    model->heads = g.heads;
    model->kv_heads = g.kv_heads;
    model->head_dim = g.head_dim;
    model->vocab = g.vocab;
    model->context = g.context;
    model->rope_base = g.rope_base;
    model->qkv_bias = g.qkv_bias;
    model->kv = g.kv;
    model->seed = g.seed;
    return {};
  }
  return InvalidInput(
      "there is no geometry \"{}\"; there are {}, and KEY=VALUE lists such as "
      "layers=1,heads=8,head_dim=128",
      name, AllNames());
}

template <class T>
bool ParseNumber(std::string_view text, T* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
}

Status SetKey(std::string_view key, std::string_view value, SynthModel* model) {
  for (const SizeKey& size : kSizeKeys) {
    if (key != size.name) continue;
    int64_t number = 0;
    if (!ParseNumber(value, &number) || number < size.min || number > size.max) {
      return InvalidInput("{}={} is not accepted; {} to {} is", key, value, size.min, size.max);
    }
    model->*size.member = number;
    return {};
  }
  if (key == "kv") {
    if (value != "fp16" && value != "fp32")
      return InvalidInput("kv={} is not accepted; fp16 and fp32 are", value);
    model->kv = value == "fp16" ? DType::kF16 : DType::kF32;
    return {};
  }
  if (key == "seed") {
    if (!ParseNumber(value, &model->seed))
      return InvalidInput("seed={} is not accepted; 0 to 2^64 - 1 is", value);
    return {};
  }
  return InvalidInput("there is no key \"{}\"; there are {}", key, AllKeys());
}

Status SetFormat(std::string_view text, SynthModel* model) {
  for (const SynthFormat format :
       {SynthFormat::kInt4, SynthFormat::kInt8, SynthFormat::kFp16, SynthFormat::kFp32}) {
    if (text != SynthFormatName(format)) continue;
    model->format = format;
    return {};
  }
  return InvalidInput("weights of format \"{}\" cannot be made; int4, int8, fp16 and fp32 can",
                      text);
}

// Sizes that follow from others, where a list of keys leaves them out.
Status Complete(SynthModel* model) {
  for (const SizeKey& size : {kSizeKeys[0], kSizeKeys[1], kSizeKeys[3]}) {
    if (model->*size.member == 0)
      return InvalidInput("{}=N is missing; layers, heads and head_dim are needed", size.name);
  }
  if (model->kv_heads == 0) model->kv_heads = model->heads;
  if (model->hidden == 0) model->hidden = model->heads * model->head_dim;
  if (model->feed_forward == 0) model->feed_forward = 4 * model->hidden;
  if (model->vocab == 0) model->vocab = 32768;
  return {};
}

Status CheckSizes(const SynthModel& model) {
  if (model.heads % model.kv_heads != 0) {
    return InvalidInput("kv_heads={} does not divide heads={}", model.kv_heads, model.heads);
  }
  if (model.head_dim % 8 != 0)
    return InvalidInput("head_dim={} is no multiple of 8", model.head_dim);
  const std::pair<const char*, int64_t> widths[] = {
      {"heads * head_dim", model.heads * model.head_dim},
      {"hidden", model.hidden},
      {"ffn", model.feed_forward}};
  for (const auto& [name, width] : widths) {
    if (width % 32 != 0) {
      return InvalidInput("{} = {} is no multiple of 32, the block that shares a scale", name,
                          width);
    }
    if (width > kMaxSize) return InvalidInput("{} = {} is more than {}", name, width, kMaxSize);
  }
  return {};
}

Result<SynthModel> Parse(std::string_view text) {
  SynthModel model{.name = std::string(text), .model_type = "llama"};
  if (const size_t colon = text.rfind(':'); colon != std::string_view::npos) {
    if (Status s = SetFormat(text.substr(colon + 1), &model); !s.ok()) return s;
    text = text.substr(0, colon);
  }
  std::set<std::string_view> seen;
  bool more = true;
  for (bool first = true; more; first = false) {
    const size_t comma = text.find(',');
    const std::string_view item = text.substr(0, comma);
    more = comma != std::string_view::npos;
    text = more ? text.substr(comma + 1) : std::string_view();
    const size_t equals = item.find('=');
    Status s;
    if (equals != std::string_view::npos) {
      const std::string_view key = item.substr(0, equals);
      if (!seen.insert(key).second) return InvalidInput("{} is given twice", key);
      s = SetKey(key, item.substr(equals + 1), &model);
    } else if (first) {
      s = SetName(item, &model);
    } else {
      s = InvalidInput("\"{}\" is no KEY=VALUE; keys are {}", item, AllKeys());
    }
    if (!s.ok()) return s;
  }
  if (Status s = Complete(&model); !s.ok()) return s;
  if (Status s = CheckSizes(model); !s.ok()) return s;
  return model;
}

Json GranuleRecord(const SynthModel& model, const SynthGraphBytes& bytes) {
  return {{"source_format", "synth"},
          {"source_name", model.name},
          {"seed", model.seed},
          {"source_tensor_bytes", bytes.read}};
}

Status WriteTexts(const SynthModel& model, const SynthGraphBytes& bytes,
                  const std::filesystem::path& folder) {
  const TokenRoles tokens = SynthTokenRoles();
  const std::pair<const char*, std::string> files[] = {
      {"genai_config.json",
       GenaiConfigText(model.model_type, ShapeOf(model), model.hidden, tokens)},
      {"generation_config.json", GenerationConfigText(tokens)},
      {"tokenizer.json", SynthTokenizerJson(model.vocab)},
      {"tokenizer_config.json", SynthTokenizerConfigJson()},
      {"special_tokens_map.json", SynthSpecialTokensMapJson()},
      {"granule.json", GranuleRecord(model, bytes).dump(2)},
  };
  for (const auto& [name, text] : files) {
    if (Status s = WriteFileAtomically(folder / name, text + "\n"); !s.ok()) return s;
  }
  // A line feed at the end would be part of the template.
  return WriteFileAtomically(folder / "chat_template.jinja", SynthChatTemplate());
}

Result<SynthReport> WriteFolder(const SynthModel& model, const std::filesystem::path& destination,
                                const SynthOptions& options) {
  Result<uint64_t> total = SynthWeightBytes(model);
  if (!total.ok()) return total.status();
  Result<StagedFolder> folder = StagedFolder::Create(destination, options.overwrite);
  if (!folder.ok()) return folder.status();
  Result<std::unique_ptr<onnx::ModelWriter>> writer =
      onnx::ModelWriter::Create(folder->path() / "model.onnx", {});
  if (!writer.ok()) return writer.status();
  uint64_t done = 0;
  const auto written = [&](uint64_t piece_bytes) -> Status {
    done += piece_bytes;
    if (options.progress) options.progress(done, *total);
    if (options.interrupted && options.interrupted())
      return Status(Code::kInterrupted, "the writing was interrupted");
    return {};
  };
  Result<SynthGraphBytes> bytes =
      WriteSynthGraph(model, **writer, {.values = true, .written = written});
  if (!bytes.ok()) return bytes.status();
  if (Status s = (*writer)->Finish(); !s.ok()) return s;
  if (Status s = WriteTexts(model, *bytes, folder->path()); !s.ok()) return s;
  Result<uint64_t> in_folder = folder->Bytes();
  if (!in_folder.ok()) return in_folder.status();
  if (Status s = folder->Commit(); !s.ok()) return s;
  return SynthReport{bytes->weights, *in_folder};
}

}  // namespace

const char* SynthFormatName(SynthFormat format) {
  switch (format) {
    case SynthFormat::kInt4:
      return "int4";
    case SynthFormat::kInt8:
      return "int8";
    case SynthFormat::kFp16:
      return "fp16";
    case SynthFormat::kFp32:
      return "fp32";
  }
  return "";
}

Result<SynthModel> ParseSynth(std::string_view text) {
  if (text.starts_with(kSynthPrefix)) text.remove_prefix(kSynthPrefix.size());
  Result<SynthModel> model = Parse(text);
  return model.ok() ? model : model.status().In("synth:" + std::string(text));
}

Result<uint64_t> SynthWeightBytes(const SynthModel& model) {
  Result<std::unique_ptr<MemoryModelWriter>> writer = MemoryModelWriter::Create();
  if (!writer.ok()) return writer.status();
  Result<SynthGraphBytes> bytes =
      WriteSynthGraph(model, **writer, {.values = false, .written = {}});
  if (!bytes.ok()) return bytes.status();
  return bytes->weights;
}

Result<SynthReport> WriteSynth(const SynthModel& model, const std::filesystem::path& destination,
                               const SynthOptions& options) {
  try {
    return WriteFolder(model, destination, options);
  } catch (const std::exception& error) {  // JSON and file system libraries throw
    return Error(Code::kInternal, "synth:{}: {}", model.name, error.what());
  }
}

}  // namespace granule::package
