#include "kernels/base/units.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

namespace millrace {
namespace {

struct UnitCase {
  const char* text;
  double value;
};

TEST(Units, DurationsAreNanoseconds) {
  for (const UnitCase& one :
       {UnitCase{"0s", 0}, UnitCase{"0ns", 0}, UnitCase{"250ns", 250}, UnitCase{"1.5us", 1'500},
        UnitCase{"1.1us", 1'100}, UnitCase{"20ms", 20e6}, UnitCase{"0.25s", 250e6}, UnitCase{"10s", 10e9},
        UnitCase{"1m", 60e9}, UnitCase{"90m", 5'400e9}, UnitCase{"2h", 7'200e9}, UnitCase{"720h", 2'592'000e9}}) {
    const auto parsed = duration_from_text(one.text);
    ASSERT_TRUE(parsed) << one.text;
    EXPECT_EQ(static_cast<double>(*parsed), one.value) << one.text;
    EXPECT_EQ(duration_from_text(duration_text(*parsed)), *parsed) << one.text;
  }
  EXPECT_DOUBLE_EQ(nanoseconds_from_text("0.4ns").value(), 0.4);
}

TEST(Units, AFractionOfANanosecondIsRefusedInEveryUnit) {
  for (const char* fraction :
       {"0.4ns", "0.0000001ns", "100000.4ns", "60000000.4ns", "60.0000004ms", "3600.0000000004s"})
    EXPECT_FALSE(duration_from_text(fraction)) << fraction;
  for (const UnitCase& one :
       {UnitCase{"2.3s", 2'300'000'000}, UnitCase{"1.000000001s", 1'000'000'001}, UnitCase{"0.000007ms", 7},
        UnitCase{"86400.000000001s", 86'400'000'000'001}, UnitCase{"0.1m", 6e9}}) {
    const auto parsed = duration_from_text(one.text);
    ASSERT_TRUE(parsed) << one.text << ": its decimals are not exact in binary";
    EXPECT_EQ(static_cast<double>(*parsed), one.value) << one.text;
  }
}

TEST(Units, AnInvalidDurationIsRefusedAndTheErrorListsTheUnits) {
  for (const char* bad : {"",
                          " ",
                          "0",
                          "1",
                          "10",
                          "us",
                          "s",
                          "-1us",
                          "-0s",
                          "+1s",
                          "1 us",
                          " 1s",
                          "1us ",
                          "1s\n",
                          "nans",
                          "nanus",
                          "infs",
                          "inf",
                          "1e9s",
                          "1e3ms",
                          "0x1s",
                          "1.2.3s",
                          ".s",
                          "1,5s",
                          "1sec",
                          "1min",
                          "1S",
                          "1MS",
                          "1d",
                          "721h",
                          "99999999999999999999h",
                          "1ms1s",
                          "10ss"}) {
    const auto parsed = duration_from_text(bad);
    ASSERT_FALSE(parsed) << bad;
    EXPECT_EQ(parsed.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(parsed.error().message.find("ns, us, ms, s, m or h"), std::string::npos) << parsed.error().message;
  }
}

TEST(Units, TextsOfDurationsAreExact) {
  EXPECT_EQ(duration_text(0), "0s");
  EXPECT_EQ(duration_text(1), "1ns");
  EXPECT_EQ(duration_text(1'500), "1500ns");
  EXPECT_EQ(duration_text(1'500 * kNsPerMs), "1500ms");
  EXPECT_EQ(duration_text(60 * kNsPerS), "1m");
  EXPECT_EQ(duration_text(90 * 60 * kNsPerS), "90m");
  EXPECT_EQ(duration_text(7'200 * kNsPerS), "2h");
}

TEST(Units, RatesAreBitsASecond) {
  for (const UnitCase& one :
       {UnitCase{"0bit", 0}, UnitCase{"0gbit", 0}, UnitCase{"9600bit", 9'600}, UnitCase{"800kbit", 8e5},
        UnitCase{"2.5mbit", 2.5e6}, UnitCase{"10gbit", 1e10}, UnitCase{"10000000gbit", 1e16}}) {
    const auto parsed = rate_from_text(one.text);
    ASSERT_TRUE(parsed) << one.text;
    EXPECT_DOUBLE_EQ(*parsed, one.value) << one.text;
    EXPECT_DOUBLE_EQ(rate_from_text(rate_text(*parsed)).value(), *parsed) << one.text;
  }
  EXPECT_EQ(rate_text(0), "0bit");
  EXPECT_EQ(rate_text(2.5e9), "2.5gbit");
  EXPECT_EQ(rate_text(999), "999bit");
  for (const char* bad : {"", " ", "0", "1", "1e9", "gbit", "-1gbit", "+1gbit", "1 gbit", "1gbit ", "1Gbit", "1GBIT",
                          "1gbps", "1g", "nangbit", "infgbit", "1e3mbit", "10000001gbit", "1.2.3mbit"}) {
    const auto parsed = rate_from_text(bad);
    ASSERT_FALSE(parsed) << bad;
    EXPECT_EQ(parsed.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(parsed.error().message.find("bit, kbit, mbit or gbit"), std::string::npos) << parsed.error().message;
  }
}

TEST(Units, SizesAreBytes) {
  struct SizeCase {
    const char* text;
    uint64_t bytes;
  };
  for (const SizeCase& one :
       {SizeCase{"0", 0}, SizeCase{"1472", 1'472}, SizeCase{"1472B", 1'472}, SizeCase{"1kB", 1'000},
        SizeCase{"10MB", 10'000'000}, SizeCase{"3GB", 3'000'000'000}, SizeCase{"2TB", 2'000'000'000'000},
        SizeCase{"1KiB", 1'024}, SizeCase{"64MiB", uint64_t{64} << 20}, SizeCase{"2GiB", uint64_t{2} << 30},
        SizeCase{"1TiB", uint64_t{1} << 40}, SizeCase{"4194304TiB", kSizeMax},
        SizeCase{"4611686018427387904", kSizeMax}}) {
    const auto parsed = size_from_text(one.text);
    ASSERT_TRUE(parsed) << one.text;
    EXPECT_EQ(*parsed, one.bytes) << one.text;
    EXPECT_EQ(size_from_text(size_text(*parsed)), one.bytes) << one.text;
  }
  EXPECT_EQ(size_text(0), "0B");
  EXPECT_EQ(size_text(1'500), "1500B");
  EXPECT_EQ(size_text(uint64_t{64} << 20), "64MiB");
  for (const char* bad : {"",
                          " ",
                          "B",
                          "MiB",
                          "-1",
                          "-1MiB",
                          "+1",
                          "1 MiB",
                          "1MiB ",
                          "1.5GiB",
                          "64M",
                          "64mb",
                          "64Mib",
                          "1KB",
                          "1e6",
                          "nan",
                          "inf",
                          "0x10",
                          "1PiB",
                          "4194305TiB",
                          "4611686018427387905",
                          "18446744073709551616",
                          "99999999999999999999TiB"}) {
    const auto parsed = size_from_text(bad);
    ASSERT_FALSE(parsed) << bad;
    EXPECT_EQ(parsed.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(parsed.error().message.find("as 64MiB"), std::string::npos) << parsed.error().message;
  }
}

TEST(Limits, AValueOutsideIsRefusedWithTheLimitsAsTheUserWritesThem) {
  EXPECT_TRUE(check_limits("1ms", kNsPerMs, kNsPerMs, kNsPerS, duration_text));
  EXPECT_TRUE(check_limits("1s", kNsPerS, kNsPerMs, kNsPerS, duration_text));
  const Status late = check_limits("2s", 2 * kNsPerS, kNsPerMs, kNsPerS, duration_text);
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().message, "'2s': it takes 1ms to 1s");
  EXPECT_EQ(late.error().code, ErrorCode::kInvalidArgument);
  const double unlimited = std::numeric_limits<double>::infinity();
  EXPECT_EQ(check_limits("-1bit", -1.0, 0.0, unlimited, rate_text).error().message, "'-1bit': it takes 0bit or more");
  EXPECT_FALSE(check_limits("nan", std::nan(""), 0.0, unlimited, rate_text));
  EXPECT_EQ(check_limits("9", uint64_t{9}, uint64_t{1}, uint64_t{8}, size_text).error().message,
            "'9': it takes 1B to 8B");
}

}  // namespace
}  // namespace millrace
