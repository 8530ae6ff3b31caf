#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <millrace/peer.h>

#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <latch>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/worker/peer/library/library_ranks.h"

/// The installed interface of a group: sums under way, the ends of a group, lifetimes.
namespace millrace::peers::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

AllreduceOptions exact_sum_of(uint64_t dimension) {
  return {.dimension = dimension, .algorithm = Algorithm::ssar_recursive_doubling()};
}

class PeersGroup : public ::testing::TestWithParam<Progress> {
 protected:
  static GroupOptions options() { return {.progress = GetParam()}; }
};

TEST_P(PeersGroup, SumsOfSeveralTensorsAreUnderWayAtATime) {
  static constexpr uint32_t kSize = 3;
  static constexpr size_t kTensors = 4;
  on_ranks_of_library(kSize, options(), [](Group& group) {
    EXPECT_EQ(group.size(), kSize);
    std::vector<Allreduce> allreduces;
    std::vector<Pending> pending;
    for (size_t tensor = 0; tensor < kTensors; ++tensor) allreduces.emplace_back(group, exact_sum_of(100 + tensor));
    for (int step = 0; step < 3; ++step) {
      pending.clear();
      for (size_t tensor = 0; tensor < kTensors; ++tensor) {
        pending.push_back(allreduces[tensor].start(std::vector<float>(100 + tensor, static_cast<float>(tensor + 1))));
      }
      for (size_t tensor = kTensors; tensor-- > 0;) {
        std::vector<float> sum(100 + tensor, 0.0F);
        pending[tensor].wait().sum.add_to(sum);
        EXPECT_EQ(sum, std::vector<float>(100 + tensor, static_cast<float>(kSize * (tensor + 1))));
      }
    }
    group.barrier();
    EXPECT_GT(group.traffic().bytes_sent, 0U);
    EXPECT_EQ(group.traffic().messages_unexpected, 0U);
  });
}

TEST_P(PeersGroup, ARankOfTheProcessThatLeavesIsNamedAtOnce) {
  std::vector<Communicator> all = Communicator::in_process(2);
  GroupOptions of_zero = options();
  of_zero.silence_max = std::chrono::minutes(10);
  Group zero(std::move(all[0]), of_zero);
  {
    const Group one(std::move(all[1]), options());
  }
  const auto [code, sentence] = thrown_by([&] { zero.barrier(); });
  EXPECT_EQ(code, JobErrorCode::kUnavailable);
  EXPECT_THAT(sentence, HasSubstr("rank 1 has left the group"));
}

TEST_P(PeersGroup, ATimedWaitReturnsEmptyAndTheSumContinues) {
  std::latch looked(1);
  on_ranks_of_library(2, options(), [&looked](Group& group) {
    Allreduce allreduce(group, exact_sum_of(4));
    const std::vector<float> ones(4, 1.0F);
    if (group.rank() == 1) looked.wait();
    Pending pending = allreduce.start(ones);
    if (group.rank() == 0) {
      EXPECT_FALSE(pending.ready());
      EXPECT_FALSE(pending.try_wait().has_value());
      EXPECT_FALSE(pending.try_wait(milliseconds(20)).has_value());
      const auto [code, sentence] = thrown_by([&] { allreduce.start(ones); });
      EXPECT_EQ(code, JobErrorCode::kInvalidArgument);
      EXPECT_THAT(sentence, HasSubstr("under way"));
      EXPECT_EQ(allreduce.chosen(), "");
      looked.count_down();
    }
    const std::optional<Reduced> reduced = pending.try_wait(milliseconds(60'000));
    ASSERT_TRUE(reduced.has_value());
    EXPECT_EQ(reduced->sum.values.size(), 4U);
    EXPECT_TRUE(pending.ready());
    EXPECT_EQ(thrown_by([&] { pending.wait(); }).first, JobErrorCode::kInvalidArgument);
    // A rank whose caller makes progress answers others only in calls.
    group.barrier();
  });
}

TEST_P(PeersGroup, ATimedBarrierReturnsFalseAndIsContinued) {
  std::latch looked(1);
  on_ranks_of_library(2, options(), [&looked](Group& group) {
    Allreduce allreduce(group, exact_sum_of(4));
    if (group.rank() == 0) {
      EXPECT_FALSE(group.try_barrier());
      EXPECT_FALSE(group.try_barrier(milliseconds(10)));
      looked.count_down();
    } else {
      looked.wait();
      EXPECT_TRUE(group.try_barrier(milliseconds(60'000)));
    }
    // A sum may start while this rank is in the barrier. The three calls of rank 0 are one barrier.
    Pending sum = allreduce.start(std::vector<float>(4, 1.0F));
    if (group.rank() == 0) {
      EXPECT_TRUE(group.try_barrier(milliseconds(60'000)));
    }
    EXPECT_EQ(sum.wait().sum.values[0], 2.0F);
    group.barrier();
  });
}

/// No pause of a rank's thread that lives is this long; a test waits for it once.
constexpr milliseconds kRankSilence(2'000);

/// Bytes of a rank that tell ranks and lengths apart.
std::vector<uint32_t> gathered_values(uint32_t rank, size_t count) {
  std::vector<uint32_t> values;
  for (size_t i = 0; i < count; ++i) values.push_back(static_cast<uint32_t>(1'000'000 * rank + i));
  return values;
}

TEST_P(PeersGroup, AGatherHasTheBytesOfEachRank) {
  for (uint32_t size = 1; size <= 9; ++size) {
    on_ranks_of_library(size, options(), [size](Group& group) {
      // Rank r has r * unit values: rank 0 none, and the last of several more than travel in one bundle.
      for (const size_t unit : {size_t{0}, size_t{1}, size_t{10'000}}) {
        const std::vector<uint32_t> own = gathered_values(group.rank(), group.rank() * unit);
        const Gathered all = group.gather(std::as_bytes(std::span(own)));
        ASSERT_EQ(all.of_rank.size(), size);
        for (uint32_t rank = 0; rank < size; ++rank) {
          EXPECT_EQ(all.values<uint32_t>(rank), gathered_values(rank, rank * unit)) << "of rank " << rank;
        }
      }
      group.barrier();
    });
  }
}

TEST_P(PeersGroup, ATimedGatherReturnsEmptyAndContinues) {
  std::latch looked(1);
  Gathered kept;
  on_ranks_of_library(2, options(), [&](Group& group) {
    std::vector<std::byte> own(3, static_cast<std::byte>(group.rank() + 1));
    if (group.rank() == 1) looked.wait();
    PendingGather pending = group.start_gather(own);
    own.assign(3, std::byte{9});  // copied
    if (group.rank() == 0) {
      EXPECT_FALSE(pending.ready());
      EXPECT_FALSE(pending.try_wait().has_value());
      EXPECT_FALSE(pending.try_wait(milliseconds(10)).has_value());
      looked.count_down();
    }
    std::optional<Gathered> all = pending.try_wait(milliseconds(60'000));
    ASSERT_TRUE(all.has_value());
    EXPECT_TRUE(pending.ready());
    EXPECT_EQ(thrown_by([&] { pending.wait(); }).first, JobErrorCode::kInvalidArgument);
    EXPECT_EQ(thrown_by([&] { all->values<uint16_t>(1); }).first, JobErrorCode::kInvalidArgument);
    EXPECT_EQ(thrown_by([&] { all->values<uint8_t>(2); }).first, JobErrorCode::kInvalidArgument);
    if (group.rank() == 0) kept = *all;
    group.barrier();
  });
  EXPECT_EQ(kept.values<uint8_t>(1), std::vector<uint8_t>(3, 2));  // it outlives the group
}

TEST_P(PeersGroup, AGatherOfALostRankIsTheGroupsError) {
  on_ranks_of_library(2, {.silence_max = kRankSilence, .progress = GetParam()}, [](Group& group) {
    if (group.rank() == 1) {
      group.start_gather({});
      return;  // frees the group with the gather under way, or after it
    }
    std::optional<PendingGather> pending;
    const auto [code, sentence] = thrown_by([&] {
      group.gather({});
      pending.emplace(group.start_gather({}));
      pending->wait();
    });
    EXPECT_TRUE(code == JobErrorCode::kUnavailable || code == JobErrorCode::kTimeout) << sentence;
    // The result was not handed out: a second wait has the same error.
    if (pending) {
      EXPECT_EQ(thrown_by([&] { pending->wait(); }).second, sentence);
    }
    EXPECT_THAT(sentence, HasSubstr("rank 1"));
    EXPECT_EQ(thrown_by([&] { return group.try_barrier(); }).first, code);
  });
}

TEST_P(PeersGroup, InputsAreCopiedAndResultsOutliveTheGroup) {
  std::vector<Reduced> results(2);
  on_ranks_of_library(2, options(), [&results](Group& group) {
    Allreduce allreduce(group, exact_sum_of(100));
    std::vector<float> values(100, 1.0F);
    Pending pending = allreduce.start(std::span<const float>(values));
    values.assign(100, 9.0F);
    results[group.rank()] = pending.wait();
  });
  for (const Reduced& reduced : results) {
    std::vector<float> sum(99, 0.0F);
    EXPECT_EQ(thrown_by([&] { reduced.sum.add_to(sum); }).first, JobErrorCode::kInvalidArgument);
    sum.assign(100, 0.0F);
    reduced.sum.add_to(sum, 0.5F);
    EXPECT_EQ(sum, std::vector<float>(100, 1.0F));
  }
}

TEST_P(PeersGroup, AnAllreduceAndAPendingResultKeepTheGroup) {
  auto ranks = Communicator::in_process(1);
  std::optional<Group> group(std::in_place, std::move(ranks[0]), options());
  Allreduce allreduce(*group, exact_sum_of(3));
  Pending pending = allreduce.start(std::vector<float>{1, 2, 3});
  group.reset();
  EXPECT_EQ(pending.wait().sum.values.size(), 3U);
  EXPECT_EQ(allreduce.start(std::vector<float>{1, 2, 3}).wait().sum.values.size(), 3U);
}

TEST_P(PeersGroup, ASilentRankIsNamedWithinTheLimit) {
  static constexpr std::chrono::seconds kBound(60);
  std::vector<Communicator> all = Communicator::in_process(3);
  std::vector<std::jthread> threads;
  for (uint32_t rank = 0; rank < 2; ++rank) {  // rank 2 has a communicator and never a group
    threads.emplace_back([&all, rank] {
      Group group(std::move(all[rank]), {.silence_max = kRankSilence, .progress = GetParam()});
      Allreduce allreduce(group, exact_sum_of(10));
      const auto begin = std::chrono::steady_clock::now();
      const auto [code, sentence] = thrown_by([&] { allreduce.start(std::vector<float>(10, 1.0F)).wait(); });
      EXPECT_LT(std::chrono::steady_clock::now() - begin, kBound);
      EXPECT_EQ(code, JobErrorCode::kTimeout) << sentence;
      EXPECT_THAT(sentence, HasSubstr("rank 2"));
      const auto failure = group.failure();
      ASSERT_TRUE(failure.has_value());
      EXPECT_EQ(failure->rank, 2U);
      EXPECT_EQ(failure->code, JobErrorCode::kTimeout);
      EXPECT_EQ(thrown_by([&] { allreduce.start(std::vector<float>(10, 1.0F)); }).first, JobErrorCode::kTimeout);
      EXPECT_EQ(thrown_by([&] { group.barrier(); }).first, JobErrorCode::kTimeout);
    });
  }
}

TEST_P(PeersGroup, ARankThatLeavesASumEndsTheGroup) {
  on_ranks_of_library(2, options(), [](Group& group) {
    Allreduce allreduce(group, exact_sum_of(10));
    if (group.rank() == 1) {
      allreduce.start(std::vector<float>(10, 1.0F));  // rank 0 starts a barrier instead
      return;
    }
    const auto [code, sentence] = thrown_by([&] { group.barrier(); });
    EXPECT_TRUE(code == JobErrorCode::kUnavailable || code == JobErrorCode::kJobMismatch) << sentence;
    EXPECT_NE(sentence, "");
  });
}

TEST_P(PeersGroup, AnOptionMismatchErrorContainsBothRanksOptions) {
  on_ranks_of_library(2, options(), [](Group& group) {
    Allreduce allreduce(group, exact_sum_of(group.rank() == 0 ? 10 : 11));
    const auto [code, sentence] =
        thrown_by([&] { allreduce.start(std::vector<float>(group.rank() == 0 ? 10 : 11, 1.0F)).wait(); });
    EXPECT_EQ(code, JobErrorCode::kJobMismatch) << sentence;
    EXPECT_THAT(sentence, HasSubstr("n=10"));
    EXPECT_THAT(sentence, HasSubstr("n=11"));
  });
}

TEST_P(PeersGroup, AnOverflowOfTheSumEndsTheGroup) {
  on_ranks_of_library(2, options(), [](Group& group) {
    Allreduce allreduce(group, exact_sum_of(10));
    const auto [code, sentence] = thrown_by([&] { allreduce.start(std::vector<float>(10, 3e38F)).wait(); });
    EXPECT_EQ(code, JobErrorCode::kNonFinite) << sentence;
  });
}

INSTANTIATE_TEST_SUITE_P(All, PeersGroup, ::testing::Values(Progress::kByThread, Progress::kByCaller),
                         [](const auto& one) { return one.param == Progress::kByThread ? "thread" : "caller"; });

}  // namespace
}  // namespace millrace::peers::testing
