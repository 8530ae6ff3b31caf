#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "tests/worker/toys/toy_cluster.h"

/// The law: per index and over all workers, entered = applied + residuals + in flight + ledger. Values lie on a binary
/// grid, so that sums are exact and equality is asked for. Jobs that may lose nothing have empty ledgers.
namespace millrace::testing {
namespace {

constexpr float kConservationGrid = 1.0f / 8;

float conservation_grid_value(RandomSequence& random) {
  return kConservationGrid * static_cast<float>(static_cast<int64_t>(random.next_below(65)) - 32);
}

/// Pushes a random gradient, dense or sparse with duplicates, wherever the core allows it.
void push_something_conservation(ToyCluster& cluster, uint32_t worker, uint32_t tensor, RandomSequence& random,
                                 double dense_rate) {
  worker::SessionCore& core = cluster.core(worker);
  if (core.error() || core.steps_pushed(tensor) >= core.steps_allowed(tensor)) return;
  // A neighbour in the bucket is still to be pushed for the step before.
  if (core.slot(tensor).filled()) return;
  const uint64_t dimension = core.spec().tensors[tensor].dimension;
  Result<uint64_t> pushed;
  if (random.next_unit() < dense_rate) {
    std::vector<float> gradient(dimension);
    for (float& value : gradient) value = random.next_below(3) == 0 ? conservation_grid_value(random) : 0.0f;
    pushed = core.push_dense(tensor, gradient, 1, cluster.now());
  } else {
    std::vector<uint32_t> indices;
    std::vector<float> values;
    for (uint64_t i = random.next_below(std::min<uint64_t>(dimension, 40)); i > 0; --i) {
      indices.push_back(static_cast<uint32_t>(random.next_below(dimension)));
      values.push_back(conservation_grid_value(random));
    }
    pushed = core.push_sparse(tensor, indices, values, 1, cluster.now());
  }
  ASSERT_TRUE(pushed.has_value()) << pushed.error().message;
}

struct ConservationCase {
  const char* name;
  void (*bend)(ToyClusterOptions& options);
  double dense_rate = 0.3;
  bool bend_shards = false;  ///< shards leave workers out and carry a part only
  double tolerance = 0;
  uint64_t steps = 25'000;
};

void PrintTo(const ConservationCase& test_case, std::ostream* out) { *out << test_case.name; }

void bend_shards(ToyCluster& cluster, RandomSequence& random) {
  for (uint32_t shard = 0; shard < cluster.table().membership.shards.size(); ++shard) {
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

void expect_conservation_balanced(const ToyCluster& cluster, uint32_t bucket, double tolerance) {
  const std::vector<double> imbalance = cluster.imbalance(bucket);
  for (size_t i = 0; i < imbalance.size(); ++i) {
    ASSERT_LE(std::abs(imbalance[i]), tolerance) << "bucket " << bucket << ", index " << i << ": " << imbalance[i];
  }
}

/// Returns whether the job may lose nothing: its codecs drop no errors, and f32 rounds nothing.
bool keeps_everything(const protocol::JobSpec& spec, double tolerance) {
  return tolerance == 0 && spec.codec_error == protocol::CodecError::kRetain && !spec.unbiased && !spec.reproducible;
}

class Conservation : public ::testing::TestWithParam<ConservationCase> {};

TEST_P(Conservation, HoldsExactlyAfterEveryKindOfStep) {
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    ToyClusterOptions options;
    options.spec = toy_spec(3, {700, 90, 64});
    options.spec.tensors[0].priority = 2;
    options.spec.fuse_below = 100;
    options.spec.select = {.selection = SelectionId::kTopK, .density = 0.05};
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
        push_something_conservation(cluster, static_cast<uint32_t>(random.next_below(cluster.workers())),
                                    static_cast<uint32_t>(random.next_below(options.spec.tensors.size())), random,
                                    GetParam().dense_rate);
      }
      if (i % 499 == 0) {
        for (uint32_t bucket = 0; bucket < buckets; ++bucket)
          expect_conservation_balanced(cluster, bucket, GetParam().tolerance);
      }
      if (HasFatalFailure()) return;
    }
    // A worker that is behind catches up, so that every step can be decided.
    uint64_t most = 0;
    for (uint32_t tensor = 0; tensor < options.spec.tensors.size(); ++tensor) {
      for (uint32_t worker = 0; worker < cluster.workers(); ++worker)
        most = std::max(most, cluster.core(worker).steps_pushed(tensor));
    }
    for (uint64_t i = 0; i < 400'000; ++i) {
      for (uint32_t worker = 0; worker < cluster.workers(); ++worker) {
        for (uint32_t tensor = 0; tensor < options.spec.tensors.size(); ++tensor) {
          if (cluster.core(worker).steps_pushed(tensor) < most)
            push_something_conservation(cluster, worker, tensor, random, 0.0);
        }
      }
      if (cluster.quiet()) break;
      cluster.step();
    }
    ASSERT_TRUE(cluster.settle());
    EXPECT_GT(most, 20u) << "the case must exchange something to say something";
    for (uint32_t bucket = 0; bucket < buckets; ++bucket)
      expect_conservation_balanced(cluster, bucket, GetParam().tolerance);
    if (keeps_everything(options.spec, GetParam().tolerance)) {
      EXPECT_EQ(cluster.lost(), 0.0);
    }
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

/// Returns a job that defers much work: values off the grid in 4 bits, and steps that overlap. The shards leave out and
/// carry a part.
std::unique_ptr<ToyCluster> lossy_cluster(double settle_rate, RandomSequence& random) {
  ToyClusterOptions options;
  options.spec = toy_spec(2, {700, 90});
  options.spec.select = {.selection = SelectionId::kTopK, .density = 0.1};
  options.spec.codec_up = codec_from_text("gap+qsgd4").value();
  options.spec.parts_per_shard = 2;
  options.spec.staleness = 2;
  options.shards = 2;
  options.settle_rate = settle_rate;
  auto cluster = std::make_unique<ToyCluster>(options);
  bend_shards(*cluster, random);
  return cluster;
}

TEST(Settling, ItsTimingAffectsNoResidualLedgerOrPayloadSize) {
  const std::vector<double> rates = {0.0, 0.03, 1.0};
  std::vector<RandomSequence> random(rates.size(), RandomSequence(random_key(5)));
  std::vector<RandomSequence> bending(rates.size(), RandomSequence(random_key(6)));
  std::vector<std::unique_ptr<ToyCluster>> clusters;
  for (size_t i = 0; i < rates.size(); ++i) clusters.push_back(lossy_cluster(rates[i], bending[i]));
  uint64_t unsettled_met = 0;
  for (uint64_t at = 0; at < 6'000; ++at) {
    for (size_t i = 0; i < rates.size(); ++i) {
      clusters[i]->step();
      if (at % 5 == 0) {
        push_something_conservation(*clusters[i], static_cast<uint32_t>(random[i].next_below(2)),
                                    static_cast<uint32_t>(random[i].next_below(2)), random[i], 0.1);
      }
    }
    for (uint32_t worker = 0; worker < 2; ++worker) {
      const WatchedCore& eager = clusters.back()->core(worker);
      unsettled_met += clusters.front()->core(worker).all_resolved() ? 0 : 1;
      for (const auto& cluster : clusters) {
        const WatchedCore& core = cluster->core(worker);
        ASSERT_EQ(core.counters().payload_bytes_up, eager.counters().payload_bytes_up) << at;
        for (uint32_t bucket = 0; bucket < core.layout().buckets.size() && at % 7 == 0; ++bucket) {
          const Stream residual = core.residual(bucket);
          const Stream expected = eager.residual(bucket);
          ASSERT_EQ(residual.indices, expected.indices) << at;
          ASSERT_EQ(residual.values, expected.values) << at;
          ASSERT_TRUE(std::ranges::equal(core.ledger(bucket), eager.ledger(bucket))) << at;
        }
      }
    }
  }
  EXPECT_GT(unsettled_met, 1'000u);
  EXPECT_GT(clusters[0]->core(0).steps_applied(0), 50u);
}

TEST(Settling, LeavesTheLawExactOffTheGridTooFromThePushToTheLastUpdate) {
  ToyClusterOptions options;
  options.spec = toy_spec(1, {3'000});
  options.spec.select = {};
  options.spec.codec_up = codec_from_text("gap+qsgd4").value();
  options.spec.parts_per_shard = 4;
  options.settle_rate = 0.05;
  ToyCluster cluster(options);
  const auto all_zero = [&] { return std::ranges::all_of(cluster.imbalance(0), [](double sum) { return sum == 0; }); };
  while (cluster.core(0).steps_allowed(0) == 0 || cluster.core(0).phase() != worker::Phase::kRunning) cluster.step();
  std::vector<float> gradient(3'000);
  RandomSequence random(random_key(8));
  for (float& value : gradient) value = static_cast<float>(random.next_normal());
  ASSERT_TRUE(cluster.core(0).push_dense(0, gradient, 1, cluster.now()));
  uint64_t unsettled_met = 0;
  for (uint64_t at = 0; at < 10'000 && !(cluster.quiet() && cluster.core(0).all_resolved()); ++at) {
    cluster.step();
    unsettled_met += cluster.core(0).all_resolved() ? 0 : 1;
    ASSERT_TRUE(all_zero()) << at;
  }
  EXPECT_TRUE(cluster.quiet() && cluster.core(0).all_resolved());
  EXPECT_GT(unsettled_met, 20u);
  const auto ledger = cluster.core(0).ledger(0);
  EXPECT_TRUE(std::ranges::any_of(ledger, [](double lost) { return lost != 0; })) << "nothing went beyond f32";
}

INSTANTIATE_TEST_SUITE_P(
    Jobs, Conservation,
    ::testing::Values(
        ConservationCase{"TopK", [](ToyClusterOptions&) {}},
        ConservationCase{"TopKSparseOnly", [](ToyClusterOptions&) {}, 0.0},
        ConservationCase{"NothingSelected", [](ToyClusterOptions& o) { o.spec.select = {}; }},
        ConservationCase{"NothingSelectedSparseOnly", [](ToyClusterOptions& o) { o.spec.select = {}; }, 0.0},
        ConservationCase{"ShardsLeaveOut", [](ToyClusterOptions&) {}, 0.3, true},
        ConservationCase{"ShardsLeaveOutSparseOnly", [](ToyClusterOptions&) {}, 0.0, true},
        ConservationCase{"NothingSelectedShardsLeaveOut", [](ToyClusterOptions& o) { o.spec.select = {}; }, 0.3, true},
        ConservationCase{"Staleness", [](ToyClusterOptions& o) { o.spec.staleness = 3; }, 0.3, true},
        ConservationCase{"StalenessSparseOnly", [](ToyClusterOptions& o) { o.spec.staleness = 2; }, 0.0, true},
        ConservationCase{"Breaks", [](ToyClusterOptions& o) { o.disconnect_rate = 0.002; }, 0.3, true},
        ConservationCase{"BreaksAndEpochs",
                         [](ToyClusterOptions& o) {
                           o.disconnect_rate = 0.002;
                           o.epoch_rate = 0.002;
                           o.spec.staleness = 1;
                         },
                         0.3, true},
        ConservationCase{
            "Threshold",
            [](ToyClusterOptions& o) { o.spec.select = {.selection = SelectionId::kThreshold, .threshold = 2.0}; }, 0.3,
            true},
        ConservationCase{"BucketTopK",
                         [](ToyClusterOptions& o) {
                           o.spec.select = {.selection = SelectionId::kBucketTopK, .density = 0.05, .bucket_size = 64};
                         },
                         0.3, true},
        ConservationCase{"OneSignAStepAfterAWarmUp",
                         [](ToyClusterOptions& o) {
                           o.spec.select = {.selection = SelectionId::kTrimmed,
                                            .density = 0.05,
                                            .alternate_signs = true,
                                            .warm_up = WarmUp::kExponential,
                                            .warm_up_steps = 8};
                         },
                         0.3, true},
        ConservationCase{"SampledThresholdAfterDenseSteps",
                         [](ToyClusterOptions& o) {
                           o.spec.select = {.selection = SelectionId::kSampled,
                                            .density = 0.05,
                                            .period = 5,
                                            .warm_up = WarmUp::kDense,
                                            .warm_up_steps = 4};
                         },
                         0.3, true},
        ConservationCase{"OneSignInMeansAfterDenseSteps",
                         [](ToyClusterOptions& o) {
                           o.spec.select = selection_from_text("trimmed:0.05:signs:dense=4").value();
                           o.spec.codec_up = codec_from_text("raw+sign_mean").value();
                           o.spec.codec_error = protocol::CodecError::kDrop;
                           o.spec.momentum = {protocol::Momentum::kCorrection, 0.5, true};
                           o.disconnect_rate = 0.002;
                         },
                         0.3, true, 0.05},
        ConservationCase{"ChosenCodecsAfterDenseSteps",
                         [](ToyClusterOptions& o) {
                           o.spec.select = selection_from_text("topk:0.05:dense=4").value();
                           o.spec.codec_up = codec_from_text("auto").value();
                         },
                         0.3, true},
        ConservationCase{"NotCompressedBySize",
                         [](ToyClusterOptions& o) {
                           o.spec.select = selection_from_text("by_size:0.05:signs").value();
                           o.spec.codec_up = codec_from_text("bloom_p1:0.1+sign_mean").value();
                           o.spec.codec_error = protocol::CodecError::kDrop;
                           o.disconnect_rate = 0.002;
                         },
                         0.3, true},
        ConservationCase{"BloomUp",
                         [](ToyClusterOptions& o) {
                           o.spec.codec_up = {.index = IndexCodecId::kBloom, .bloom_false_positive_rate = 0.1};
                         },
                         0.3, true},
        ConservationCase{"BloomUpSparseOnly",
                         [](ToyClusterOptions& o) {
                           o.spec.codec_up = {.index = IndexCodecId::kBloom, .bloom_false_positive_rate = 0.1};
                           o.disconnect_rate = 0.001;
                         },
                         0.0, true},
        ConservationCase{"UnbiasedShardsLeaveOut",
                         [](ToyClusterOptions& o) {
                           o.spec.unbiased = true;
                           o.spec.select = {};
                           o.spec.codec_error = protocol::CodecError::kDrop;
                           o.disconnect_rate = 0.002;
                         },
                         0.3, true},
        ConservationCase{"UnbiasedDraws",
                         [](ToyClusterOptions& o) {
                           o.spec.unbiased = true;
                           o.spec.select = {.selection = SelectionId::kGspar, .density = 0.05};
                           o.spec.codec_error = protocol::CodecError::kDrop;
                           o.disconnect_rate = 0.002;
                         },
                         0.3, true, 0.05},
        // Half of what there is, scaled by 2: on the grid.
        ConservationCase{"UnbiasedUniform",
                         [](ToyClusterOptions& o) {
                           o.spec.unbiased = true;
                           o.spec.select = {.selection = SelectionId::kUniform, .density = 0.5};
                           o.spec.codec_error = protocol::CodecError::kDrop;
                           o.disconnect_rate = 0.002;
                         },
                         0.3, true},
        ConservationCase{"UnbiasedUniformAfterDenseSteps",
                         [](ToyClusterOptions& o) {
                           o.spec.unbiased = true;
                           o.spec.select = selection_from_text("uniform:0.5:dense=4").value();
                           o.spec.codec_up = codec_from_text("gap+terngrad").value();
                           o.spec.codec_error = protocol::CodecError::kDrop;
                           o.disconnect_rate = 0.002;
                         },
                         0.3, true, 0.05},
        ConservationCase{
            "RandomK",
            [](ToyClusterOptions& o) { o.spec.select = {.selection = SelectionId::kRandom, .density = 0.05}; }, 0.3,
            true},
        // Off the grid f32 rounds: the bound is 2^-24 of the magnitudes met, times the additions. Velocities
        // leave it after some steps.
        ConservationCase{"Momentum",
                         [](ToyClusterOptions& o) {
                           o.spec.momentum = {protocol::Momentum::kCorrection, 0.75, true};
                           o.spec.staleness = 1;
                           o.disconnect_rate = 0.002;
                           o.epoch_rate = 0.002;
                         },
                         0.3, true, 0.05},
        ConservationCase{"NesterovClippedSparseOnly",
                         [](ToyClusterOptions& o) {
                           o.spec.momentum = {protocol::Momentum::kNesterov, 0.5, true};
                           o.spec.clip = 20;
                           o.disconnect_rate = 0.002;
                         },
                         0.0, true, 0.05},
        // A grid as coarse as 2, on which the values of the test round, and one so fine that they saturate.
        ConservationCase{"ReproducibleCoarse",
                         [](ToyClusterOptions& o) {
                           o.spec.reproducible = true;
                           o.spec.grid = {.block_indices = 64, .exponent_initial = 1};
                         }},
        ConservationCase{"ReproducibleFine",
                         [](ToyClusterOptions& o) {
                           o.spec.reproducible = true;
                           o.spec.grid = {.block_indices = 128, .exponent_initial = -23};
                           o.spec.momentum = {.momentum = protocol::Momentum::kCorrection, .factor = 0.5};
                         },
                         0.3, false, 1e-4},
        ConservationCase{"ReproducibleShardsLeaveOut",
                         [](ToyClusterOptions& o) {
                           o.spec.reproducible = true;
                           o.spec.grid = {.block_indices = 64, .exponent_initial = 2};
                           o.disconnect_rate = 0.002;
                         },
                         0.3, true},
        ConservationCase{"ReproducibleNothingSelected",
                         [](ToyClusterOptions& o) {
                           o.spec.reproducible = true;
                           o.spec.select = {};
                           o.spec.grid = {.block_indices = 64, .exponent_initial = 0};
                         },
                         0.3, true},
        ConservationCase{"QuantizedRetain",
                         [](ToyClusterOptions& o) { o.spec.codec_up = {.value = ValueCodecId::kQsgd}; }, 0.3, false,
                         0.05},
        ConservationCase{"QuantizedDrop",
                         [](ToyClusterOptions& o) {
                           o.spec.codec_up = {.value = ValueCodecId::kQsgd};
                           o.spec.codec_error = protocol::CodecError::kDrop;
                         },
                         0.3, false, 0.05}),
    [](const auto& of_case) { return std::string(of_case.param.name); });

}  // namespace
}  // namespace millrace::testing
