#include "worker/peer/group/layer_buckets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <thread>

#include "tests/worker/peer/cases.h"
#include "worker/peer/simulation/simulation.h"
#include "worker/peer/transport/thread_network.h"

namespace millrace::peer::testing {
namespace {

using ::testing::HasSubstr;

std::vector<size_t> shuffled(size_t count, RandomSequence& draws) {
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  for (size_t at = count; at > 1; --at) std::swap(order[at - 1], order[draws.next_below(at)]);
  return order;
}

TEST(BucketPlan, LayersAreTakenUntilTheBytesAreThere) {
  const std::vector<uint64_t> layers = {4, 4, 8, 20, 0, 3, 0};
  const auto ends = [&](uint64_t bytes) {
    const BucketPlan plan(layers, bytes);
    std::vector<size_t> of;
    for (size_t bucket = 0; bucket < plan.buckets(); ++bucket) {
      EXPECT_EQ(plan.first_layer(bucket), bucket == 0 ? 0 : of.back());
      of.push_back(plan.end_layer(bucket));
      for (size_t layer = plan.first_layer(bucket); layer < of.back(); ++layer)
        EXPECT_EQ(plan.bucket_of(layer), bucket);
    }
    return of;
  };
  EXPECT_THAT(ends(8), ::testing::ElementsAre(2, 3, 4, 7));
  EXPECT_THAT(ends(9), ::testing::ElementsAre(3, 4, 7));
  EXPECT_THAT(ends(1000), ::testing::ElementsAre(7));
  EXPECT_THAT(ends(0), ::testing::ElementsAre(1, 2, 3, 4, 6, 7));
}

TEST(BucketPlan, InAnyOrderABucketStartsOnceItAndAllBeforeItAreReady) {
  constexpr uint64_t kSeed = 5;
  RandomSequence draws(RandomKey::from(kSeed));
  for (int round = 0; round < 200; ++round) {
    std::vector<uint64_t> layers(1 + draws.next_below(12));
    for (uint64_t& bytes : layers) bytes = draws.next_below(5);
    BucketPlan plan(layers, draws.next_below(9));
    for (int step = 0; step < 2; ++step) {
      std::vector<bool> ready(layers.size());
      for (const size_t layer : shuffled(layers.size(), draws)) {
        ASSERT_TRUE(plan.missing());
        EXPECT_FALSE(ready[*plan.missing()]);
        ready[layer] = true;
        const size_t startable = plan.set_ready(layer);
        for (size_t bucket = 0; bucket < plan.buckets(); ++bucket) {
          const bool whole = std::all_of(ready.begin(), ready.begin() + static_cast<ptrdiff_t>(plan.end_layer(bucket)),
                                         [](bool one) { return one; });
          EXPECT_EQ(bucket < startable, whole) << "seed " << kSeed << ", round " << round;
        }
      }
      EXPECT_FALSE(plan.missing());
      EXPECT_EQ(plan.startable(), plan.buckets());
      plan.reset();
      EXPECT_EQ(plan.startable(), 0u);
    }
  }
}

/// Of a rank, step and layer; on a grid, so that sums are exact.
std::vector<float> layer_of(uint32_t rank, uint64_t step, size_t layer, uint64_t values) {
  RandomSequence draws(random_key(9, rank, step, layer));
  std::vector<float> gradient(values);
  for (float& value : gradient) value = grid_value(draws);
  return gradient;
}

void expect_sums(const DenseBuckets& buckets, std::span<const uint64_t> layers, uint32_t ranks, uint64_t step) {
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    std::vector<float> expected(layers[layer]);
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      const std::vector<float> one = layer_of(rank, step, layer, layers[layer]);
      for (size_t i = 0; i < one.size(); ++i) expected[i] += one[i];
    }
    EXPECT_TRUE(std::ranges::equal(buckets.sum(layer), expected)) << "layer " << layer << ", step " << step;
  }
}

template <typename Rank>
void dense_buckets_on_all(ThreadNetwork& network, uint32_t ranks, Progress progress, Rank rank_does) {
  std::vector<std::jthread> threads;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      PeerGroup group(network.communicator(rank), {}, progress);
      rank_does(group);
    });
  }
}

void expect_all_orders_sum(AlgorithmId algorithm, uint32_t ranks, Progress progress) {
  constexpr uint64_t kSeed = 21;
  const std::vector<uint64_t> layers = {100, 0, 1, 900, 37, 2000, 0, 5};
  for (const uint64_t bucket_bytes : {uint64_t{0}, uint64_t{1'000}, uint64_t{1} << 30}) {
    SCOPED_TRACE(std::string(algorithm_info(algorithm).name) + ' ' + std::to_string(ranks) + ' ' +
                 std::to_string(bucket_bytes));
    ThreadNetwork network(ranks);
    dense_buckets_on_all(network, ranks, progress, [&](PeerGroup& group) {
      auto buckets = DenseBuckets::make(group, {layers, bucket_bytes, algorithm}).value();
      RandomSequence draws(RandomKey::from(kSeed), group.rank());  // each rank its own order
      for (uint64_t step = 0; step < 3; ++step) {
        for (const size_t layer : shuffled(layers.size(), draws)) {
          std::vector<float> gradient = layer_of(group.rank(), step, layer, layers[layer]);
          const Status taken = buckets->ready(layer, gradient);
          ASSERT_TRUE(taken) << taken.error().message;
          std::ranges::fill(gradient, 1e30F);  // it was copied
        }
        const Status ended = buckets->wait();
        ASSERT_TRUE(ended) << ended.error().message;
        expect_sums(*buckets, layers, ranks, step);
      }
    });
  }
}

TEST(DenseBuckets, LayersInAnyOrderOfEachRankAreSummed) {
  using enum AlgorithmId;
  for (const uint32_t ranks : {1u, 2u, 3u, 4u, 5u})
    expect_all_orders_sum(kDenseRabenseifner, ranks, Progress::kByCaller);
  for (const AlgorithmId algorithm : {kDenseRing, kDenseRecursiveDoubling, kDsarSplitAllgather, kSsarSplitAllgather}) {
    expect_all_orders_sum(algorithm, 3, Progress::kByThread);
  }
  expect_all_orders_sum(kDenseRabenseifner, 4, Progress::kByThread);
}

TEST(DenseBuckets, InvalidCallsAreRefusedAndTheStepContinues) {
  ThreadNetwork network(1);
  PeerGroup group(network.communicator(0), {}, Progress::kByCaller);
  const auto refusal = [&](DenseBucketsOptions options) {
    const auto made = DenseBuckets::make(group, std::move(options));
    return made ? std::string("made") : made.error().message;
  };
  EXPECT_THAT(refusal({}), HasSubstr("no layer with a value"));
  EXPECT_THAT(refusal({.layers = {0, 0}}), HasSubstr("no layer with a value"));
  EXPECT_THAT(refusal({.layers = {5}, .algorithm = AlgorithmId::kGtopk}), HasSubstr("gtopk does not sum all"));
  auto buckets = DenseBuckets::make(group, {.layers = {2, 3}}).value();
  const std::vector<float> two = {1, 2}, three = {3, 4, 5};
  EXPECT_THAT(buckets->ready(2, two).error().message, HasSubstr("no layer 2"));
  EXPECT_THAT(buckets->ready(1, two).error().message, HasSubstr("layer 1 has 3 values, not 2"));
  ASSERT_TRUE(buckets->ready(1, three));
  EXPECT_THAT(buckets->ready(1, three).error().message, HasSubstr("layer 1 was ready before"));
  EXPECT_THAT(buckets->wait().error().message, HasSubstr("layer 0 is not ready"));
  ASSERT_TRUE(buckets->ready(0, two));
  ASSERT_TRUE(buckets->wait());
  EXPECT_TRUE(std::ranges::equal(buckets->sum(0), two));
  EXPECT_TRUE(std::ranges::equal(buckets->sum(1), three));
}

TEST(DenseBuckets, ARankThatGivesUpInTheMiddleOfAStepEndsTheOthers) {
  for (const Progress progress : {Progress::kByCaller, Progress::kByThread}) {
    ThreadNetwork network(3);
    dense_buckets_on_all(network, 3, progress, [&](PeerGroup& group) {
      auto buckets = DenseBuckets::make(group, {.layers = {1'000, 1'000}, .bucket_bytes = 1}).value();
      const std::vector<float> layer(1'000, 1.0F);
      Status status = buckets->ready(0, layer);
      if (group.rank() == 1) return;  // buckets and group are destroyed while the first bucket is under way
      if (status) status = buckets->ready(1, layer);
      if (status) status = buckets->wait();
      ASSERT_FALSE(status);
      EXPECT_THAT(status.error().message, HasSubstr("rank 1"));
    });
  }
}

TEST(DenseBuckets, ALayerMismatchErrorNamesBothRanksSizes) {
  ThreadNetwork network(2);
  dense_buckets_on_all(network, 2, Progress::kByCaller, [&](PeerGroup& group) {
    const uint64_t values = group.rank() == 0 ? 30 : 20;
    auto buckets = DenseBuckets::make(group, {.layers = {values}}).value();
    Status status = buckets->ready(0, std::vector<float>(values));
    if (status) status = buckets->wait();
    ASSERT_FALSE(status);
    EXPECT_THAT(status.error().message, ::testing::AllOf(HasSubstr("n=30"), HasSubstr("n=20")));
  });
}

/// The sum of vectors of rank + 1.
Task<Status> sum_of_ranks(Allreduce& allreduce, Channel& channel, uint64_t values, bool& right) {
  Stream own;
  own.dimension = values;
  own.dense = true;
  own.values.assign(values, static_cast<float>(channel.rank() + 1));
  auto reduced = co_await allreduce.run(channel, SharedStream::from(std::move(own)));
  if (!reduced) co_return std::unexpected(reduced.error());
  const auto all = static_cast<float>(channel.size()) * static_cast<float>(channel.size() + 1) / 2;
  right = right && std::ranges::all_of(reduced->sum.view.values, [all](float value) { return value == all; });
  co_return Status{};
}

/// Back-propagation in virtual time: layer by layer, 1 ms each; buckets start when their last layer is computed.
class SimulatedStep {
 public:
  SimulatedStep(uint32_t ranks, std::vector<uint64_t> layers, uint64_t bucket_bytes)
      : layers_(std::move(layers)), simulation_(options_of(ranks)) {
    std::vector<uint64_t> bytes;
    for (const uint64_t values : layers_) bytes.push_back(4 * values);
    BucketPlan plan(bytes, bucket_bytes);
    size_t started = 0;
    for (size_t layer = 0; layer < layers_.size(); ++layer) {
      const size_t startable = plan.set_ready(layer);
      for (; started < startable; ++started) start(plan, started, static_cast<TimeNs>(layer + 1) * kNsPerMs);
    }
  }

  /// When the last rank has all sums. Fails the test where one is wrong.
  TimeNs end() {
    EXPECT_TRUE(simulation_.run());
    EXPECT_TRUE(right_);
    TimeNs end = 0;
    for (uint32_t rank = 0; rank < simulation_.size(); ++rank) {
      for (const auto& ended : simulation_.ended(rank)) {
        EXPECT_TRUE(ended && ended->status);
        if (ended) end = std::max(end, ended->at);
      }
    }
    return end;
  }

 private:
  static SimulationOptions options_of(uint32_t ranks) {
    SimulationOptions options;
    options.ranks = ranks;
    options.latency = 10 * kNsPerUs;
    options.bytes_per_s = 125e6;
    return options;
  }

  void start(const BucketPlan& plan, size_t bucket, TimeNs at) {
    AllreduceSettings settings;
    for (size_t i = plan.first_layer(bucket); i < plan.end_layer(bucket); ++i) settings.dimension += layers_[i];
    for (uint32_t rank = 0; rank < simulation_.size(); ++rank) {
      allreduces_.push_back(make_allreduce(AlgorithmId::kDenseRabenseifner, settings).value());
      Allreduce& allreduce = *allreduces_.back();
      simulation_.start(rank, at, [this, &allreduce, settings] {
        return Collective{description_of(allreduce, settings), [this, &allreduce, settings](Channel& channel) {
                            return sum_of_ranks(allreduce, channel, settings.dimension, right_);
                          }};
      });
    }
  }

  std::vector<uint64_t> layers_;
  std::vector<std::unique_ptr<Allreduce>> allreduces_;
  bool right_ = true;
  Simulation simulation_;
};

TEST(DenseBuckets, InVirtualTimeBucketsHideBehindTheLayersThatFollow) {
  const std::vector<uint64_t> layers(16,
                                     12'500);  // 16 ms of computation; a step's bytes are 2 x 3/4 x 6.4 ms of the wire
  const TimeNs computed = 16 * kNsPerMs;
  const TimeNs at_end = SimulatedStep(4, layers, uint64_t{1} << 40).end();
  const TimeNs overlapped = SimulatedStep(4, layers, 2 * 50'000).end();
  const TimeNs communication = at_end - computed;
  EXPECT_GT(communication, 9 * kNsPerMs);
  // The time beside the computation is that of the last bucket, an eighth of all, and of its messages.
  EXPECT_GT(overlapped, computed + communication / 8);
  EXPECT_LT(overlapped, computed + communication / 8 + kNsPerMs);
}

}  // namespace
}  // namespace millrace::peer::testing
