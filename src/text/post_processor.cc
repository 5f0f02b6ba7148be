#include "text/post_processor.h"

#include "text/vocabulary.h"

namespace granule::text {
namespace {

constexpr size_t kMaxParts = 64;       // of a Sequence, over all levels
constexpr size_t kMaxItems = 256;      // of a template
constexpr size_t kMaxTextPlaces = 16;  // over all templates: each may multiply the ids

Status ReadId(const JsonValue& id, const std::string& path, std::vector<TokenId>* ids) {
  if (id.kind != JsonValue::Kind::kInteger || id.integer < 0 || id.integer > kMaxTokenId) {
    return InvalidInput("{} must hold ids from 0 to {}", path, kMaxTokenId);
  }
  ids->push_back(static_cast<TokenId>(id.integer));
  return {};
}

Status ReadIds(const JsonValue& array, const std::string& path, std::vector<TokenId>* ids) {
  for (const JsonValue& id : array.items) {
    if (Status s = ReadId(id, path, ids); !s.ok()) return s;
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<const PostProcessor>> PostProcessor::Parse(const JsonValue* value) {
  auto processor = std::make_unique<PostProcessor>();
  if (value != nullptr && !value->is_null()) {
    if (Status s = ParseInto(*value, "post_processor", &processor->templates_); !s.ok()) return s;
  }
  size_t repeats = 0;
  for (const Template& one : processor->templates_) {
    for (const Item& item : one) repeats += item.is_text ? 1 : 0;
  }
  if (repeats > kMaxTextPlaces) {
    return InvalidInput("post_processor repeats the text more than {} times", kMaxTextPlaces);
  }
  return std::unique_ptr<const PostProcessor>(std::move(processor));
}

Status PostProcessor::ParseInto(const JsonValue& value, const std::string& path,
                                std::vector<Template>* templates) {
  Fields fields(value, path);
  const std::string type = fields.RequiredString("type");
  if (!fields.status().ok()) return fields.status();
  if (templates->size() >= kMaxParts)
    return InvalidInput("{} is one of more than {} parts", path, kMaxParts);

  if (type == "Sequence") {
    const JsonValue* parts = fields.RequiredArray("processors");
    for (size_t i = 0; i < parts->items.size() && fields.status().ok(); ++i) {
      fields.Fail(ParseInto(parts->items[i], Format("{}.processors[{}]", path, i), templates));
    }
    return fields.status();
  }
  if (type == "ByteLevel") return {};  // changes offsets only, which are not kept here
  if (type == "TemplateProcessing") return ParseTemplate(value, path, &templates->emplace_back());
  if (type == "RobertaProcessing" || type == "BertProcessing") {
    return ParseFrame(value, path, &templates->emplace_back());
  }
  return InvalidInput(
      "{} is a post-processor of type \"{}\", which is not supported (supported: Sequence, "
      "ByteLevel, "
      "TemplateProcessing, RobertaProcessing, BertProcessing)",
      path, type);
}

// single: a list of {"SpecialToken": {"id": NAME}} and {"Sequence": {"id": "A"}};
// special_tokens: NAME -> {"ids": [...]}.
Status PostProcessor::ParseTemplate(const JsonValue& value, const std::string& path,
                                    Template* out) {
  Fields fields(value, path);
  const JsonValue* items = fields.RequiredArray("single");
  const JsonValue* specials = value.Find("special_tokens");
  if (!fields.status().ok()) return fields.status();
  if (items->items.size() > kMaxItems) {
    return InvalidInput("{}.single has more than {} items", path, kMaxItems);
  }
  for (size_t i = 0; i < items->items.size(); ++i) {
    const std::string item_path = Format("{}.single[{}]", path, i);
    const JsonValue* sequence = items->items[i].Find("Sequence");
    const JsonValue* special = items->items[i].Find("SpecialToken");
    if (sequence != nullptr) {
      Fields inner(*sequence, item_path + ".Sequence");
      if (const std::string id = inner.RequiredString("id"); inner.status().ok() && id != "A") {
        inner.Fail(InvalidInput("{} is \"{}\"; a template for one text has only \"A\"",
                                inner.PathOf("id"), id));
      }
      if (!inner.status().ok()) return inner.status();
      out->push_back({.is_text = true, .ids = {}});
      continue;
    }
    if (special == nullptr) {
      return InvalidInput("{} must be {{\"Sequence\": ...}} or {{\"SpecialToken\": ...}}",
                          item_path);
    }
    Fields inner(*special, item_path + ".SpecialToken");
    const std::string name = inner.RequiredString("id");
    if (!inner.status().ok()) return inner.status();
    const JsonValue* definition = specials != nullptr ? specials->Find(name) : nullptr;
    const JsonValue* ids = definition != nullptr ? definition->Find("ids") : nullptr;
    if (ids == nullptr || !ids->is_array()) {
      return InvalidInput("{} names \"{}\", but {}.special_tokens gives it no ids", item_path, name,
                          path);
    }
    Item item;
    if (Status s = ReadIds(*ids, path + ".special_tokens", &item.ids); !s.ok()) return s;
    out->push_back(std::move(item));
  }
  return {};
}

// "cls": ["<s>", 0], "sep": ["</s>", 2]: cls, the text, sep.
Status PostProcessor::ParseFrame(const JsonValue& value, const std::string& path, Template* out) {
  Fields fields(value, path);
  for (const char* key : {"cls", "sep"}) {
    const JsonValue* pair = fields.RequiredArray(key);
    if (!fields.status().ok()) return fields.status();
    Item item;
    if (pair->items.size() != 2) {
      return InvalidInput("{} must be [\"token\", id]", fields.PathOf(key));
    }
    if (Status s = ReadId(pair->items[1], fields.PathOf(key), &item.ids); !s.ok()) return s;
    if (out->empty()) {
      out->push_back(std::move(item));
      out->push_back({.is_text = true, .ids = {}});
    } else {
      out->push_back(std::move(item));
    }
  }
  return {};
}

void PostProcessor::Apply(bool add_special_tokens, std::vector<TokenId>* ids) const {
  for (const Template& items : templates_) {
    std::vector<TokenId> framed;
    framed.reserve(ids->size() + items.size());
    for (const Item& item : items) {
      if (item.is_text) {
        framed.insert(framed.end(), ids->begin(), ids->end());
      } else if (add_special_tokens) {
        framed.insert(framed.end(), item.ids.begin(), item.ids.end());
      }
    }
    *ids = std::move(framed);
  }
}

}  // namespace granule::text
