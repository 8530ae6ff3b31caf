#include "worker/bench/rounds/crowd.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace millrace::bench {
namespace {

constexpr CrowdRow kFirst{.workers = 4, .round_ms = 2, .bytes_up = 256, .bytes_down = 256, .shard_memory_bytes = 4096};

TEST(CompareCrowd, TakesTheTimeOfAByteBesideTheFirstRows) {
  // Four times the workers and half as many bytes again a worker are six times the bytes, in twelve times the time.
  const CrowdRow row{.workers = 16, .round_ms = 24, .bytes_up = 256, .bytes_down = 512, .shard_memory_bytes = 4096};
  EXPECT_EQ(compare_crowd(row, kFirst, 2)["time_per_byte_over_first"], 2.0);
}

TEST(CompareCrowd, CrowdRows_MemoryOfWorkersBeyondTheFirstRowBesideVolume) {
  const CrowdRow row{
      .workers = 12, .round_ms = 2, .bytes_up = 256, .bytes_down = 256, .shard_memory_bytes = 4096 + 8 * 512};
  const nlohmann::json compared = compare_crowd(row, kFirst, 2);
  EXPECT_EQ(compared["memory_a_worker_bytes"], 512.0);
  EXPECT_EQ(compared["memory_over_stream"], 2.0);
  EXPECT_EQ(compared["memory_over_stream_here"], 4.0);
}

TEST(CompareCrowd, OfTheFirstRowHasNoMemoryOfMoreWorkers) {
  const nlohmann::json compared = compare_crowd(kFirst, kFirst, 2);
  EXPECT_EQ(compared["time_per_byte_over_first"], 1.0);
  EXPECT_FALSE(compared.contains("memory_over_stream"));
}

}  // namespace
}  // namespace millrace::bench
