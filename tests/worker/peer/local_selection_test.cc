#include "worker/peer/local_selection.h"

#include <gtest/gtest.h>

#include <limits>

#include "kernels/base/random.h"
#include "tests/support/stream_oracle.h"

namespace millrace::peer {
namespace {

using millrace::testing::same_bits;

AllreduceSettings<float> settings(uint64_t dimension, uint64_t k) {
  AllreduceSettings<float> out;
  out.dimension = dimension;
  out.k = k;
  return out;
}

TEST(LocalSelection, AllOfAContributionThatHasNoMore) {
  LocalSelection<float> selection(Selection::kThresholdReuse, settings(1000, 3));
  for (int step = 0; step < 40; ++step) {
    // Ever smaller values: a threshold that is used again would leave them out.
    const float value = 1.0F / static_cast<float>(1 << std::min(step, 20));
    const Stream<float> own{1000, false, {4, 70, 999}, {value, -value, value / 2}};
    const Result<Stream<float>> taken = selection.take(own.view());
    ASSERT_TRUE(taken.has_value());
    EXPECT_TRUE(same_bits(taken->view(), own.view())) << step;
  }
  EXPECT_EQ(selection.take(Stream<float>::empty(1000).view())->count(), 0u);
}

TEST(LocalSelection, NeverZerosAndOfNoMoreThanThereAre) {
  LocalSelection<float> selection(Selection::kThresholdReuse, settings(1000, 3));
  const Stream<float> own{1000, false, {4, 70, 999}, {1, 0, -2}};
  const Result<Stream<float>> taken = selection.take(own.view());
  ASSERT_TRUE(taken.has_value());
  EXPECT_EQ(taken->indices, (IndexBuffer{4, 999}));
  const Stream<float> more{1000, false, {4, 70, 500, 999}, {1, 5, 4, -2}};
  LocalSelection<float> exact(Selection::kThresholdReuse, settings(1000, 3));
  EXPECT_EQ(exact.take(more.view())->indices, (IndexBuffer{70, 500, 999}));
}

TEST(LocalSelection, RefusesWhatIsNoNumberHoweverFewThereAre) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    LocalSelection<float> selection(Selection::kThresholdReuse, settings(1000, 3));
    const Stream<float> own{1000, false, {4, 70}, {bad, 1}};
    const Result<Stream<float>> taken = selection.take(own.view());
    ASSERT_FALSE(taken.has_value());
    EXPECT_EQ(taken.error().code, ErrorCode::kNonFinite);
  }
  LocalSelection<float> other(Selection::kThresholdReuse, settings(1000, 3));
  EXPECT_EQ(other.take(Stream<float>::empty(999).view()).error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace millrace::peer
