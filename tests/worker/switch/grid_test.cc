#include "worker/switch/integer_limit.h"

#include <gtest/gtest.h>

namespace millrace::worker {
namespace {

using protocol::WindowValueCodec;

TEST(Grid, LimitLeavesRoomForAllWorkersSumsInAnI32) {
  for (uint32_t workers = 1; workers <= 64; ++workers) {
    EXPECT_LE(int64_t{grid_limit(WindowValueCodec::kFixed32, workers)} * workers, INT32_MAX);
    EXPECT_EQ(grid_limit(WindowValueCodec::kFixed16, workers), INT16_MAX);
  }
  EXPECT_EQ(grid_limit(WindowValueCodec::kFixed32, 1), 1 << 30);
}

}  // namespace
}  // namespace millrace::worker
