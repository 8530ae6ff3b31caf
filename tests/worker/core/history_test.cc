#include <gtest/gtest.h>

#include "kernels/codec/history/index_history.h"
#include "protocol/container/history_payload.h"
#include "tests/worker/core/returning_core.h"

/// Jobs with `history`: the contributions that go out shortened, and the cases in which they do not.
namespace millrace::testing {
namespace {

using protocol::Contribution;

class History : public ReturningCore {
 protected:
  History() {
    config_.spec.history = true;
    config_.history_saves_min = INT64_MIN;
  }

  /// Contributions to part 0, sent since.
  std::vector<protocol::Message> sent_to_first() {
    std::vector<protocol::Message> found;
    for (auto& [shard, message] : take_sent<Contribution>()) {
      if (std::get<Contribution>(message.body).part == 0) found.push_back(std::move(message));
    }
    return found;
  }
  protocol::Message push_and_take(const std::vector<uint32_t>& indices) {
    push(indices, std::vector<float>(indices.size(), 1.0f));
    std::vector<protocol::Message> sent = sent_to_first();
    EXPECT_EQ(sent.size(), 1u);
    return sent.empty() ? protocol::Message{} : std::move(sent.front());
  }
  /// A step of both parts, in which every other one of the entries is 0.
  void step(uint64_t number, uint64_t branch = 0) {
    for (uint32_t part = 0; part < 2; ++part) {
      protocol::Update update = update_of(part, number);
      update.branch = branch;
      hear(part, std::move(update), sum_of({{5, 1}, {6, 0}, {7, 2}}, part_dimension(part)));
    }
  }
  ContainerLimits limits() const {
    ContainerLimits limits;
    limits.dimension = limits.count_max = part_dimension(0);
    limits.bytes_max = 1 << 20;
    return limits;
  }
  protocol::Refuse refusal(uint64_t step) const {
    protocol::Refuse refuse{ErrorCode::kStale, "coded against another history", true};
    refuse.about_contribution = true;
    refuse.step = step;
    return refuse;
  }
};

TEST_F(History, AShardWithTheSameUpdatesDecodesEveryContribution) {
  make_running();
  IndexHistory shard(part_dimension(0));
  for (uint64_t at = 0; at < 70; ++at) {
    const protocol::Message sent = push_and_take({5, 7, 9});
    ASSERT_TRUE(is_shortened(sent.payload.bytes)) << at;
    const auto plain = restore_by_history(sent.payload.bytes, shard, limits());
    ASSERT_TRUE(plain.has_value()) << at << ": " << plain.error().message;
    EXPECT_EQ(container_identity(*plain).value(), std::get<Contribution>(sent.body).payload_hash);
    step(at);
    shard.advance(IndexBuffer{5, 7});
  }
  EXPECT_EQ(core().counters().history_shortened, 140u);
}

TEST_F(History, ContributionUnreadableForTheShard_SentPlainForAPeriod) {
  make_running();
  const protocol::Message first = push_and_take({5, 7, 9});
  ASSERT_TRUE(is_shortened(first.payload.bytes));
  hear(0, refusal(0));
  const std::vector<protocol::Message> again = sent_to_first();
  ASSERT_EQ(again.size(), 1u) << "at once";
  EXPECT_EQ(container_identity(again[0].payload.bytes).value(), std::get<Contribution>(first.body).payload_hash);
  EXPECT_EQ(core().counters().history_refused, 1u);
  step(0);
  for (uint64_t at = 1; at <= kHistoryPeriod; ++at) {
    EXPECT_EQ(is_shortened(push_and_take({5, 7, 9}).payload.bytes), at == kHistoryPeriod) << at;
    step(at);
  }
}

TEST_F(History, AResendIsPlain) {
  make_running();
  ASSERT_TRUE(is_shortened(push_and_take({5, 7}).payload.bytes));
  pass(10 * kNsPerS);
  const std::vector<protocol::Message> again = sent_to_first();
  ASSERT_FALSE(again.empty());
  for (const protocol::Message& message : again) EXPECT_FALSE(is_shortened(message.payload.bytes));
}

TEST_F(History, OfANewActivationOfTheShardNothingIsKnownAtFirst) {
  make_running();
  for (uint64_t at = 0; at < 3; ++at) {
    push_and_take({5});
    step(at);
  }
  push_and_take({5});
  step(3, 1);
  const uint64_t complete_at = (kHistoryPeriodsPast + 1) * kHistoryPeriod;
  for (uint64_t at = 4; at <= complete_at; ++at) {
    ASSERT_EQ(is_shortened(push_and_take({5}).payload.bytes), at == complete_at) << at;
    step(at, 1);
  }
}

TEST_F(History, WithoutTheOptionNothingIsShortened) {
  config_.spec.history = false;
  make_running();
  EXPECT_FALSE(is_shortened(push_and_take({5, 7}).payload.bytes));
}

}  // namespace
}  // namespace millrace::testing
