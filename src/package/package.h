// A folder that people have -> everything needed to run it. Formats: ORT-GenAI folders, GGUF
// through import, and models that are made up in memory (synth.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/sample_params.h"
#include "base/status.h"
#include "onnx/graph.h"

namespace granule::package {

class SynthContent;  // synth_content.h

// A key and a value pair of one layer, as the graph names them.
struct KvPort {
  int layer = 0;  // as numbered in the names; may be sparse
  onnx::ValueId past_key = onnx::kNone;
  onnx::ValueId past_value = onnx::kNone;
  onnx::ValueId present_key = onnx::kNone;
  onnx::ValueId present_value = onnx::kNone;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;  // of keys; values have the same here
  // Tokens that the graph fixes its past inputs to (static-shape KV); 0: they grow with the tokens.
  int64_t fixed_past = 0;
  DType dtype = DType::kF32;
};

// Which graph input or output plays which part. Taken from genai_config's names and verified
// against the graph: the graph's shapes and types win, a contradiction is refused or warned about
// with both numbers.
struct Roles {
  onnx::ValueId input_ids = onnx::kNone;
  onnx::ValueId attention_mask = onnx::kNone;  // optional
  onnx::ValueId position_ids = onnx::kNone;    // optional
  onnx::ValueId logits = onnx::kNone;
  std::vector<KvPort> kv;
};

// A number and where it was found, for messages.
struct Sourced {
  int64_t value = 0;
  std::string source;
};

// The model author's generation defaults, each only where a file states it.
struct GenerationDefaults {
  std::optional<bool> do_sample;
  std::optional<float> temperature, top_p, min_p, repetition_penalty;
  std::optional<int32_t> top_k;
  std::string source;  // "genai_config.json search"
};

struct Package {
  std::filesystem::path folder;  // of a made-up model "synth:...": there is none
  std::string name;              // folder name
  std::string model_type;        // "llama"
  onnx::Model model;
  Roles roles;
  // What the package states about its context, and how many rows its cos/sin (or position) tables
  // have; the smaller one limits it.
  std::optional<Sourced> context_length;
  std::optional<Sourced> table_rows;
  int64_t vocab_size = 0;        // width of the logits
  std::vector<int32_t> eos_ids;  // union of genai_config, generation_config, tokenizer; sorted
  std::optional<int32_t> bos_id;
  std::optional<int32_t> pad_id;
  GenerationDefaults generation;
  std::filesystem::path tokenizer_json;  // empty when the folder has none
  std::string tokenizer_text;            // a tokenizer.json that is in no file; else empty
  std::optional<std::string> chat_template;
  // What the weights took in the file they came from (an imported GGUF's tensors), where the folder
  // says; else the bytes of the graph's tensors. What GB/s is counted with.
  uint64_t source_weight_bytes = 0;
  // What the tensors should show that are zeros because of Weights::kOnDemand; null where there are
  // none.
  std::shared_ptr<const SynthContent> on_demand;
  std::vector<std::string> warnings;
};

// Whether weights that have to be made are made. kSizesOnly is for those who only look at sizes: a
// made-up model's weights are zeros that take no memory. kOnDemand is for a GPU, which makes large
// matrices itself: those are such zeros, described by Package::on_demand, and everything else is
// there. Folders are the same in all three, as their weights are mapped and not read.
enum class Weights { kAll, kSizesOnly, kOnDemand };

// Opens a folder (or the .onnx file or genai_config.json in it; a folder whose sub-folders hold
// exactly one genai_config.json one or two levels down works too, several are listed in the error).
// "synth:..." is no folder but a model that is made in memory.
Result<Package> Open(const std::filesystem::path& path, Weights weights = Weights::kAll);

}  // namespace granule::package
