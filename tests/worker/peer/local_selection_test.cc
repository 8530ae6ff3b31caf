#include "worker/peer/collectives/local_selection.h"

#include <gtest/gtest.h>

#include <limits>

#include "kernels/base/random.h"
#include "tests/support/oracles/stream_oracle.h"

namespace millrace::peer {
namespace {

using millrace::testing::same_bits;

AllreduceSettings settings(uint64_t dimension, uint64_t k) {
  AllreduceSettings out;
  out.dimension = dimension;
  out.k = k;
  return out;
}

SharedStream held(IndexBuffer indices, Buffer<float> values, uint64_t dimension = 1000) {
  return SharedStream::from(Stream{dimension, false, std::move(indices), std::move(values)});
}

TEST(LocalSelection, AllOfAContributionThatHasNoMore) {
  LocalSelection selection(SelectionId::kThresholdReuse, settings(1000, 3));
  for (int step = 0; step < 40; ++step) {
    // Ever smaller values: a threshold that is used again would leave them out.
    const float value = 1.0F / static_cast<float>(1 << std::min(step, 20));
    const SharedStream own = held({4, 70, 999}, {value, -value, value / 2});
    const Result<SharedStream> taken = selection.take(own);
    ASSERT_TRUE(taken.has_value());
    EXPECT_TRUE(same_bits(taken->view, own.view)) << step;
  }
  EXPECT_EQ(selection.take(held({}, {}))->view.count(), 0u);
}

TEST(LocalSelection, NeverZerosAndOfNoMoreThanThereAre) {
  LocalSelection selection(SelectionId::kThresholdReuse, settings(1000, 3));
  const SharedStream own = held({4, 70, 999}, {1, 0, -2});
  const Result<SharedStream> taken = selection.take(own);
  ASSERT_TRUE(taken.has_value());
  EXPECT_TRUE(same_bits(taken->view, held({4, 999}, {1, -2}).view));
  const SharedStream more = held({4, 70, 500, 999}, {1, 5, 4, -2});
  LocalSelection exact(SelectionId::kThresholdReuse, settings(1000, 3));
  EXPECT_TRUE(same_bits(exact.take(more)->view, held({70, 500, 999}, {5, 4, -2}).view));
}

TEST(LocalSelection, RefusesNonFiniteValuesAmongFewEntries) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    LocalSelection selection(SelectionId::kThresholdReuse, settings(1000, 3));
    const Result<SharedStream> taken = selection.take(held({4, 70}, {bad, 1}));
    ASSERT_FALSE(taken.has_value());
    EXPECT_EQ(taken.error().code, ErrorCode::kNonFinite);
  }
  LocalSelection other(SelectionId::kThresholdReuse, settings(1000, 3));
  EXPECT_EQ(other.take(held({}, {}, 999)).error().code, ErrorCode::kInvalidArgument);
}

/// A step of few leaves no threshold behind.
TEST(LocalSelection, AfterAStepOfFewTheNextHasKAgain) {
  constexpr uint64_t kDimension = 10'000, kK = 200;
  for (const SelectionId by : {SelectionId::kTopK, SelectionId::kThresholdReuse}) {
    LocalSelection selection(by, settings(kDimension, kK));
    ASSERT_TRUE(selection.take(held({1, 2}, {1e-9F, 1e-9F}, kDimension)).has_value());
    RandomSequence random(RandomKey::from(7));
    Stream dense{kDimension, true, {}, Buffer<float>(kDimension)};
    for (float& value : dense.values) value = static_cast<float>(random.next_unit()) - 0.5F;
    const Result<SharedStream> taken = selection.take(SharedStream::from(std::move(dense)));
    ASSERT_TRUE(taken.has_value());
    EXPECT_EQ(taken->view.count(), kK);
  }
}

TEST(PartitionAt, KeptAndDroppedAreAllThatIsNotZero) {
  const SharedStream sparse = held({4, 70, 500, 999}, {1, 5, 0, -2});
  const Stream dense{4, true, {}, {1, 5, 0, -2}};
  const IndexBuffer second{1};
  const Partition of_sparse = partition_at(sparse.view, second);
  const Partition of_dense = partition_at(dense.view(), second);
  EXPECT_TRUE(same_bits(of_sparse.kept.view(), held({70}, {5}).view));
  EXPECT_TRUE(same_bits(of_sparse.dropped.view(), held({4, 999}, {1, -2}).view));
  EXPECT_TRUE(same_bits(of_dense.kept.view(), held({1}, {5}, 4).view));
  EXPECT_TRUE(same_bits(of_dense.dropped.view(), held({0, 3}, {1, -2}, 4).view));
  EXPECT_EQ(partition_at(sparse.view, {}).dropped.count(), 3u);
  EXPECT_EQ(partition_at(Stream::empty(9).view(), {}).dropped.count(), 0u);
}

}  // namespace
}  // namespace millrace::peer
