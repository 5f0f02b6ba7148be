#include "base/status.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>

namespace granule {
namespace {

TEST(Status, OkIsTheDefault) {
  const Status status;
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.code(), Code::kOk);
  EXPECT_EQ(status.message(), "");
  EXPECT_TRUE(status.In("anywhere").ok());
}

TEST(Status, CarriesWordsAndGainsContext) {
  const Status status = InvalidInput("expected {}, found {}", 3, "four");
  EXPECT_EQ(status.code(), Code::kInvalidInput);
  EXPECT_EQ(status.message(), "expected 3, found four");
  EXPECT_EQ(status.In("model.onnx").message(), "model.onnx: expected 3, found four");
  EXPECT_EQ(status.In("model.onnx").code(), Code::kInvalidInput);
}

TEST(Status, ExitCodesOfTheCommandLine) {
  EXPECT_EQ(ExitCode(Code::kOk), 0);
  EXPECT_EQ(ExitCode(Code::kUsage), 2);
  EXPECT_EQ(ExitCode(Code::kInvalidInput), 3);
  EXPECT_EQ(ExitCode(Code::kCapacityExceeded), 3);
  EXPECT_EQ(ExitCode(Code::kExhausted), 4);
  EXPECT_EQ(ExitCode(Code::kUnavailable), 4);
  EXPECT_EQ(ExitCode(Code::kPoisoned), 4);
  EXPECT_EQ(ExitCode(Code::kInterrupted), 130);
  EXPECT_EQ(ExitCode(Code::kInternal), 1);
  EXPECT_EQ(ExitCode(static_cast<Code>(99)), 1);
}

TEST(Status, EveryCodeHasItsOwnName) {
  std::set<std::string> names;
  for (int code = 0; code <= static_cast<int>(Code::kInternal); ++code) {
    names.insert(CodeName(static_cast<Code>(code)));
  }
  EXPECT_EQ(names.size(), static_cast<size_t>(Code::kInternal) + 1);
  EXPECT_EQ(names.count("unknown"), 0u);
}

TEST(Result, HoldsAValueOrAReason) {
  Result<std::unique_ptr<int>> value = std::make_unique<int>(7);
  ASSERT_TRUE(value.ok());
  EXPECT_EQ(**value, 7);
  const std::unique_ptr<int> taken = *std::move(value);
  EXPECT_EQ(*taken, 7);
  const Result<int> error = InvalidInput("no");
  EXPECT_FALSE(error.ok());
  EXPECT_EQ(error.status().message(), "no");
}

TEST(ResultDeathTest, ReadingAValueThatIsNotThereTripsACheck) {
  const Result<int> error = InvalidInput("no");
  EXPECT_DEATH((void)*error, "this must hold");
  EXPECT_DEATH(Status(Code::kOk, "x"), "this must hold");
}

}  // namespace
}  // namespace granule
