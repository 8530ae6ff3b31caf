#include <gtest/gtest.h>

#include "worker/program/units.h"

namespace millrace::program {
namespace {

TEST(Units, DurationsForAPerson) {
  EXPECT_EQ(rounded_duration_text(0), "0");
  EXPECT_EQ(rounded_duration_text(1.5e-9), "1.5 ns");
  EXPECT_EQ(rounded_duration_text(0.00123), "1.23 ms");
  EXPECT_EQ(rounded_duration_text(12.345), "12.3 s");
}

}  // namespace
}  // namespace millrace::program
