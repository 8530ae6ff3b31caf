// Runs the seeds of the fuzzer of a worker's core. The fuzzer ends the process if its session does not begin to run.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "tests/fuzz/updates_said.h"
#include "tests/support/tree_paths.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace millrace {
namespace {

// Choices that are all 1 take no exception of the fuzzer: both shards welcome the worker.
TEST(FuzzedSession, PlainChoicesLeadPastTheHandshake) {
  const std::vector<uint8_t> choices(256, 1);
  EXPECT_EQ(LLVMFuzzerTestOneInput(choices.data(), choices.size()), 0);
}

TEST(FuzzedSession, EverySeedPasses) {
  size_t seeds = 0;
  for (const auto& entry : std::filesystem::directory_iterator(source_file("tests/fuzz/corpus/session_core_fuzz"))) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
    const std::vector<uint8_t> choices(bytes.begin(), bytes.end());
    EXPECT_EQ(LLVMFuzzerTestOneInput(choices.data(), choices.size()), 0) << entry.path();
    ++seeds;
  }
  EXPECT_GT(seeds, 0u);
}

TEST(FuzzedSession, TheYoungestUpdateOfAStepHasResolvedIt) {
  const auto update = [](uint32_t part, uint64_t step) {
    worker::DeliveredUpdate one;
    one.part = part;
    one.step = step;
    return one;
  };
  const std::vector<worker::DeliveredUpdate> delivered = {update(1, 4), update(1, 5)};
  std::vector<worker::DeliveredUpdate> held = {update(1, 5), update(1, 5), update(1, 5), update(0, 5)};
  held[2].delivered_before = true;
  EXPECT_EQ(testing::UpdatesSaid::youngest(delivered, held, 1, 5), &held[1]);
  EXPECT_EQ(testing::UpdatesSaid::youngest(delivered, held, 1, 4), &delivered[0]);
  EXPECT_EQ(testing::UpdatesSaid::youngest(delivered, held, 0, 4), nullptr);
}

}  // namespace
}  // namespace millrace
