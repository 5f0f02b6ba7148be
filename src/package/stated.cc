#include "package/stated.h"

#include <system_error>
#include <utility>

#include "base/file.h"
#include "package/json_file.h"

namespace granule::package {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxContext = int64_t{1} << 40;
constexpr uint64_t kMaxTemplateBytes = uint64_t{4} << 20;

bool IsThere(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// Fills `out` with the member and where it came from, unless it is filled already.
Status TakeInt(const Json& object, const char* key, const std::string& file,
               const std::string& place, int64_t max, std::optional<Sourced>* out) {
  const std::string where = place.empty() ? file : file + " " + place;
  const std::string source =
      place.empty() ? Format("{} {}", file, key) : Format("{} {}.{}", file, place, key);
  Result<std::optional<int64_t>> value = IntMember(object, key, where, 1, max);
  if (!value.ok()) return value.status();
  if (*value && !*out) *out = Sourced{**value, source};
  return {};
}

Status TakeId(const Json& object, const char* key, const std::string& where,
              std::optional<int32_t>* out) {
  Result<std::vector<int32_t>> ids = IdsMember(object, key, where);
  if (!ids.ok()) return ids.status();
  if (!ids->empty() && !*out) *out = ids->front();
  return {};
}

Status TakeIds(const Json& object, const char* key, const std::string& where,
               std::vector<int32_t>* out) {
  Result<std::vector<int32_t>> ids = IdsMember(object, key, where);
  if (!ids.ok()) return ids.status();
  out->insert(out->end(), ids->begin(), ids->end());
  return {};
}

Status TakeFloat(const Json& object, const char* key, const std::string& where,
                 std::optional<float>* out) {
  Result<std::optional<double>> value = NumberMember(object, key, where);
  if (!value.ok()) return value.status();
  if (*value) *out = static_cast<float>(**value);
  return {};
}

Status TakeGeneration(const Json& object, const std::string& where, GenerationDefaults* out) {
  Result<std::optional<bool>> sample = BoolMember(object, "do_sample", where);
  if (!sample.ok()) return sample.status();
  out->do_sample = *sample;
  const std::pair<const char*, std::optional<float>*> numbers[] = {
      {"temperature", &out->temperature},
      {"top_p", &out->top_p},
      {"min_p", &out->min_p},
      {"repetition_penalty", &out->repetition_penalty}};
  for (const auto& [key, value] : numbers) {
    if (Status s = TakeFloat(object, key, where, value); !s.ok()) return s;
  }
  Result<std::optional<int64_t>> top_k = IntMember(object, "top_k", where, 0);
  if (!top_k.ok()) return top_k.status();
  if (*top_k) out->top_k = static_cast<int32_t>(**top_k);
  out->source = where;
  return {};
}

// The texts of an object, by key; members of other kinds are left out.
void TakeNames(const Json* object, std::map<std::string, std::string>* names) {
  if (object == nullptr || !object->is_object()) return;
  for (const auto& [key, value] : object->items()) {
    if (value.is_string()) names->emplace(key, value.get<std::string>());
  }
}

Status RefusePartsNotBuilt(const Json& model, const Json& decoder, const std::string& file) {
  for (const char* key : {"encoder", "embedding", "vision", "speech", "joiner", "vad"}) {
    if (Member(model, key) != nullptr) {
      return InvalidInput("{} has a section model.{}: models of several graphs are not supported",
                          file, key);
    }
  }
  if (Member(decoder, "pipeline") != nullptr) {
    return InvalidInput(
        "{} has a section model.decoder.pipeline: decoders of several graphs are not supported",
        file);
  }
  return {};
}

Status ReadGenaiConfig(const fs::path& path, Stated* stated) {
  Result<Json> json = ReadJsonObject(path);
  if (!json.ok()) return json.status();
  const std::string file = "genai_config.json";
  const Json* model = Member(*json, "model");
  const Json* decoder = model == nullptr ? nullptr : Member(*model, "decoder");
  if (decoder == nullptr || !decoder->is_object())
    return InvalidInput("{}: the section model.decoder is missing", path.native());
  if (Status s = RefusePartsNotBuilt(*model, *decoder, path.native()); !s.ok()) return s;

  Result<std::optional<std::string>> type = StringMember(*model, "type", file + " model");
  if (!type.ok()) return type.status();
  stated->model_type = type->value_or("");
  Result<std::optional<std::string>> filename =
      StringMember(*decoder, "filename", file + " model.decoder");
  if (!filename.ok()) return filename.status();
  stated->filename = *filename;

  if (Status s =
          TakeInt(*model, "context_length", file, "model", kMaxContext, &stated->context_length);
      !s.ok())
    return s;
  constexpr int64_t kMaxSize = std::numeric_limits<int32_t>::max();
  if (Status s = TakeInt(*model, "vocab_size", file, "model", kMaxSize, &stated->vocab_size);
      !s.ok())
    return s;
  const std::pair<const char*, std::optional<Sourced>*> sizes[] = {
      {"head_size", &stated->head_size},
      {"num_key_value_heads", &stated->kv_heads},
      {"num_hidden_layers", &stated->layers}};
  for (const auto& [key, value] : sizes) {
    if (Status s = TakeInt(*decoder, key, file, "model.decoder", kMaxSize, value); !s.ok())
      return s;
  }
  if (Status s = TakeIds(*model, "eos_token_id", file + " model", &stated->eos_ids); !s.ok())
    return s;
  if (Status s = TakeId(*model, "bos_token_id", file + " model", &stated->bos_id); !s.ok())
    return s;
  if (Status s = TakeId(*model, "pad_token_id", file + " model", &stated->pad_id); !s.ok())
    return s;
  TakeNames(Member(*decoder, "inputs"), &stated->names);
  TakeNames(Member(*decoder, "outputs"), &stated->names);
  const Json* search = Member(*json, "search");
  return search == nullptr ? Status()
                           : TakeGeneration(*search, file + " search", &stated->generation);
}

// The element type that transformers.js is told to feed, where it is one word.
Status TakeKvDtype(const Json& config, Stated* stated) {
  const Json* section = Member(config, "transformers.js_config");
  const Json* found =
      section != nullptr ? Member(*section, "kv_cache_dtype") : Member(config, "kv_cache_dtype");
  if (found == nullptr || !found->is_string()) return {};
  const std::string text = found->get<std::string>();
  for (DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    if (text == DTypeName(type))
      stated->kv_dtype = Sourced{static_cast<int64_t>(type), "config.json kv_cache_dtype"};
  }
  return {};
}

// Returns the end ids of config.json apart: they count only where no generation settings name any.
Status ReadConfig(const fs::path& path, Stated* stated, std::vector<int32_t>* eos_ids) {
  Result<Json> json = ReadJsonObject(path);
  if (!json.ok()) return json.status();
  const std::string file = "config.json";
  Result<std::optional<std::string>> type = StringMember(*json, "model_type", file);
  if (!type.ok()) return type.status();
  if (stated->model_type.empty()) stated->model_type = type->value_or("");
  constexpr int64_t kMaxSize = std::numeric_limits<int32_t>::max();
  const std::pair<const char*, std::optional<Sourced>*> sizes[] = {
      {"vocab_size", &stated->vocab_size},
      {"head_dim", &stated->head_size},
      {"num_key_value_heads", &stated->kv_heads},
      {"num_hidden_layers", &stated->layers}};
  if (Status s =
          TakeInt(*json, "max_position_embeddings", file, "", kMaxContext, &stated->context_length);
      !s.ok())
    return s;
  for (const auto& [key, value] : sizes) {
    if (Status s = TakeInt(*json, key, file, "", kMaxSize, value); !s.ok()) return s;
  }
  if (Status s = TakeKvDtype(*json, stated); !s.ok()) return s;
  if (Status s = TakeIds(*json, "eos_token_id", file, eos_ids); !s.ok()) return s;
  if (Status s = TakeId(*json, "bos_token_id", file, &stated->bos_id); !s.ok()) return s;
  return TakeId(*json, "pad_token_id", file, &stated->pad_id);
}

Status ReadGenerationConfig(const fs::path& path, Stated* stated) {
  Result<Json> json = ReadJsonObject(path);
  if (!json.ok()) return json.status();
  const std::string file = "generation_config.json";
  if (Status s = TakeIds(*json, "eos_token_id", file, &stated->eos_ids); !s.ok()) return s;
  if (Status s = TakeId(*json, "bos_token_id", file, &stated->bos_id); !s.ok()) return s;
  if (Status s = TakeId(*json, "pad_token_id", file, &stated->pad_id); !s.ok()) return s;
  if (!stated->generation.source.empty()) return {};
  return TakeGeneration(*json, file, &stated->generation);
}

// A token as tokenizer_config.json writes it: a text, or an object with the text as "content".
std::optional<std::string> TokenText(const Json& config, const char* key) {
  const Json* token = Member(config, key);
  if (token != nullptr && token->is_object()) token = Member(*token, "content");
  if (token == nullptr || !token->is_string()) return std::nullopt;
  return token->get<std::string>();
}

// The template of a list of named ones is "default", or the only one.
std::optional<std::string> TemplateText(const Json& config) {
  const Json* value = Member(config, "chat_template");
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  if (!value->is_array()) return std::nullopt;
  for (const Json& named : *value) {
    const Json* name = Member(named, "name");
    const Json* text = Member(named, "template");
    if (text == nullptr || !text->is_string()) continue;
    if (value->size() == 1 || (name != nullptr && *name == "default"))
      return text->get<std::string>();
  }
  return std::nullopt;
}

// The id of an added token of tokenizer.json.
std::optional<int32_t> FindAddedToken(const Json& tokenizer, const std::string& content) {
  const Json* added = Member(tokenizer, "added_tokens");
  if (added == nullptr || !added->is_array()) return std::nullopt;
  for (const Json& token : *added) {
    const Json* text = Member(token, "content");
    if (text == nullptr || !text->is_string() || text->get_ref<const std::string&>() != content)
      continue;
    Result<std::vector<int32_t>> ids = IdsMember(token, "id", "tokenizer.json added_tokens");
    if (ids.ok() && ids->size() == 1) return ids->front();
  }
  return std::nullopt;
}

Status ReadTokenizerFiles(const fs::path& folder, Stated* stated,
                          std::vector<std::string>* warnings) {
  Json tokenizer = Json::object();
  if (IsThere(folder / "tokenizer.json")) {
    stated->tokenizer_json = folder / "tokenizer.json";
    Result<Json> read = ReadJsonObject(stated->tokenizer_json, /*skip_key=*/"model");
    if (!read.ok()) return read.status();
    tokenizer = *std::move(read);
  }
  if (IsThere(folder / "chat_template.jinja")) {
    Result<std::string> text = ReadFile(folder / "chat_template.jinja", kMaxTemplateBytes);
    if (!text.ok()) return text.status();
    stated->chat_template = *std::move(text);
  }
  if (!IsThere(folder / "tokenizer_config.json")) return {};
  Result<Json> config = ReadJsonObject(folder / "tokenizer_config.json");
  if (!config.ok()) return config.status();
  if (!stated->chat_template) stated->chat_template = TemplateText(*config);
  if (const std::optional<std::string> eos = TokenText(*config, "eos_token")) {
    const std::optional<int32_t> id = FindAddedToken(tokenizer, *eos);
    if (id) stated->eos_ids.push_back(*id);
    if (!id && stated->eos_ids.empty()) {
      warnings->push_back(Format(
          "tokenizer_config.json eos_token \"{}\" is no added token of tokenizer.json", *eos));
    }
  }
  return {};
}

Status ReadGranuleRecord(const fs::path& path, Stated* stated) {
  Result<Json> json = ReadJsonObject(path);
  if (!json.ok()) return json.status();
  Result<std::optional<int64_t>> bytes = IntMember(*json, "source_tensor_bytes", "granule.json", 0,
                                                   std::numeric_limits<int64_t>::max());
  if (!bytes.ok()) return bytes.status();
  if (*bytes) stated->source_weight_bytes = static_cast<uint64_t>(**bytes);
  return {};
}

}  // namespace

Result<Stated> ReadStated(const ModelFolder& files, std::vector<std::string>* warnings) {
  Stated stated;
  const fs::path& folder = files.folder;
  if (files.genai_config) {
    if (Status s = ReadGenaiConfig(*files.genai_config, &stated); !s.ok()) return s;
  }
  std::vector<int32_t> config_eos_ids;
  if (IsThere(folder / "config.json")) {
    if (Status s = ReadConfig(folder / "config.json", &stated, &config_eos_ids); !s.ok()) return s;
  }
  if (IsThere(folder / "generation_config.json")) {
    if (Status s = ReadGenerationConfig(folder / "generation_config.json", &stated); !s.ok())
      return s;
  }
  if (stated.eos_ids.empty()) stated.eos_ids = config_eos_ids;
  if (Status s = ReadTokenizerFiles(folder, &stated, warnings); !s.ok()) return s;
  if (IsThere(folder / "granule.json")) {
    if (Status s = ReadGranuleRecord(folder / "granule.json", &stated); !s.ok()) return s;
  }
  return stated;
}

}  // namespace granule::package
