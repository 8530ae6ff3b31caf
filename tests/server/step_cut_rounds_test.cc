#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/random.h"
#include "kernels/grid/reselect_sums.h"
#include "tests/server/scripted_cluster.h"

/// Reproducible jobs that re-select, at shards. The same contributions give the same updates for any number of shards,
/// any division of the tensor and any order of messages. Also tests the effect of a lost message.
namespace millrace::server {
namespace {

constexpr uint64_t kStepCutRoundsDimension = 13'000;
constexpr uint32_t kBlock = 512;
constexpr uint32_t kStepCutRoundsWorkers = 3;
constexpr uint64_t kK = 400;
constexpr uint64_t kSteps = 6;

protocol::JobSpec step_cut_rounds_job(uint32_t parts_per_shard) {
  protocol::JobSpec spec = ScriptedCluster::small_job(kStepCutRoundsWorkers, kStepCutRoundsDimension);
  spec.select = {.selection = SelectionId::kTopK, .density = 0.1};
  spec.reselect = {.reselect = protocol::Reselect::kTopK, .k = kK};
  spec.parts_per_shard = parts_per_shard;
  spec.reproducible = true;
  spec.grid = {.block_indices = kBlock, .exponent_initial = -10};
  return spec;
}

/// On a grid, with few magnitudes: many ties at the boundary.
std::vector<float> step_cut_rounds_gradient(uint32_t worker, uint64_t step) {
  RandomSequence random(random_key(3, worker, step));
  std::vector<float> values(kStepCutRoundsDimension);
  for (float& value : values) {
    if (random.next_below(10) != 0) continue;
    value = std::ldexp(static_cast<float>(random.next_below(9)) - 4, -static_cast<int>(random.next_below(4)));
  }
  return values;
}

std::vector<float> sum_of(uint64_t step) {
  std::vector<float> sum(kStepCutRoundsDimension);
  for (uint32_t worker = 0; worker < kStepCutRoundsWorkers; ++worker) {
    const std::vector<float> one = step_cut_rounds_gradient(worker, step);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += one[i];
  }
  return sum;
}

/// The rule, slowly: of step t the k largest by the counts of step t - 1, windows sharing the boundary bin.
std::vector<float> expected_update(uint64_t step) {
  std::vector<float> sum = sum_of(step);
  if (step == 0) return sum;
  std::vector<uint32_t> bins;
  for (const float value : sum_of(step - 1)) {
    if (value != 0) bins.push_back(SumHistogram::bin_of(value));
  }
  if (bins.size() <= kK) return sum;
  std::ranges::sort(bins, std::greater<>());
  const uint32_t boundary = bins[kK - 1];
  const auto in_bin = static_cast<uint64_t>(std::ranges::count(bins, boundary));
  const auto take = kK - static_cast<uint64_t>(std::ranges::count_if(bins, [&](uint32_t b) { return b > boundary; }));
  for (size_t begin = 0; begin < sum.size(); begin += kBlock) {
    const auto window = std::span(sum).subspan(begin, std::min<size_t>(kBlock, sum.size() - begin));
    const auto ties = static_cast<uint64_t>(
        std::ranges::count_if(window, [&](float v) { return SumHistogram::bin_of(v) == boundary; }));
    uint64_t quota = (ties * take + in_bin / 2) / in_bin;
    for (float& value : window) {
      const uint32_t bin = SumHistogram::bin_of(value);
      const bool stays = bin > boundary || (bin == boundary && quota > 0);
      quota -= bin == boundary && quota > 0 ? 1 : 0;
      if (!stays) value = 0;
    }
  }
  return sum;
}

/// Pushes a step's contributions in a random order, and runs the resulting tasks in another.
void push_all(ScriptedCluster& cluster, uint64_t step, RandomSequence& random) {
  std::vector<std::pair<uint32_t, uint32_t>> order;
  for (uint32_t worker = 0; worker < kStepCutRoundsWorkers; ++worker) {
    for (const protocol::PartLayout& part : cluster.layout().parts) order.emplace_back(worker, part.part);
  }
  for (size_t at = order.size(); at > 1; --at) std::swap(order[at - 1], order[random.next_below(at)]);
  cluster.hold_tasks = true;
  for (const auto& [worker, number] : order) {
    const protocol::PartLayout& part = cluster.layout().parts[number];
    const std::vector<float> all = step_cut_rounds_gradient(worker, step);
    const std::vector<float> range(all.begin() + static_cast<ptrdiff_t>(part.begin),
                                   all.begin() + static_cast<ptrdiff_t>(part.end));
    cluster.send(ScriptedCluster::peer(worker), part.shard,
                 cluster.contribution(worker, number, step, cluster.payload(range), part.shard));
  }
  while (!cluster.held_tasks().empty()) cluster.run_held_task(random.next_below(cluster.held_tasks().size()));
}

TEST(StepCutRounds, UpdatesAreTheSameForAnyShardsPartsAndOrder) {
  for (const uint32_t shards : {1U, 2U, 3U}) {
    for (const uint32_t parts : {1U, 2U, 3U, 7U}) {
      SCOPED_TRACE(std::to_string(shards) + " shards of " + std::to_string(parts) + " parts");
      ScriptedCluster cluster(step_cut_rounds_job(parts), shards);
      ASSERT_NO_FATAL_FAILURE(cluster.join_all());
      for (const protocol::PartLayout& part : cluster.layout().parts) ASSERT_EQ(part.begin % kBlock, 0U);
      RandomSequence random(random_key(8, shards, parts));
      for (uint64_t step = 0; step < kSteps; ++step) {
        push_all(cluster, step, random);
        const auto gathered = cluster.gather(0, step);
        ASSERT_EQ(gathered.parts, cluster.layout().parts.size()) << step;
        ASSERT_TRUE(gathered.dense == expected_update(step)) << step;
        if (step > 0) {
          ASSERT_LT(gathered.entries, 3 * kK);
        }
        for (uint32_t worker = 0; worker < kStepCutRoundsWorkers; ++worker) {
          cluster.gather(worker, step);
          cluster.ack(worker, step + 1);
        }
      }
    }
  }
}

TEST(StepCutRounds, WithoutTheOptionTheNumberOfShardsShows) {
  std::vector<std::vector<float>> updates;
  for (const uint32_t shards : {1U, 3U}) {
    protocol::JobSpec spec = step_cut_rounds_job(1);
    spec.reproducible = false;
    spec.grid = {};
    ScriptedCluster cluster(spec, shards);
    ASSERT_NO_FATAL_FAILURE(cluster.join_all());
    RandomSequence random(random_key(9));
    push_all(cluster, 0, random);
    updates.push_back(cluster.gather(0, 0).dense);
  }
  EXPECT_NE(updates[0], updates[1]);
}

TEST(StepCutRounds, ASilentShardBlocksTheOthersUntilItReturns) {
  ScriptedCluster cluster(step_cut_rounds_job(2), 3);
  ASSERT_NO_FATAL_FAILURE(cluster.join_all());
  RandomSequence random(random_key(10));
  cluster.mute.insert(1);
  push_all(cluster, 0, random);
  EXPECT_EQ(cluster.gather(0, 0).parts, cluster.layout().parts.size());
  push_all(cluster, 1, random);
  cluster.pass(5'000);
  while (!cluster.held_tasks().empty()) cluster.run_held_task(0);
  // Shard 1 hears the others and continues; they wait, regardless of the time that passes.
  EXPECT_EQ(cluster.gather(0, 1).parts, cluster.layout().parts.size() / 3);
  cluster.mute.clear();
  cluster.pass(1'000);
  while (!cluster.held_tasks().empty()) cluster.run_held_task(0);
  const auto others = cluster.gather(1, 1);
  EXPECT_EQ(others.parts, cluster.layout().parts.size());
  EXPECT_TRUE(others.dense == expected_update(1));
}

}  // namespace
}  // namespace millrace::server
