#include <gtest/gtest.h>

#include "worker/program/units.h"

namespace millrace::program {
namespace {

TEST(Units, Durations) {
  EXPECT_EQ(parse_duration("250ns").value(), 250);
  EXPECT_EQ(parse_duration("1.5us").value(), 1'500);
  EXPECT_EQ(parse_duration("20ms").value(), 20'000'000);
  EXPECT_EQ(parse_duration("2s").value(), 2'000'000'000);
  EXPECT_EQ(parse_duration("0us").value(), 0);
  for (const char* bad : {"", "1", "us", "-1us", "1h", "1 us", "nanus", "infs", "1e9s", "1us "}) {
    const auto parsed = parse_duration(bad);
    ASSERT_FALSE(parsed.has_value()) << bad;
    EXPECT_EQ(parsed.error().code, ErrorCode::kInvalidArgument);
  }
}

TEST(Units, Rates) {
  EXPECT_DOUBLE_EQ(parse_rate("10gbit").value(), 1.25e9);
  EXPECT_DOUBLE_EQ(parse_rate("2.5mbit").value(), 312'500);
  EXPECT_DOUBLE_EQ(parse_rate("800kbit").value(), 100'000);
  for (const char* bad : {"", "1", "gbit", "-1gbit", "0gbit", "0.5kbit", "99999gbit", "1Gbit", "nangbit"}) {
    const auto parsed = parse_rate(bad);
    ASSERT_FALSE(parsed.has_value()) << bad;
    EXPECT_EQ(parsed.error().code, ErrorCode::kInvalidArgument);
  }
}

TEST(Units, DurationsForAPerson) {
  EXPECT_EQ(duration_text(0), "0");
  EXPECT_EQ(duration_text(1.5e-9), "1.5 ns");
  EXPECT_EQ(duration_text(0.00123), "1.23 ms");
  EXPECT_EQ(duration_text(12.345), "12.3 s");
}

}  // namespace
}  // namespace millrace::program
