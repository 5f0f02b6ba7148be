#include "base/format.h"

#include <gtest/gtest.h>

namespace granule {
namespace {

TEST(Format, FollowsFmt) {
  EXPECT_EQ(Format("{} of {:>4}|{:.2f}", "a", 17, 1.5), "a of   17|1.50");
}

TEST(Format, BytesForPeople) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(17), "17 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(640 * 1024), "640 KiB");
  EXPECT_EQ(FormatBytes(3 * 512 * 1024), "1.5 MiB");
  EXPECT_EQ(FormatBytes(uint64_t{1} << 40), "1 TiB");
  EXPECT_EQ(FormatBytes(~uint64_t{0}), "16 EiB");
}

}  // namespace
}  // namespace granule
