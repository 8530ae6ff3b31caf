// Alone in its program: speeds are measured once a process.
#include "protocol/container/codec_speeds.h"

#include <gtest/gtest.h>
#include <poll.h>

namespace millrace {
namespace {

TEST(CodecSpeeds, SpeedsSoFarAreTheFallbackUntilAnotherThreadMeasured) {
  {
    const SpeedMeasurer nobody_asks;
  }
  const SpeedMeasurer measurer;
  ASSERT_EQ(&speeds_so_far(), &fallback_speeds()) << "measured by this thread, or before any request";
  while (&speeds_so_far() == &fallback_speeds()) ::poll(nullptr, 0, 1);
  EXPECT_EQ(&speeds_so_far(), &measured_speeds());
  EXPECT_FALSE(measured_speeds().index.empty());
}

}  // namespace
}  // namespace millrace
