#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/worker/toys/toy_cluster.h"

/// The law under removals, shards that start again empty, and processes that begin with a save. Per index and over all
/// incarnations, each value that entered is applied, held, in flight or counted as lost, at every moment. At the end
/// all have the log's weights. Removals alone lose nothing.
namespace millrace::testing {
namespace {

constexpr uint64_t kSeeds = 6;

struct ReturnsConservationCase {
  const char* name;
  void (*bend)(ToyClusterOptions& options);
  bool may_lose = true;  ///< steps become void, or an update that carried a part of a contribution is gone
};

void PrintTo(const ReturnsConservationCase& test_case, std::ostream* out) { *out << test_case.name; }

class ReturnsConservation : public ::testing::TestWithParam<ReturnsConservationCase> {
 protected:
  static ToyClusterOptions options_of(uint64_t seed) {
    ToyClusterOptions options;
    options.spec = toy_spec(3, {240, 40});
    options.spec.select = {.selection = SelectionId::kTopK, .density = 0.1};
    options.spec.fuse_below = 1;
    options.spec.parts_per_shard = 2;
    options.shards = 2;
    options.seed = seed;
    options.returns = true;
    options.snapshot_rate = 0.3;
    return options;
  }

  /// All tensors of a worker, once, where it may. Values are positive, on a grid.
  static bool push_all(ToyCluster& cluster, uint32_t worker, RandomSequence& random) {
    worker::SessionCore& core = cluster.core(worker);
    const auto tensors = static_cast<uint32_t>(core.spec().tensors.size());
    for (uint32_t tensor = 0; tensor < tensors; ++tensor) {
      if (core.error() || core.steps_pushed(tensor) >= core.steps_allowed(tensor)) return false;
      if (core.steps_pushed(tensor) != core.steps_pushed(0)) return false;
    }
    for (uint32_t tensor = 0; tensor < tensors; ++tensor) {
      const uint64_t dimension = core.spec().tensors[tensor].dimension;
      std::vector<uint32_t> indices;
      std::vector<float> values;
      for (uint64_t i = random.next_below(12); i > 0; --i) {
        indices.push_back(static_cast<uint32_t>(random.next_below(dimension)));
        values.push_back(0.125f * static_cast<float>(1 + random.next_below(32)));
      }
      EXPECT_TRUE(core.push_sparse(tensor, indices, values, 1, cluster.now()).has_value());
    }
    return true;
  }

  static void expect_lawful(ToyCluster& cluster, const std::string& where) {
    for (uint32_t bucket = 0; bucket < cluster.table().layout.buckets.size(); ++bucket) {
      const std::vector<double> imbalance = cluster.imbalance(bucket);
      for (size_t i = 0; i < imbalance.size(); ++i) {
        ASSERT_EQ(imbalance[i], 0.0) << where << ", bucket " << bucket << ", index " << i;
      }
    }
  }
};

TEST_P(ReturnsConservation, HoldsAtEveryMomentAndEveryWorkerRejoins) {
  ToyFaults faults;
  uint64_t steps = 0;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    ToyClusterOptions options = options_of(seed);
    GetParam().bend(options);
    ToyCluster cluster(options);
    RandomSequence random(random_key(seed, 98));
    for (uint32_t shard = 0; options.spec.reselect.reselect != protocol::Reselect::kNone && shard < 2; ++shard)
      cluster.shard(shard).carry = [&random](uint32_t, uint64_t, uint64_t) { return random.next_below(3) != 0; };
    const std::string where = "seed " + std::to_string(seed);
    for (uint64_t i = 0; i < 12'000; ++i) {
      cluster.step();
      if (i % 7 == 0) push_all(cluster, static_cast<uint32_t>(random.next_below(3)), random);
      if (i % 97 == 0) expect_lawful(cluster, where + ", move " + std::to_string(i));
      if (HasFatalFailure()) return;
    }
    cluster.stop_faults();
    uint64_t at = 0;
    for (; at < 60'000 && !cluster.at_rest(); ++at) {
      cluster.step();
      // A worker that is blocked on the others' steps gets them.
      bool somebody_waits = false;
      bool all_run = true;
      for (uint32_t worker = 0; worker < 3; ++worker) {
        somebody_waits |= cluster.core(worker).in_flight();
        all_run &= cluster.core(worker).phase() == worker::Phase::kRunning;
      }
      for (uint32_t worker = 0; worker < 3 && somebody_waits && all_run && at % 5 == 0; ++worker)
        if (!cluster.core(worker).in_flight()) push_all(cluster, worker, random);
    }
    for (uint32_t worker = 0; worker < 3; ++worker) {
      worker::SessionCore& core = cluster.core(worker);
      ASSERT_FALSE(core.error()) << where << ": " << core.error()->message;
      ASSERT_EQ(core.phase(), worker::Phase::kRunning) << where << ", worker " << worker << ": " << core.waiting_for();
    }
    ASSERT_TRUE(cluster.at_rest()) << where;
    expect_lawful(cluster, where + ", at the end");
    if (!GetParam().may_lose) {
      ASSERT_EQ(cluster.lost(), 0.0) << where;
    }
    ASSERT_EQ(cluster.complaints(), std::vector<std::string>()) << where;
    for (uint32_t part = 0; part < cluster.table().layout.parts.size(); ++part) {
      for (uint32_t worker = 0; worker < 3; ++worker) {
        ASSERT_EQ(cluster.weights(worker, part),
                  cluster.weights_of_log(part, cluster.core(worker).part_steps_applied(part)))
            << where << ", worker " << worker << ", part " << part;
      }
    }
    for (uint32_t bucket = 0; bucket < cluster.table().layout.buckets.size(); ++bucket)
      ASSERT_GE(cluster.least_loss(bucket), 0.0) << where << ": counted twice";
    faults.removals += cluster.faults().removals;
    faults.shard_crashes += cluster.faults().shard_crashes;
    faults.worker_crashes += cluster.faults().worker_crashes;
    faults.steps_voided += cluster.faults().steps_voided;
    steps += cluster.core(0).part_steps_applied(0);
  }
  EXPECT_GT(steps, 60u);
  const ToyClusterOptions bent = [] {
    ToyClusterOptions options;
    GetParam().bend(options);
    return options;
  }();
  EXPECT_EQ(faults.removals > 0, bent.remove_rate > 0);
  EXPECT_EQ(faults.shard_crashes > 0, bent.shard_crash_rate > 0);
  EXPECT_EQ(faults.worker_crashes > 0, bent.worker_crash_rate > 0);
}

INSTANTIATE_TEST_SUITE_P(
    Faults, ReturnsConservation,
    ::testing::Values(ReturnsConservationCase{"Removals", [](ToyClusterOptions& o) { o.remove_rate = 0.002; }, false},
                      ReturnsConservationCase{"RemovalsAhead",
                                              [](ToyClusterOptions& o) {
                                                o.remove_rate = 0.002;
                                                o.spec.staleness = 2;
                                                o.spec.reselect = {.reselect = protocol::Reselect::kTopK, .k = 5};
                                              }},
                      ReturnsConservationCase{"ShardCrashes", [](ToyClusterOptions& o) { o.shard_crash_rate = 0.002; }},
                      ReturnsConservationCase{"RemovalsAndShardCrashes",
                                              [](ToyClusterOptions& o) {
                                                o.remove_rate = o.shard_crash_rate = 0.001;
                                                o.spec.staleness = 1;
                                                o.disconnect_rate = 0.002;
                                              }},
                      ReturnsConservationCase{"WorkerCrashes",
                                              [](ToyClusterOptions& o) {
                                                o.worker_crash_rate = 0.001;
                                                o.save_rate = 0.003;
                                              }},
                      ReturnsConservationCase{"Everything",
                                              [](ToyClusterOptions& o) {
                                                o.remove_rate = o.shard_crash_rate = o.worker_crash_rate = 0.0007;
                                                o.save_rate = 0.003;
                                                o.disconnect_rate = o.epoch_rate = 0.001;
                                                o.spec.staleness = 1;
                                                o.spec.reselect = {.reselect = protocol::Reselect::kTopK, .k = 5};
                                              }}),
    [](const auto& of_case) { return std::string(of_case.param.name); });

}  // namespace
}  // namespace millrace::testing
