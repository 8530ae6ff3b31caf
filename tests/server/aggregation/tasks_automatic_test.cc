#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <utility>

#include "protocol/container/container.h"
#include "server/aggregation/tasks.h"

/// Updates whose codecs are chosen while they are made: every choice gives the same entries.
namespace millrace::server {
namespace {

Stream sum_of_mean_gap(uint64_t gap) {
  RandomSequence random(random_key(7, gap));
  Stream sum = Stream::empty(40'000);
  for (uint64_t index = random.next_below(gap); index < sum.dimension; index += 1 + random.next_below(2 * gap - 1)) {
    sum.indices.push_back(static_cast<uint32_t>(index));
    sum.values.push_back(static_cast<float>(1 + random.next_below(50)));
  }
  return sum;
}

EncodePlan automatic(double link_rate) {
  EncodePlan plan;
  plan.codec = codec_from_text("auto").value();
  plan.automatic = AutomaticCodec{{}, {fallback_speeds, link_rate}, 4};
  return plan;
}

TEST(AutomaticUpdate, HasTheEntriesOfTheSumInAnyForm) {
  bool dense = false;
  bool sparse = false;
  for (const uint64_t gap : {1, 2, 20, 1'000}) {
    const Stream sum = sum_of_mean_gap(gap);
    for (const bool from_dense : {false, true}) {
      for (const double rate : {1e5, 1e9, 1e15}) {
        const auto given = SharedStream::from(from_dense ? to_dense(sum.view()) : Stream(sum));
        const auto update = encode_update(given, automatic(rate));
        ASSERT_TRUE(update) << update.error().message;
        ASSERT_TRUE(update->chooser && update->chooser->choice());
        const auto decoded = read_container(update->container.bytes, {});
        ASSERT_TRUE(decoded);
        EXPECT_EQ(decoded->dense, update->chooser->choice()->chosen.dense);
        EXPECT_EQ(update->entries, decoded->count());
        EXPECT_EQ(update->codec_error, 0);
        const Stream entries = to_sparse(decoded->view());
        EXPECT_EQ(entries.indices, sum.indices);
        EXPECT_EQ(entries.values, sum.values);
        (decoded->dense ? dense : sparse) = true;
      }
    }
  }
  EXPECT_TRUE(dense && sparse);
}

TEST(AutomaticUpdate, OneThatWasCutStaysSparse) {
  const Stream sum = sum_of_mean_gap(1);
  EncodePlan plan = automatic(1e15);
  plan.extent = Extent::kItsIndices;
  plan.largest = sum.count() - 1;
  const auto update = encode_update(SharedStream::from(Stream(sum)), plan);
  ASSERT_TRUE(update);
  const auto decoded = read_container(update->container.bytes, {});
  ASSERT_TRUE(decoded);
  EXPECT_FALSE(decoded->dense) << "workers would take all that they sent for applied";
  EXPECT_EQ(decoded->count(), sum.count() - 1);
}

TEST(AutomaticUpdate, LeavesThePlansChooserAlone) {
  const EncodePlan plan = automatic(1e9);
  const auto sum = SharedStream::from(sum_of_mean_gap(20));
  const auto first = encode_update(sum, plan);
  const auto second = encode_update(sum, plan);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(plan.automatic->chooser.choice(), nullptr);
  EXPECT_EQ(first->chooser->choice()->text(), second->chooser->choice()->text());
}

TEST(AutomaticUpdate, OfNothingIsEmpty) {
  const auto update = encode_update(SharedStream::from(Stream::empty(100)), automatic(1e9));
  ASSERT_TRUE(update);
  EXPECT_EQ(update->entries, 0u);
  EXPECT_EQ(update->chooser->choice(), nullptr);
}

TEST(AutomaticUpdate, AValueThatItsCodecRefusesIsAnError) {
  for (const char* codec : {"auto+bf16", "auto+f16"}) {
    EncodePlan plan = automatic(1e9);
    plan.codec = codec_from_text(codec).value();
    Stream sum = sum_of_mean_gap(20);
    sum.values.back() = std::numeric_limits<float>::max();
    const auto update = encode_update(SharedStream::from(std::move(sum)), plan);
    ASSERT_FALSE(update) << codec;
    EXPECT_EQ(update.error().code, ErrorCode::kLimitExceeded);
  }
}

TEST(AutomaticUpdate, KeepsTheValueCodecThatIsNamed) {
  EncodePlan plan = automatic(1e9);
  plan.codec = codec_from_text("auto+qsgd8").value();
  const auto update = encode_update(SharedStream::from(sum_of_mean_gap(20)), plan);
  ASSERT_TRUE(update);
  const auto header = read_container_header(update->container.bytes);
  ASSERT_TRUE(header);
  EXPECT_EQ(header->value_codec, ValueCodecId::kQsgd);
  EXPECT_FALSE(header->dense);
}

}  // namespace
}  // namespace millrace::server
