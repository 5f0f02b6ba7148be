// What is refused at load, and with which words.
#include <gtest/gtest.h>

#include "text/test_tokenizers.h"
#include "text/tokenizer.h"

namespace granule::text {
namespace {

std::string RefusalOf(const std::string& json) {
  const auto tokenizer = Tokenizer::Parse(json, "x/tokenizer.json");
  if (tokenizer.ok()) return "accepted";
  EXPECT_EQ(tokenizer.status().code(), Code::kInvalidInput);
  EXPECT_EQ(tokenizer.status().message().rfind("x/tokenizer.json: ", 0), 0u)
      << tokenizer.status().message();
  return tokenizer.status().message();
}

void ExpectRefusal(const std::string& json, const std::vector<std::string>& words) {
  const std::string message = RefusalOf(json);
  for (const std::string& word : words) {
    EXPECT_NE(message.find(word), std::string::npos) << "'" << word << "' is not in: " << message;
  }
}

Json Base() { return TokenizerJson({{"a", 0}, {"b", 1}, {"ab", 2}}, {"a b"}); }

// The file with one part put in place, at a JSON pointer.
std::string With(const char* pointer, const Json& value) {
  Json file = Base();
  file[Json::json_pointer(pointer)] = value;
  return file.dump();
}

TEST(Refusal, TheBaseIsAccepted) { EXPECT_EQ(RefusalOf(Base().dump()), "accepted"); }

TEST(Refusal, NotATokenizerFile) {
  ExpectRefusal("", {"not a tokenizer.json"});
  ExpectRefusal("[]", {"an array instead of an object"});
  ExpectRefusal("{}", {"no `model`"});
  ExpectRefusal(R"({"model": 3})", {"no `model`"});
  ExpectRefusal(R"({"tokenizer_class": "X"})", {"tokenizer_config.json"});
  ExpectRefusal(R"({"model_type": "llama"})", {"config.json"});
  ExpectRefusal("<!DOCTYPE html><html></html>", {"not a tokenizer.json", "HTML"});
  ExpectRefusal("version https://git-lfs.github.com/spec/v1\noid sha256:" + std::string(64, 'a') +
                    "\nsize 2113422\n",
                {"LFS", "2113422"});
}

TEST(Refusal, BrokenJson) {
  const std::string whole = Base().dump();
  for (const size_t size : {size_t{1}, size_t{20}, whole.size() / 2, whole.size() - 1}) {
    ExpectRefusal(whole.substr(0, size), {"ends early", Format("byte {}", size)});
  }
  ExpectRefusal(R"({"model": nil})", {"not valid JSON at byte 11"});
  ExpectRefusal("{\"model\": \"\xFF\"}", {"not valid JSON at byte 11"});
  ExpectRefusal(whole + "x", {"not valid JSON"});
}

TEST(Refusal, DepthBombs) {
  for (const char* open : {"[", "{\"a\":"}) {
    std::string bomb;
    for (int i = 0; i < 1'000'000; ++i) bomb += open;
    ExpectRefusal(bomb, {"nests deeper than 64"});
  }
  Json nested = {{"type", "NFC"}};
  for (int i = 0; i < 40; ++i)
    nested = {{"type", "Sequence"}, {"normalizers", Json::array({nested})}};
  ExpectRefusal(With("/normalizer", nested), {"nests deeper than 64"});
}

TEST(Refusal, OtherModels) {
  for (const char* type : {"WordPiece", "Unigram", "WordLevel"}) {
    ExpectRefusal(With("/model/type", type), {"model.type", type, "only \"BPE\""});
  }
  ExpectRefusal(With("/model/type", 7), {"model.type is an integer"});
  ExpectRefusal(With("/version", "2.0"), {"version", "2.0"});
  Json untyped = Base();
  untyped["model"].erase("type");
  EXPECT_EQ(RefusalOf(untyped.dump()), "accepted");
  untyped["model"].erase("merges");
  ExpectRefusal(untyped.dump(), {"model.type is missing"});
}

TEST(Refusal, ModelParts) {
  ExpectRefusal(With("/model/vocab", nullptr), {"model.vocab is missing"});
  ExpectRefusal(With("/model/vocab", Json::array({1, 2})),
                {"model.vocab must be an object, not an array"});
  ExpectRefusal(With("/model/vocab/a", -1), {"model.vocab", "\"a\"", "0 to"});
  ExpectRefusal(With("/model/vocab/a", 4'000'000'000), {"\"a\""});
  ExpectRefusal(With("/model/vocab/a", "x"), {"\"a\""});
  ExpectRefusal(With("/model/merges", nullptr), {"model.merges is missing"});
  ExpectRefusal(With("/model/merges/0", "a b c"), {"model.merges[0]"});
  ExpectRefusal(With("/model/merges/0", "ab"), {"model.merges[0]"});
  ExpectRefusal(With("/model/merges/0", Json::array({"a"})), {"model.merges[0]"});
  ExpectRefusal(With("/model/merges/0", Json::array({"a", 1})), {"model.merges[0]"});
  ExpectRefusal(With("/model/merges/0", "a z"), {"model.merges[0]", "\"z\""});
  ExpectRefusal(With("/model/merges/0", Json::array({"z", "a"})), {"model.merges[0]", "\"z\""});
  ExpectRefusal(With("/model/merges/0", "b a"), {"model.merges[0]", "\"ba\""});
  ExpectRefusal(With("/model/dropout", 0.1), {"model.dropout"});
  EXPECT_EQ(RefusalOf(With("/model/dropout", 0.0)), "accepted");
  ExpectRefusal(With("/model/fuse_unk", 1),
                {"model.fuse_unk must be true or false, not an integer"});
  ExpectRefusal(With("/model/continuing_subword_prefix", "##"), {"model.merges[0]", "##"});
}

TEST(Refusal, UnknownParts) {
  const Json odd = {{"type", "Odd"}};
  ExpectRefusal(With("/normalizer", odd), {"normalizer", "\"Odd\"", "supported", "NFC"});
  ExpectRefusal(With("/pre_tokenizer", odd), {"pre_tokenizer", "\"Odd\"", "ByteLevel"});
  ExpectRefusal(With("/post_processor", odd), {"post_processor", "\"Odd\"", "TemplateProcessing"});
  ExpectRefusal(With("/decoder", odd), {"decoder", "\"Odd\"", "ByteFallback"});
  ExpectRefusal(
      With("/normalizer", {{"type", "Sequence"}, {"normalizers", {{{"type", "NFC"}}, odd}}}),
      {"normalizer.normalizers[1]"});
  ExpectRefusal(
      With("/pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", Json::array({odd})}}),
      {"pre_tokenizer.pretokenizers[0]"});
  ExpectRefusal(With("/post_processor", {{"type", "Sequence"}, {"processors", Json::array({odd})}}),
                {"post_processor.processors[0]"});
  ExpectRefusal(With("/decoder", {{"type", "Sequence"}, {"decoders", Json::array({odd})}}),
                {"decoder.decoders[0]"});
  for (const char* part : {"/normalizer", "/pre_tokenizer", "/post_processor", "/decoder"}) {
    ExpectRefusal(With(part, 5),
                  {std::string(part).substr(1), "must be an object, not an integer"});
    ExpectRefusal(With(part, Json::object()), {"type is missing"});
    ExpectRefusal(With(part, {{"type", 5}}), {"type must be a string"});
    ExpectRefusal(With(part, {{"type", "Sequence"}}), {"is missing; it must be an array"});
  }
}

TEST(Refusal, TooManyParts) {
  for (const auto& [pointer, list, type] :
       std::vector<std::array<const char*, 3>>{{"/normalizer", "normalizers", "NFC"},
                                               {"/pre_tokenizer", "pretokenizers", "Whitespace"},
                                               {"/decoder", "decoders", "Fuse"}}) {
    Json parts = Json::array();
    for (int i = 0; i < 300; ++i) parts.push_back({{"type", type}});
    ExpectRefusal(With(pointer, {{"type", "Sequence"}, {list, parts}}), {"more than 256 parts"});
  }
}

TEST(Refusal, Patterns) {
  const auto with = [](const Json& pattern, const char* behavior) {
    return With("/pre_tokenizer",
                {{"type", "Split"}, {"pattern", pattern}, {"behavior", behavior}});
  };
  ExpectRefusal(with({{"Regex", "a("}}, "Isolated"), {"pre_tokenizer.pattern", "a("});
  ExpectRefusal(with({{"Regex", "\\p{Nonsense}"}}, "Isolated"),
                {"pre_tokenizer.pattern", "Nonsense"});
  ExpectRefusal(with({{"Regex", "(?x)a"}}, "Isolated"), {"not supported"});
  ExpectRefusal(with({{"Odd", "a"}}, "Isolated"), {"pre_tokenizer.pattern must be"});
  ExpectRefusal(with(nullptr, "Isolated"), {"pre_tokenizer.pattern must be"});
  ExpectRefusal(with({{"Regex", "a"}}, "Odd"), {"pre_tokenizer.behavior", "Odd", "MergedWithNext"});
  ExpectRefusal(With("/pre_tokenizer", {{"type", "Punctuation"}, {"behavior", "Odd"}}),
                {"behavior"});
  ExpectRefusal(With("/normalizer", {{"type", "Replace"}, {"pattern", 3}, {"content", "x"}}),
                {"normalizer.pattern"});
  ExpectRefusal(With("/decoder", {{"type", "Replace"}, {"pattern", 3}, {"content", "x"}}),
                {"decoder.pattern"});
}

TEST(Refusal, MetaspaceAndStrip) {
  const auto metaspace = [](const char* key, const Json& value) {
    Json part = {{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "first"}};
    part[key] = value;
    return With("/pre_tokenizer", part);
  };
  ExpectRefusal(metaspace("replacement", "ab"),
                {"pre_tokenizer.replacement", "exactly one character"});
  ExpectRefusal(metaspace("replacement", ""), {"exactly one character"});
  ExpectRefusal(metaspace("prepend_scheme", "odd"), {"always, first or never"});
  ExpectRefusal(metaspace("add_prefix_space", false), {"add_prefix_space is false"});
  ExpectRefusal(With("/decoder", {{"type", "Strip"}, {"content", " "}, {"start", -1}, {"stop", 0}}),
                {"decoder.start is -1"});
}

TEST(Refusal, Templates) {
  const auto with = [](const Json& single, const Json& specials = Json::object()) {
    return With("/post_processor",
                {{"type", "TemplateProcessing"}, {"single", single}, {"special_tokens", specials}});
  };
  const Json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const Json bos = {{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}};
  EXPECT_EQ(RefusalOf(with({bos, text}, {{"<s>", {{"ids", Json::array({1})}}}})), "accepted");
  ExpectRefusal(with({bos, text}), {"post_processor.single[0]", "<s>", "no ids"});
  ExpectRefusal(with(Json::array({bos}), {{"<s>", {{"ids", Json::array({-1})}}}}), {"ids from 0"});
  ExpectRefusal(with(Json::array({{{"Sequence", {{"id", "B"}}}}})), {"only \"A\""});
  ExpectRefusal(with(Json::array({{{"Odd", 1}}})), {"post_processor.single[0]"});
  ExpectRefusal(with(Json::array({text, text, text, text, text, text, text, text, text, text, text,
                                  text, text, text, text, text, text})),
                {"more than 16 times"});
  ExpectRefusal(With("/post_processor", {{"type", "RobertaProcessing"},
                                         {"cls", Json::array({"a"})},
                                         {"sep", Json::array({"b", 1})}}),
                {"post_processor.cls"});
}

TEST(Refusal, AddedTokens) {
  ExpectRefusal(With("/added_tokens", {{"a", 1}}), {"added_tokens must be an array"});
  ExpectRefusal(With("/added_tokens", Json::array({5})), {"added_tokens[0] must be an object"});
  ExpectRefusal(With("/added_tokens", Json::array({{{"id", 5}}})),
                {"added_tokens[0].content is missing"});
  ExpectRefusal(With("/added_tokens", Json::array({AddedTokenJson(-1, "x")})),
                {"added_tokens[0].id is -1"});
  ExpectRefusal(With("/added_tokens", Json::array({AddedTokenJson(5, std::string(2000, 'x'))})),
                {"added_tokens[0].content", "2000 bytes"});
}

}  // namespace
}  // namespace granule::text
