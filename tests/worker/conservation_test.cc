#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/worker/toy_cluster.h"

/// The law: per index and over all workers, entered = applied + residuals + in flight + ledger. Values lie on a binary grid, so
/// that sums are exact and equality is asked for.
namespace millrace::testing {
namespace {

constexpr float kGrid = 1.0f / 8;

float grid_value(RandomSequence& random) {
  return kGrid * static_cast<float>(static_cast<int64_t>(random.next_below(65)) - 32);
}

/// Pushes a random gradient, dense or sparse with duplicates, wherever the core allows it.
void push_something(ToyCluster& cluster, uint32_t worker, uint32_t tensor, RandomSequence& random, double dense_rate) {
  worker::SessionCore& core = cluster.core(worker);
  if (core.error() || core.steps_pushed(tensor) >= core.steps_allowed(tensor)) return;
  // A neighbour in the bucket is still to be pushed for the step before.
  if (core.slot(tensor).filled()) return;
  const uint64_t dimension = core.spec().tensors[tensor].dimension;
  Result<uint64_t> pushed;
  if (random.next_unit() < dense_rate) {
    std::vector<float> gradient(dimension);
    for (float& value : gradient) value = random.next_below(3) == 0 ? grid_value(random) : 0.0f;
    pushed = core.push_dense(tensor, gradient, 1, cluster.now());
  } else {
    std::vector<uint32_t> indices;
    std::vector<float> values;
    for (uint64_t i = random.next_below(std::min<uint64_t>(dimension, 40)); i > 0; --i) {
      indices.push_back(static_cast<uint32_t>(random.next_below(dimension)));
      values.push_back(grid_value(random));
    }
    pushed = core.push_sparse(tensor, indices, values, 1, cluster.now());
  }
  ASSERT_TRUE(pushed.has_value()) << pushed.error().message;
}

struct Case {
  const char* name;
  void (*bend)(ToyClusterOptions& options);
  double dense_rate = 0.3;
  bool bend_shards = false;  ///< shards leave workers out and carry a part only
  double tolerance = 0;
  uint64_t steps = 25'000;
};

void PrintTo(const Case& test_case, std::ostream* out) { *out << test_case.name; }

void bend_shards(ToyCluster& cluster, RandomSequence& random) {
  for (uint32_t shard = 0; shard < cluster.table().view.shards.size(); ++shard) {
    cluster.shard(shard).count = [&random](uint32_t, uint64_t, const std::set<uint32_t>& in) {
      std::set<uint32_t> counted;
      for (const uint32_t worker : in) {
        if (random.next_below(4) != 0) counted.insert(worker);
      }
      return counted;
    };
    cluster.shard(shard).carry = [&random](uint32_t, uint64_t, uint64_t) { return random.next_below(3) != 0; };
  }
}

void expect_balanced(const ToyCluster& cluster, uint32_t bucket, double tolerance) {
  const std::vector<double> imbalance = cluster.imbalance(bucket);
  for (size_t i = 0; i < imbalance.size(); ++i) {
    ASSERT_LE(std::abs(imbalance[i]), tolerance) << "bucket " << bucket << ", index " << i << ": " << imbalance[i];
  }
}

class Conservation : public ::testing::TestWithParam<Case> {};

TEST_P(Conservation, HoldsExactlyAfterEveryKindOfStep) {
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    ToyClusterOptions options;
    options.spec = toy_spec(3, {700, 90, 64});
    options.spec.tensors[0].priority = 2;
    options.spec.fuse_below = 100;
    options.spec.select = {.selection = Selection::kTopK, .density = 0.05};
    options.spec.parts_per_shard = 3;
    options.shards = 2;
    options.seed = seed;
    GetParam().bend(options);
    ToyCluster cluster(options);
    RandomSequence random(random_key(seed, 99));
    if (GetParam().bend_shards) bend_shards(cluster, random);
    const auto buckets = static_cast<uint32_t>(cluster.table().layout.buckets.size());
    for (uint64_t i = 0; i < GetParam().steps; ++i) {
      cluster.step();
      if (i % 5 == 0) {
        push_something(cluster, static_cast<uint32_t>(random.next_below(cluster.workers())),
                       static_cast<uint32_t>(random.next_below(options.spec.tensors.size())), random,
                       GetParam().dense_rate);
      }
      if (i % 499 == 0) {
        for (uint32_t bucket = 0; bucket < buckets; ++bucket) expect_balanced(cluster, bucket, GetParam().tolerance);
      }
      if (HasFatalFailure()) return;
    }
    // Who is behind catches up, so that every step can be decided.
    uint64_t most = 0;
    for (uint32_t tensor = 0; tensor < options.spec.tensors.size(); ++tensor) {
      for (uint32_t worker = 0; worker < cluster.workers(); ++worker)
        most = std::max(most, cluster.core(worker).steps_pushed(tensor));
    }
    for (uint64_t i = 0; i < 400'000; ++i) {
      for (uint32_t worker = 0; worker < cluster.workers(); ++worker) {
        for (uint32_t tensor = 0; tensor < options.spec.tensors.size(); ++tensor) {
          if (cluster.core(worker).steps_pushed(tensor) < most) push_something(cluster, worker, tensor, random, 0.0);
        }
      }
      if (cluster.quiet()) break;
      cluster.step();
    }
    ASSERT_TRUE(cluster.settle());
    EXPECT_GT(most, 20u) << "the case must exchange something to say something";
    for (uint32_t bucket = 0; bucket < buckets; ++bucket) expect_balanced(cluster, bucket, GetParam().tolerance);
    EXPECT_EQ(cluster.complaints(), std::vector<std::string>());
    for (uint32_t worker = 0; worker < cluster.workers(); ++worker) {
      EXPECT_FALSE(cluster.core(worker).error()) << cluster.core(worker).error()->message;
      for (uint32_t bucket = 0; bucket < buckets; ++bucket) {
        // All workers have applied the same sums.
        EXPECT_TRUE(std::ranges::equal(cluster.core(worker).applied(bucket), cluster.core(0).applied(bucket)));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Jobs, Conservation,
    ::testing::Values(
        Case{"TopK", [](ToyClusterOptions&) {}}, Case{"TopKSparseOnly", [](ToyClusterOptions&) {}, 0.0},
        Case{"NothingSelected", [](ToyClusterOptions& o) { o.spec.select = {}; }},
        Case{"NothingSelectedSparseOnly", [](ToyClusterOptions& o) { o.spec.select = {}; }, 0.0},
        Case{"ShardsLeaveOut", [](ToyClusterOptions&) {}, 0.3, true},
        Case{"ShardsLeaveOutSparseOnly", [](ToyClusterOptions&) {}, 0.0, true},
        Case{"NothingSelectedShardsLeaveOut", [](ToyClusterOptions& o) { o.spec.select = {}; }, 0.3, true},
        Case{"Staleness", [](ToyClusterOptions& o) { o.spec.staleness = 3; }, 0.3, true},
        Case{"StalenessSparseOnly", [](ToyClusterOptions& o) { o.spec.staleness = 2; }, 0.0, true},
        Case{"Breaks", [](ToyClusterOptions& o) { o.disconnect_rate = 0.002; }, 0.3, true},
        Case{"BreaksAndEpochs",
             [](ToyClusterOptions& o) {
               o.disconnect_rate = 0.002;
               o.epoch_rate = 0.002;
               o.spec.staleness = 1;
             },
             0.3, true},
        Case{"Threshold",
             [](ToyClusterOptions& o) { o.spec.select = {.selection = Selection::kThreshold, .threshold = 2.0}; }, 0.3,
             true},
        Case{"BucketTopK",
             [](ToyClusterOptions& o) {
               o.spec.select = {.selection = Selection::kBucketTopK, .density = 0.05, .bucket_size = 64};
             },
             0.3, true},
        Case{"BloomUp",
             [](ToyClusterOptions& o) {
               o.spec.codec_up = {.index = IndexCodecId::kBloom, .bloom_false_positive_rate = 0.1};
             },
             0.3, true},
        Case{"BloomUpSparseOnly",
             [](ToyClusterOptions& o) {
               o.spec.codec_up = {.index = IndexCodecId::kBloom, .bloom_false_positive_rate = 0.1};
               o.disconnect_rate = 0.001;
             },
             0.0, true},
        // Off the grid f32 rounds: the bound is 2^-24 of the magnitudes met, times the additions.
        Case{"QuantizedRetain", [](ToyClusterOptions& o) { o.spec.codec_up = {.value = ValueCodecId::kQsgd}; }, 0.3,
             false, 0.05},
        Case{"QuantizedDrop",
             [](ToyClusterOptions& o) {
               o.spec.codec_up = {.value = ValueCodecId::kQsgd};
               o.spec.codec_error = protocol::CodecError::kDrop;
             },
             0.3, false, 0.05}),
    [](const auto& of_case) { return std::string(of_case.param.name); });

}  // namespace
}  // namespace millrace::testing
