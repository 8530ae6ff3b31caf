#include <gtest/gtest.h>

#include <limits>

#include "tests/worker/core/scripted_core.h"

/// Feeds arbitrary messages of a shard in any order: the core answers, drops and counts, or ends with an error. It
/// never breaks, and its residual stays the sum of the values that were pushed and not applied.
namespace millrace::testing {
namespace {

class Hostile : public ScriptedCore {
 protected:
  uint64_t near(uint64_t value, RandomSequence& random) {
    switch (random.next_below(60)) {
      case 0: return value + 1;
      case 1: return value == 0 ? 0 : value - 1;
      case 2: return random.next_u64();
      default: return value;
    }
  }

  protocol::Membership some_view(RandomSequence& random) {
    protocol::Membership membership = membership_;
    membership.epoch = near(membership.epoch, random);
    membership.job = near(membership.job, random);
    if (random.next_below(60) == 0) membership.members.resize(random.next_below(3));
    if (random.next_below(60) == 0) membership.shards.resize(random.next_below(4));
    for (protocol::Member& member : membership.members) member.incarnation = near(member.incarnation, random);
    return membership;
  }

  SharedBytes some_payload(uint32_t part, RandomSequence& random) {
    const uint64_t right = part < 2 ? part_dimension(part) : 10;
    const uint64_t dimension = near(right, random) % 300'000 + (right >= 300'000 ? 2 : 0);
    if (dimension < 2) return {};
    SharedBytes good = sum_of({{0, 1}, {static_cast<uint32_t>(dimension) - 1, 2}}, dimension);
    if (random.next_below(20) != 0) return good;
    ByteBuffer bytes(good.bytes.begin(), good.bytes.end());
    if (random.next_below(2) == 0) bytes.resize(random.next_below(bytes.size()));
    if (!bytes.empty()) bytes[random.next_below(bytes.size())] ^= static_cast<uint8_t>(1 + random.next_below(255));
    return SharedBytes::from(std::move(bytes));
  }

  protocol::Message some_message(uint32_t shard, RandomSequence& random) {
    const auto part = static_cast<uint32_t>(near(shard, random));
    const uint64_t step = near(core().part_steps_applied(shard), random);
    protocol::Message message = from_shard(shard, protocol::Heartbeat{});
    switch (random.next_below(10)) {
      case 0: {
        protocol::Welcome welcome;
        welcome.membership = some_view(random);
        message.body = welcome;
        break;
      }
      case 1: message.body = protocol::MembershipChange{some_view(random)}; break;
      case 2: message.body = protocol::Duplicate{part, step}; break;
      case 3:
        if (random.next_below(20) == 0) message.body = protocol::StepDecided{part, step, random.next_below(2) == 0};
        break;
      case 4: message.body = protocol::Ack{{{part, step}}}; break;
      case 5: {
        protocol::Refuse refuse{ErrorCode::kStale, "so", random.next_below(60) != 0};
        refuse.about_contribution = true;
        refuse.part = part;
        refuse.step = step;
        message.body = refuse;
        break;
      }
      case 6: {
        protocol::Heartbeat heartbeat;
        heartbeat.steps_applied = step;
        message.body = heartbeat;
        break;
      }
      default: {
        protocol::Update update = update_of(part, step);
        if (random.next_below(4) == 0) update.contributors.resize(random.next_below(2));
        update.whole_sum = random.next_below(2) == 0;
        message.body = update;
        message.payload = some_payload(part, random);
      }
    }
    message.header.epoch = near(message.header.epoch, random);
    message.header.incarnation = near(message.header.incarnation, random);
    message.header.shard_incarnation = random.next_below(64) == 0 ? near(1, random) : 1;
    return message;
  }
};

TEST_F(Hostile, NonPositiveWeight_RefusedAndNoGradientTaken) {
  config_.spec.combine = protocol::Combine::kWeightedMean;
  make_running();
  const std::vector<uint32_t> indices{5};
  const std::vector<float> values{1};
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float weight : {0.0f, -0.0f, -1.0f, infinity, std::numeric_limits<float>::quiet_NaN()}) {
    const auto sparse = core().push_sparse(0, indices, values, weight, now_);
    ASSERT_FALSE(sparse.has_value()) << weight;
    EXPECT_EQ(sparse.error().code, ErrorCode::kInvalidArgument) << weight;
    EXPECT_NE(sparse.error().message.find("weight"), std::string::npos) << sparse.error().message;
    const auto dense = core().push_dense(0, std::vector<float>(kDimension, 1), weight, now_);
    ASSERT_FALSE(dense.has_value()) << weight;
    EXPECT_EQ(dense.error().code, ErrorCode::kInvalidArgument) << weight;
  }
  EXPECT_EQ(core().steps_pushed(0), 0u);
  EXPECT_TRUE(residual().empty());
  push(indices, values);
  EXPECT_EQ(take_sent<protocol::Contribution>().size(), 2u) << "a positive one goes";
}

TEST_F(Hostile, NothingAShardSaysBreaksTheCore) {
  config_.spec.staleness = 2;
  config_.spec.select = {.selection = SelectionId::kTopK, .k = 3};
  watch_ = Watch::kNothing;
  uint64_t steps_applied = 0;
  for (uint64_t seed = 0; seed < 3'000; ++seed) {
    RandomSequence random(random_key(seed, 7));
    make_running();
    for (int i = 0; i < 200 && !core().error(); ++i) {
      const auto shard = static_cast<uint32_t>(random.next_below(2));
      core().on_message(shard, some_message(shard, random), now_, actions_);
      if (core().steps_pushed(0) < core().steps_allowed(0)) {
        const auto pushed = core().push_sparse(0, std::vector<uint32_t>{1, 150'000, static_cast<uint32_t>(i)},
                                               std::vector<float>{1, -1, 2}, 1, now_);
        ASSERT_TRUE(pushed.has_value() || core().error());
      }
      while (core().work(now_, actions_)) {
      }
      if (random.next_below(10) == 0)
        core().on_disconnected(shard, {ErrorCode::kUnavailable, "broken"}, now_, actions_);
      if (random.next_below(5) == 0) core().on_connected(shard, now_, actions_);
      pass(static_cast<TimeNs>(random.next_below(kNsPerS / 2)));
      core().end_pass(now_, actions_);
      actions_.clear();
    }
    steps_applied += core().steps_applied(0);
    // The state can be read and saved after any outcome.
    EXPECT_TRUE(validate(std::as_const(core().saved_state().tensors[0].residual).view()).has_value());
  }
  EXPECT_GT(steps_applied, 100u) << "the messages must get somewhere";
}

}  // namespace
}  // namespace millrace::testing
