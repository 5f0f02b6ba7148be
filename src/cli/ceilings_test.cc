#include "cli/ceilings.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

namespace granule::cli {
namespace {

class CeilingsTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        std::filesystem::temp_directory_path() / ("granule-ceilings-" + std::to_string(getpid()));
    std::filesystem::remove_all(folder_);
    path_ = folder_ / "deep/er/ceilings.json";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path folder_;
  std::filesystem::path path_;
};

TEST_F(CeilingsTest, KeepsOtherRecordsAndReplacesTheSameKey) {
  ASSERT_TRUE(ReadCeilings(path_).ok());
  EXPECT_TRUE(ReadCeilings(path_)->empty());
  ASSERT_TRUE(
      StoreCeilings(path_, {{"A", 1, Isa::kAvx2, 1.5e10, 1e11}, {"A", 2, Isa::kAvx2, 3e10, 2e11}})
          .ok());
  ASSERT_TRUE(
      StoreCeilings(path_, {{"A", 2, Isa::kAvx2, 4e10, 2e11}, {"A", 2, Isa::kAvx512, 5e10, 4e11}})
          .ok());
  const Result<std::vector<Ceiling>> all = ReadCeilings(path_);
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(all->size(), 3u);
  EXPECT_EQ(FindCeiling(*all, "A", 1, Isa::kAvx2)->read_bytes_per_second, 1.5e10);
  EXPECT_EQ(FindCeiling(*all, "A", 2, Isa::kAvx2)->read_bytes_per_second, 4e10);
  EXPECT_EQ(FindCeiling(*all, "A", 2, Isa::kAvx512)->fma_flops_per_second, 4e11);
  EXPECT_FALSE(FindCeiling(*all, "B", 2, Isa::kAvx2).has_value());
  EXPECT_FALSE(FindCeiling(*all, "A", 3, Isa::kAvx2).has_value());
}

TEST_F(CeilingsTest, AForeignFileIsToldAndReplaced) {
  std::filesystem::create_directories(path_.parent_path());
  for (const char* text : {"", "{", "[]", "{\"records\": 5}", "null", "\xff\xfe"}) {
    std::ofstream(path_) << text;
    const Result<std::vector<Ceiling>> read = ReadCeilings(path_);
    ASSERT_FALSE(read.ok()) << text;
    EXPECT_NE(read.status().message().find("granule doctor"), std::string::npos);
  }
  ASSERT_TRUE(StoreCeilings(path_, {{"A", 1, Isa::kAvx2, 1e10, 1e11}}).ok());
  EXPECT_EQ(ReadCeilings(path_)->size(), 1u);
}

TEST_F(CeilingsTest, RecordsThatMakeNoSenseAreSkipped) {
  std::filesystem::create_directories(path_.parent_path());
  std::ofstream(path_) << R"({"version":1,"records":[7,{"cpu":"A"},
    {"cpu":"A","threads":1,"isa":"mmx","read_bytes_per_second":1},
    {"cpu":"A","threads":1,"isa":"avx2","read_bytes_per_second":-1},
    {"cpu":"A","threads":"1","isa":"avx2","read_bytes_per_second":1},
    {"cpu":"A","threads":4,"isa":"avx2","read_bytes_per_second":2e9}]})";
  const Result<std::vector<Ceiling>> read = ReadCeilings(path_);
  ASSERT_TRUE(read.ok());
  ASSERT_EQ(read->size(), 1u);
  EXPECT_EQ(read->front().threads, 4);
}

TEST_F(CeilingsTest, AFolderThatCannotBeMadeIsAnErrorInWords) {
  std::filesystem::create_directories(folder_);
  std::ofstream(folder_ / "file") << "x";
  const Status s = StoreCeilings(folder_ / "file/granule/ceilings.json", {});
  EXPECT_EQ(s.code(), Code::kExhausted);
  EXPECT_NE(s.message().find("file/granule"), std::string::npos);
  EXPECT_EQ(StoreCeilings({}, {}).code(), Code::kExhausted);
}

TEST(CeilingsPath, FollowsTheXdgSpecification) {
  setenv("HOME", "/nowhere/somebody", 1);
  setenv("XDG_CACHE_HOME", "/var/cache", 1);
  EXPECT_EQ(CeilingsPath(), "/var/cache/granule/ceilings.json");
  setenv("XDG_CACHE_HOME", "relative", 1);
  EXPECT_EQ(CeilingsPath(), "/nowhere/somebody/.cache/granule/ceilings.json");
  unsetenv("XDG_CACHE_HOME");
  EXPECT_EQ(CeilingsPath(), "/nowhere/somebody/.cache/granule/ceilings.json");
  unsetenv("HOME");
  EXPECT_EQ(CeilingsPath(), "");
}

}  // namespace
}  // namespace granule::cli
