#include "worker/peer/group/peer_core.h"

#include <gtest/gtest.h>

#include <optional>
#include <utility>

#include "kernels/base/bytes.h"
#include "tests/worker/peer/pump.h"

/// Ranks that are dead, stuck, or run something else.
namespace millrace::peer::testing {
namespace {

constexpr TimeNs kSecond = kNsPerS;

/// Every rank sends its number to the next one around the ring, and waits for that of the one before.
Collective ring(const std::string& description) {
  return {description, [](Channel& channel) -> Task<Status> {
            const uint32_t size = channel.size();
            channel.send((channel.rank() + 1) % size, 1, {});
            co_await channel.receive((channel.rank() + size - 1) % size, 1);
            co_return Status{};
          }};
}

TEST(PeerCore, CollectivesInFlightTogetherDoNotMix) {
  Pump pump(4, 1);
  for (uint32_t rank = 0; rank < 4; ++rank) {
    for (int i = 0; i < 3; ++i) ASSERT_EQ(pump.start(rank, ring("ring")).value(), static_cast<uint32_t>(i));
  }
  pump.deliver_all();
  for (uint32_t rank = 0; rank < 4; ++rank) {
    for (uint32_t i = 0; i < 3; ++i) {
      ASSERT_TRUE(pump.core(rank).ended(i));
      EXPECT_TRUE(pump.core(rank).take_status(i).has_value());
    }
    EXPECT_EQ(pump.core(rank).unexpected_messages(), 0u);
  }
}

TEST(PeerCore, MessagesForACollectiveThatHasNotStartedWaitForIt) {
  Pump pump(2, 1);
  ASSERT_TRUE(pump.start(0, ring("ring")).has_value());
  pump.deliver_all();
  EXPECT_FALSE(pump.core(0).ended(0));
  ASSERT_TRUE(pump.start(1, ring("ring")).has_value());
  EXPECT_TRUE(pump.core(1).ended(0));
  pump.deliver_all();
  EXPECT_TRUE(pump.core(0).ended(0));
}

TEST(PeerCore, ASilentRankIsNamedOnAllOthersWithinTheStatedTime) {
  GroupOptions options;
  options.silence_ms_max = 1'000;
  Pump pump(4, 1, options);
  pump.kill(2);
  for (const uint32_t rank : {0u, 1u, 3u}) ASSERT_TRUE(pump.start(rank, ring("ring")).has_value());
  for (; pump.now <= 1'300 * kNsPerMs; pump.now += 50 * kNsPerMs) {
    pump.deliver_all();
    for (const uint32_t rank : {0u, 1u, 3u}) pump.tick(rank);
  }
  pump.deliver_all();
  for (const uint32_t rank : {0u, 1u, 3u}) {
    ASSERT_TRUE(pump.core(rank).failure().has_value()) << rank;
    EXPECT_EQ(pump.core(rank).failure()->rank, 2u);
    EXPECT_EQ(pump.core(rank).failure()->error.code, ErrorCode::kTimeout);
    EXPECT_FALSE(pump.start(rank, ring("ring")).has_value());
  }
}

TEST(PeerCore, ARankThatMissedTheAbortGetsTheReasonWhenItAsks) {
  PeerCore asking(0, 3, {}), asked(1, 3, {});
  Actions actions;
  ASSERT_TRUE(asking.start(ring("ring"), 0, actions).has_value());
  ASSERT_TRUE(asked.start(ring("ring"), 0, actions).has_value());
  asked.fail_group({{ErrorCode::kTimeout, "rank 2 is silent"}, 2}, 0, actions);
  PeerMessage question;
  question.kind = MessageKind::kAsk;
  Actions answer;
  asked.on_message(0, std::move(question), kSecond, answer);
  ASSERT_EQ(answer.sends.size(), 1U);
  EXPECT_EQ(answer.sends[0].to, 0U);
  asking.on_message(1, std::move(answer.sends[0].message), kSecond, actions);
  ASSERT_TRUE(asking.failure().has_value());
  EXPECT_EQ(asking.failure()->rank, std::optional<uint32_t>(2));
  EXPECT_EQ(asking.failure()->error.message, "rank 2 is silent");
}

TEST(PeerCore, ARankThatIsAliveAndSlowToStartCausesNoTimeOut) {
  GroupOptions options;
  options.silence_ms_max = 1'000;
  Pump pump(2, 1, options);
  ASSERT_TRUE(pump.start(0, ring("ring")).has_value());
  for (; pump.now <= 60 * kSecond; pump.now += 100 * kNsPerMs) {
    pump.deliver_all();
    for (const uint32_t rank : {0u, 1u}) pump.tick(rank);
  }
  ASSERT_FALSE(pump.core(0).failure().has_value());
  ASSERT_TRUE(pump.start(1, ring("ring")).has_value());
  pump.deliver_all();
  EXPECT_TRUE(pump.core(0).ended(0));
}

TEST(PeerCore, ARankThatNeverStartsIsNamedAfterTheStatedTime) {
  GroupOptions options;
  options.silence_ms_max = 1'000;
  options.start_ms_max = 5'000;
  Pump pump(2, 1, options);
  ASSERT_TRUE(pump.start(0, ring("ring")).has_value());
  for (; pump.now <= 6 * kSecond; pump.now += 100 * kNsPerMs) {
    pump.deliver_all();
    for (const uint32_t rank : {0u, 1u}) pump.tick(rank);
  }
  for (const uint32_t rank : {0u, 1u}) {
    ASSERT_TRUE(pump.core(rank).failure().has_value());
    EXPECT_EQ(pump.core(rank).failure()->rank, 1u);
  }
}

TEST(PeerCore, ARankWhoseMessageNeverComesAlthoughItIsAliveIsNamed) {
  GroupOptions options;
  options.silence_ms_max = 1'000;
  options.start_ms_max = 2'000;
  const auto waiting_for_tag = [](uint32_t tag) {
    return Collective{"each for the other", [tag](Channel& channel) -> Task<Status> {
                        co_await channel.receive(1 - channel.rank(), tag);
                        co_return Status{};
                      }};
  };
  Pump pump(2, 1, options);
  for (const uint32_t rank : {0u, 1u}) ASSERT_TRUE(pump.start(rank, waiting_for_tag(rank)).has_value());
  const auto pass_to = [&pump](TimeNs end) {
    for (; pump.now <= end; pump.now += 100 * kNsPerMs) {
      pump.deliver_all();
      for (const uint32_t rank : {0u, 1u}) pump.tick(rank);
    }
  };
  pass_to(3'900 * kNsPerMs);
  for (const uint32_t rank : {0u, 1u}) EXPECT_FALSE(pump.core(rank).failure().has_value());
  pass_to(5 * kSecond);
  for (const uint32_t rank : {0u, 1u}) {
    ASSERT_TRUE(pump.core(rank).failure().has_value());
    EXPECT_EQ(pump.core(rank).failure()->error.code, ErrorCode::kTimeout);
  }
}

/// Each waits for the other one. A message is a sign of life, and no reason to ask at once.
TEST(PeerCore, RanksThatWaitForEachOtherAskAtTheStatedPace) {
  GroupOptions options;
  options.silence_ms_max = 1'000;
  Pump pump(2, 1, options);
  for (const uint32_t rank : {0u, 1u}) {
    const Collective waiting{"each for the other", [](Channel& channel) -> Task<Status> {
                               co_await channel.receive(1 - channel.rank(), 1);
                               co_return Status{};
                             }};
    ASSERT_TRUE(pump.start(rank, waiting).has_value());
  }
  constexpr TimeNs kTime = 4 * kSecond;
  for (; pump.now <= kTime; pump.now += kNsPerMs) {
    pump.deliver_all();
    for (const uint32_t rank : {0u, 1u}) pump.tick(rank);
  }
  const uint64_t asks_of_a_rank = kTime / (250 * kNsPerMs) + 1;
  EXPECT_LE(pump.messages, 2 * 2 * asks_of_a_rank) << "with their answers";
  EXPECT_GE(pump.messages, 10u);
  for (const uint32_t rank : {0u, 1u}) EXPECT_FALSE(pump.core(rank).failure().has_value());
}

TEST(PeerCore, BytesOfALongMessageAreASignOfLife) {
  GroupOptions options;
  options.silence_ms_max = 1'000;
  PeerCore core(0, 2, options);
  Actions actions;
  ASSERT_TRUE(core.start(ring("ring"), 0, actions).has_value());
  const auto pass = [&](TimeNs from, TimeNs to) {
    for (TimeNs now = from; now < to; now += 50 * kNsPerMs) core.on_tick(now, actions);
  };
  for (TimeNs now = 0; now < 5 * kSecond; now += kSecond) {
    pass(now, now + kSecond);
    core.on_heard(1, now + kSecond);
  }
  EXPECT_FALSE(core.failure().has_value());
  pass(5 * kSecond, 6'400 * kNsPerMs);
  ASSERT_TRUE(core.failure().has_value()) << "the bytes have stopped";
  EXPECT_EQ(core.failure()->rank, std::optional<uint32_t>(1));
}

TEST(PeerCore, ACollectiveWithoutANumberLeftIsRefused) {
  GroupOptions options;
  options.collectives_max = 2;
  Pump pump(2, 1, options);
  for (const uint32_t rank : {0u, 1u, 0u, 1u}) ASSERT_TRUE(pump.start(rank, ring("ring")).has_value());
  pump.deliver_all();
  for (const uint32_t rank : {0u, 1u}) {
    const auto refused = pump.start(rank, ring("ring"));
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, ErrorCode::kLimitExceeded);
    EXPECT_TRUE(pump.core(rank).ended(1)) << "those before are not touched";
    EXPECT_FALSE(pump.core(rank).failure().has_value());
  }
}

/// A malformed message is its sender's fault, and the sender is not known here.
TEST(PeerCore, AMalformedMessageIsNotBlamedOnItsReceiver) {
  for (const auto& [code, at_fault] : {std::pair{ErrorCode::kMalformed, std::optional<uint32_t>()},
                                       std::pair{ErrorCode::kNonFinite, std::optional<uint32_t>(1)}}) {
    Pump pump(3, 1);
    for (uint32_t rank = 0; rank < 3; ++rank) {
      const Collective failing{"fails at rank 1", [code](Channel& channel) -> Task<Status> {
                                 if (channel.rank() == 1) co_return fail(code, "it is so");
                                 co_await channel.receive(1, 1);
                                 co_return Status{};
                               }};
      ASSERT_TRUE(pump.start(rank, failing).has_value());
    }
    pump.deliver_all();
    for (uint32_t rank = 0; rank < 3; ++rank) {
      ASSERT_TRUE(pump.core(rank).failure().has_value());
      EXPECT_EQ(pump.core(rank).failure()->rank, at_fault);
    }
  }
}

TEST(PeerCore, AnAbortWithAnUnknownCodeEndsTheGroup) {
  PeerCore core(0, 2, {});
  Actions actions;
  ASSERT_TRUE(core.start(ring("ring"), 0, actions).has_value());
  PeerMessage abort;
  abort.kind = MessageKind::kAbort;
  ByteBuffer body;
  ByteWriter out(body);
  out.put(uint16_t{999});
  out.put(uint32_t{77});
  abort.body = SharedBytes::from(std::move(body));
  core.on_message(1, std::move(abort), 1, actions);
  ASSERT_TRUE(core.failure().has_value());
  EXPECT_EQ(core.failure()->error.code, ErrorCode::kInternal);
  EXPECT_FALSE(core.failure()->rank.has_value());
}

TEST(PeerCore, DifferentCollectivesAreAnErrorThatNamesBothOnAllRanks) {
  Pump pump(3, 1);
  ASSERT_TRUE(pump.start(0, ring("ring of f32")).has_value());
  ASSERT_TRUE(pump.start(1, ring("ring of f64")).has_value());
  ASSERT_TRUE(pump.start(2, ring("ring of f32")).has_value());
  pump.deliver_all();
  for (uint32_t rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(pump.core(rank).failure().has_value()) << rank;
    const Error& error = pump.core(rank).failure()->error;
    EXPECT_EQ(error.code, ErrorCode::kJobMismatch);
    EXPECT_NE(error.message.find("ring of f32"), std::string::npos) << error.message;
    EXPECT_NE(error.message.find("ring of f64"), std::string::npos) << error.message;
  }
}

TEST(PeerCore, AnErrorOfOneRankEndsTheGroupOnAll) {
  Pump pump(3, 1);
  for (const uint32_t rank : {0u, 2u}) ASSERT_TRUE(pump.start(rank, ring("ring")).has_value());
  const Collective bad{"ring", [](Channel&) -> Task<Status> { co_return fail(ErrorCode::kNonFinite, "a NaN"); }};
  ASSERT_TRUE(pump.start(1, bad).has_value());
  pump.deliver_all();
  for (uint32_t rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(pump.core(rank).failure().has_value());
    EXPECT_EQ(pump.core(rank).failure()->rank, 1u);
    EXPECT_EQ(pump.core(rank).failure()->error.code, ErrorCode::kNonFinite);
    // Rank 0 waits for rank 2 alone, which has sent: it may have come to its end before.
    if (rank == 0) continue;
    EXPECT_EQ(pump.core(rank).take_status(0).error().code, ErrorCode::kNonFinite);
  }
}

TEST(PeerCore, ARankTooFarAheadIsStoppedBeforeMemoryEnds) {
  GroupOptions options;
  options.early_bytes_max = 10'000;
  Pump pump(2, 1, options);
  const Collective flood{"flood", [](Channel& channel) -> Task<Status> {
                           ByteBuffer bytes(1'000);
                           const Packet packet{BodyForm::kNumbers, SharedBytes::from(std::move(bytes))};
                           for (uint32_t tag = 0; tag < 20; ++tag) channel.send(1, tag, packet);
                           co_return Status{};
                         }};
  ASSERT_TRUE(pump.start(0, flood).has_value());
  pump.deliver_all();
  ASSERT_TRUE(pump.core(1).failure().has_value());
  EXPECT_EQ(pump.core(1).failure()->error.code, ErrorCode::kLimitExceeded);
}

}  // namespace
}  // namespace millrace::peer::testing
