#include "text/decoder.h"

#include <algorithm>

#include "text/byte_chars.h"
#include "text/decoder_steps.h"
#include "text/utf8.h"

namespace granule::text {
namespace {

constexpr int kMaxParts = 256;  // of a Sequence, over all levels

class Collector : public TokenSink {
 public:
  explicit Collector(std::string* out) : out_(out) {}
  void Text(std::string_view part) override { out_->append(part); }
  void EndToken() override {}
  void Finish() override {}

 private:
  std::string* const out_;
};

Status ParseInto(const JsonValue& value, const std::string& path, std::vector<DecoderStep>* steps) {
  Fields fields(value, path);
  const std::string type = fields.RequiredString("type");
  if (!fields.status().ok()) return fields.status();
  if (steps->size() >= kMaxParts)
    return InvalidInput("{} is one of more than {} parts", path, kMaxParts);

  DecoderStep step{.kind = DecoderStep::Kind::kFuse, .pattern = {}, .content = {}};
  if (type == "Sequence") {
    const JsonValue* parts = fields.RequiredArray("decoders");
    for (size_t i = 0; i < parts->items.size() && fields.status().ok(); ++i) {
      fields.Fail(ParseInto(parts->items[i], Format("{}.decoders[{}]", path, i), steps));
    }
    return fields.status();
  }
  if (type == "ByteLevel") {
    step.kind = DecoderStep::Kind::kByteLevel;
  } else if (type == "Replace") {
    step.kind = DecoderStep::Kind::kReplace;
    Result<std::shared_ptr<const Pattern>> pattern =
        Pattern::Parse(value.Find("pattern"), path + ".pattern");
    if (!pattern.ok()) return pattern.status();
    step.pattern = *std::move(pattern);
    step.content = fields.RequiredString("content");
  } else if (type == "ByteFallback") {
    step.kind = DecoderStep::Kind::kByteFallback;
  } else if (type == "Fuse") {
    step.kind = DecoderStep::Kind::kFuse;
  } else if (type == "Strip") {
    step.kind = DecoderStep::Kind::kStrip;
    AppendUtf8(fields.Char("content", U' '), &step.content);
    step.start = fields.Integer("start", 0, 0, INT32_MAX);
    step.stop = fields.Integer("stop", 0, 0, INT32_MAX);
  } else if (type == "Metaspace") {
    step.kind = DecoderStep::Kind::kMetaspace;
    AppendUtf8(fields.Char("replacement", U'\u2581'), &step.content);
    const bool add_prefix_space = fields.Bool("add_prefix_space", true);
    step.drop_in_first =
        fields.String("prepend_scheme", add_prefix_space ? "always" : "never") != "never";
  } else {
    return InvalidInput(
        "{} is a decoder of type \"{}\", which is not supported (supported: Sequence, ByteLevel, "
        "Replace, "
        "ByteFallback, Fuse, Strip, Metaspace)",
        path, type);
  }
  if (fields.status().ok()) steps->push_back(std::move(step));
  return fields.status();
}

}  // namespace

Result<std::unique_ptr<const Decoder>> Decoder::Parse(const JsonValue* value) {
  auto decoder = std::make_unique<Decoder>();
  if (value == nullptr || value->is_null()) {
    decoder->steps_.push_back(
        {.kind = DecoderStep::Kind::kJoinWithSpaces, .pattern = {}, .content = {}});
  } else if (Status s = ParseInto(*value, "decoder", &decoder->steps_); !s.ok()) {
    return s;
  }
  return std::unique_ptr<const Decoder>(std::move(decoder));
}

Decoder::Chain::Chain(const Decoder& decoder, std::string* out) {
  sinks_.push_back(std::make_unique<Collector>(out));
  for (auto step = decoder.steps_.rbegin(); step != decoder.steps_.rend(); ++step) {
    sinks_.push_back(MakeDecoderStep(*step, sinks_.back().get()));
  }
}

Decoder::Chain::~Chain() = default;

void Decoder::Chain::Token(std::string_view token) {
  sinks_.back()->Text(token);
  sinks_.back()->EndToken();
}

void Decoder::Chain::Finish() { sinks_.back()->Finish(); }

std::string Decoder::BytesOf(std::string_view token) const {
  std::string bytes(token);
  bool whole = true;  // still one token's own string, not part of a joined text
  for (const DecoderStep& step : steps_) {
    std::string next;
    switch (step.kind) {
      case DecoderStep::Kind::kByteLevel:
        AppendBytesOfChars(bytes, &next);
        return next;
      case DecoderStep::Kind::kReplace:
        if (!ReplaceAll(*step.pattern, step.content, bytes, &next).ok()) continue;
        bytes = std::move(next);
        break;
      case DecoderStep::Kind::kByteFallback:
        if (const int byte = ByteOfFallbackToken(bytes); byte >= 0) {
          return std::string(1, static_cast<char>(byte));
        }
        break;
      case DecoderStep::Kind::kMetaspace:
        for (size_t pos = 0; pos < bytes.size();) {
          if (std::string_view(bytes).substr(pos).starts_with(step.content)) {
            next += ' ';
            pos += step.content.size();
          } else {
            next += bytes[pos++];
          }
        }
        bytes = std::move(next);
        break;
      case DecoderStep::Kind::kStrip:
        if (whole) bytes = StripChars(bytes, step);
        break;
      case DecoderStep::Kind::kFuse:
        whole = false;
        break;
      case DecoderStep::Kind::kJoinWithSpaces:
        break;
    }
  }
  return bytes;
}

}  // namespace granule::text
