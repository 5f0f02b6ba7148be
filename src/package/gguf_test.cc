#include "package/gguf.h"

#include <gtest/gtest.h>

#include "package/gguf_test_files.h"

namespace granule::package {
namespace {

using namespace testing;  // NOLINT: the builders of this folder's tests

std::string Refusal(const std::string& file) {
  Result<GgufFile> parsed = ParseGguf(Bytes(file));
  return parsed.ok() ? "accepted" : parsed.status().message();
}

// Every text must be in the message.
void ExpectRefused(const std::string& file, const std::vector<std::string>& words) {
  const std::string message = Refusal(file);
  for (const std::string& word : words)
    EXPECT_NE(message.find(word), std::string::npos) << word << "\nin: " << message;
}

TEST(Gguf, ReadsEveryValueType) {
  const std::string file = GgufBuilder()
                               .Add(Entry("u8", 0, Raw<uint8_t>(200)))
                               .Add(Entry("i8", 1, Raw<int8_t>(-5)))
                               .Add(Entry("u16", 2, Raw<uint16_t>(60000)))
                               .Add(Entry("i16", 3, Raw<int16_t>(-6)))
                               .Add(Entry("u32", 4, Raw<uint32_t>(4000000000u)))
                               .Add(Entry("i32", 5, Raw<int32_t>(-7)))
                               .Add(F32("f32", 1.5f))
                               .Add(Bool("bool", true))
                               .Add(Str("text", "hello"))
                               .Add(Entry("u64", 10, Raw<uint64_t>(~uint64_t{0})))
                               .Add(Entry("i64", 11, Raw<int64_t>(-8)))
                               .Add(Entry("f64", 12, Raw<double>(2.5)))
                               .Build();
  Result<GgufFile> parsed = ParseGguf(Bytes(file));
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  const std::pair<const char*, int64_t> ints[] = {{"u8", 200}, {"i8", -5},          {"u16", 60000},
                                                  {"i16", -6}, {"u32", 4000000000}, {"i32", -7},
                                                  {"i64", -8}};
  for (const auto& [key, value] : ints) EXPECT_EQ(**parsed->Int(key), value) << key;
  EXPECT_EQ(**parsed->Float("f32"), 1.5);
  EXPECT_EQ(**parsed->Float("f64"), 2.5);
  EXPECT_TRUE(**parsed->Bool("bool"));
  EXPECT_EQ(**parsed->String("text"), "hello");
  EXPECT_FALSE(parsed->Int("absent")->has_value());
  EXPECT_EQ(parsed->Int("u64").status().message(),
            "metadata \"u64\" is uint64; an integer is expected");
  EXPECT_EQ(parsed->Float("text").status().message(),
            "metadata \"text\" is string; a floating-point number is expected");
  EXPECT_FALSE(parsed->Bool("u8").ok());
  EXPECT_FALSE(parsed->String("u8").ok());
}

TEST(Gguf, ReadsArrays) {
  const std::string nested = Raw<uint32_t>(9) + Raw<uint64_t>(2) + Raw<uint32_t>(0) +
                             Raw<uint64_t>(1) + "x" + Raw<uint32_t>(8) + Raw<uint64_t>(1) +
                             Text("deep");
  const std::string file = GgufBuilder()
                               .Add(Strings("s", {"a", "", "bc"}))
                               .Add(I32s("i", {-1, 2}))
                               .Add(Entry("n", 9, nested))
                               .Build();
  Result<GgufFile> parsed = ParseGguf(Bytes(file));
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ(*parsed->Find("s")->AsStrings(), (std::vector<std::string_view>{"a", "", "bc"}));
  EXPECT_EQ(*parsed->Find("i")->AsInts(), (std::vector<int64_t>{-1, 2}));
  EXPECT_EQ(parsed->Find("n")->TypeText(), "array of array");
  EXPECT_FALSE(parsed->Find("n")->AsInts());
  EXPECT_FALSE(parsed->Find("s")->AsInts());
  EXPECT_FALSE(parsed->Find("i")->AsStrings());
  EXPECT_FALSE(parsed->Find("i")->AsInt());
}

TEST(Gguf, PlacesTensorsAtTheAlignment) {
  for (uint32_t version : {2u, 3u}) {
    std::string file = Head(2, 1, version) + U32("general.alignment", 64) +
                       TensorInfo("a", {2, 3}, 0, 0) + TensorInfo("b", {32, 1, 2}, 8, 64);
    const size_t start = (file.size() + 63) / 64 * 64;
    file.resize(start + 64 + 68, '\1');
    Result<GgufFile> parsed = ParseGguf(Bytes(file));
    ASSERT_TRUE(parsed.ok()) << parsed.status().message();
    EXPECT_EQ(parsed->version, version);
    const GgufTensor* a = parsed->FindTensor("a");
    const GgufTensor* b = parsed->FindTensor("b");
    EXPECT_EQ(a->bytes.data(), Bytes(file).data() + start);
    EXPECT_EQ(a->bytes.size(), 24u);
    EXPECT_EQ(b->bytes.data(), Bytes(file).data() + start + 64);
    EXPECT_EQ(b->bytes.size(), 68u);
    EXPECT_EQ(b->row(), 32);
    EXPECT_EQ(b->rows(), 2);
    file.pop_back();
    ExpectRefused(file, {"\"b\"", "past the end"});
  }
}

// R37, appendix C: the field and its value are named.
TEST(Gguf, RefusesLies) {
  const std::string arch = Str("general.architecture", "llama");
  const auto info = [](const std::vector<uint64_t>& dims, uint32_t type = 0, uint64_t offset = 0) {
    return TensorInfo("token_embd.weight", dims, type, offset);
  };
  const uint64_t m = (uint64_t{1} << 63) - 1;
  ExpectRefused("GGUX" + Head(0, 0).substr(4), {"\"GGUX\"", "\"GGUF\""});
  ExpectRefused(Head(1, 1).substr(0, 20), {"ends early", "metadata count"});
  ExpectRefused(Head(m / 100, 1) + arch, {"tensor count", "92233720368547758"});
  ExpectRefused(Head(~uint64_t{0}, 1) + arch, {"tensor count", "18446744073709551615", "-1"});
  ExpectRefused(Head(0, ~uint64_t{0}) + arch, {"metadata count", "-1"});
  ExpectRefused(Head(0, 1) + Raw<uint64_t>(~uint64_t{0} - 7) + "x",
                {"metadata key 0", "18446744073709551608"});
  ExpectRefused(Head(0, 1) + Text("tokenizer.ggml.tokens") + Raw<uint32_t>(9) + Raw<uint32_t>(8) +
                    Raw<uint64_t>(1ull << 60),
                {"tokenizer.ggml.tokens", "1152921504606846976"});
  ExpectRefused(Head(1, 1) + arch + info({m, 2, 1, 1}, 24),
                {"token_embd.weight", "dimension 1 = 2"});
  ExpectRefused(Head(1, 1) + arch + info({1ull << 32, 1ull << 32}),
                {"token_embd.weight", "dimension 1 = 4294967296"});
  ExpectRefused(Head(1, 1) + arch + info({~uint64_t{0}, 32}),
                {"dimension 0", "token_embd.weight", "-1"});
  ExpectRefused(Head(1, 1) + arch + info({2, 2, 2, 2, 2}), {"token_embd.weight", "5 dimensions"});
  ExpectRefused(Head(1, 1) + arch + info({32, 32}, 9999), {"token_embd.weight", "type 9999"});
  ExpectRefused(Head(1, 1) + arch + info({32, 32}, 0, 1ull << 40),
                {"token_embd.weight", "1099511627776"});
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += Raw<uint32_t>(9) + Raw<uint64_t>(1);
  ExpectRefused(Head(0, 1) + Text("x") + Raw<uint32_t>(9) + deep,
                {"\"x\"", "nests arrays deeper than 4"});
  ExpectRefused(Head(0, 2) + arch + U32("general.alignment", 0), {"general.alignment", "is 0"});
}

TEST(Gguf, RefusesWhatElseCannotBe) {
  ExpectRefused("", {"is empty"});
  ExpectRefused("GG", {"\"GG\""});
  ExpectRefused("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1234\n",
                {"Git LFS", "1234"});
  ExpectRefused("GGUF" + Raw<uint32_t>(1) + std::string(16, '\0'), {"version 1"});
  ExpectRefused("GGUF" + Raw<uint32_t>(0x03000000) + std::string(16, '\0'), {"byte order", "3"});
  ExpectRefused(Head(0, 1) + Text("") + Raw<uint32_t>(0) + "xx", {"key 0 is empty"});
  ExpectRefused(Head(0, 1) + Entry("k", 13, "xxxxxxxx"), {"\"k\"", "value type 13"});
  ExpectRefused(Head(0, 1) + Entry("k", 9, Raw<uint32_t>(99) + Raw<uint64_t>(0)),
                {"\"k\"", "value type 99"});
  ExpectRefused(Head(0, 1) + Entry("k", 4, "xx"), {"\"k\"", "needs 4 bytes"});
  ExpectRefused(Head(0, 1) + Entry("k", 8, Raw<uint64_t>(100) + "x"), {"\"k\"", "length 100"});
  ExpectRefused(Head(0, 1) + Entry("k", 9, Raw<uint32_t>(4) + Raw<uint64_t>(1ull << 62)),
                {"\"k\"", "4611686018427387904"});
  ExpectRefused(Head(0, 1) + Entry("k", 9, Raw<uint32_t>(8) + Raw<uint64_t>(1) + Raw<uint64_t>(9)),
                {"\"k\"[0]", "length 9"});
  ExpectRefused(Head(0, 2) + U32("k", 1) + U32("k", 2), {"\"k\" appears twice"});
  ExpectRefused(Head(0, 1) + U32("general.alignment", 24), {"general.alignment", "24"});
  ExpectRefused(Head(0, 1) + Str("general.alignment", "32"), {"general.alignment", "string"});
  ExpectRefused(Head(1, 0) + TensorInfo("t", {}, 0, 0) + std::string(64, '\0'),
                {"\"t\"", "0 dimensions"});
  ExpectRefused(Head(1, 0) + TensorInfo("t", {4, 0}, 0, 0) + std::string(64, '\0'),
                {"dimension 1", "is 0"});
  ExpectRefused(Head(1, 0) + TensorInfo("", {4}, 0, 0) + std::string(64, '\0'),
                {"name of tensor 0 is empty"});
  ExpectRefused(Head(1, 0) + TensorInfo("t", {33}, 2, 0) + std::string(64, '\0'),
                {"\"t\"", "Q4_0", "33", "32"});
  ExpectRefused(Head(1, 0) + TensorInfo("t", {1ull << 62}, 0, 0) + std::string(64, '\0'),
                {"\"t\"", "4611686018427387904"});
  ExpectRefused(Head(1, 0) + TensorInfo("t", {4}, 0, 5) + std::string(64, '\0'),
                {"\"t\"", "offset 5", "32"});
  ExpectRefused(
      Head(2, 0) + TensorInfo("t", {4}, 0, 0) + TensorInfo("t", {4}, 0, 0) + std::string(64, '\0'),
      {"\"t\" appears twice"});
  ExpectRefused(Head(1, 0) + TensorInfo("t", {4}, 0, 0), {"\"t\"", "past the end"});
  ExpectRefused(Head(1, 0) + TensorInfo("t", {4}, 0, ~uint64_t{31}) + std::string(64, '\0'),
                {"\"t\"", "-32"});
}

// Cut anywhere, a good file is refused and not misread.
TEST(Gguf, RefusesEveryPrefix) {
  const std::string file = TinyLlama().Build();
  ASSERT_EQ(Refusal(file), "accepted");
  for (size_t n = 0; n < 2000; ++n) EXPECT_NE(Refusal(file.substr(0, n)), "accepted") << n;
}

TEST(Gguf, NamesAreShownWithoutTheirBadBytes) {
  ExpectRefused(Head(0, 2) + U32("k\n\xff", 1) + U32("k\n\xff", 2), {"\"k\?\?\" appears twice"});
  ExpectRefused(Head(0, 2) + U32(std::string(200, 'k'), 1) + U32(std::string(200, 'k'), 2),
                {std::string(80, 'k') + "…\""});
}

}  // namespace
}  // namespace granule::package
