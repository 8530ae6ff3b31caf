#include "worker/core/store_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "kernels/base/hash.h"
#include "protocol/base/limits.h"

namespace millrace::worker {
namespace {

using protocol::Place;
using protocol::Pull;
using protocol::Pulled;
using ::testing::ElementsAre;

constexpr TimeNs kResend = 2 * kNsPerS;

StoreClient::Reach reach_of(uint32_t shards, uint64_t shard_incarnation = 1,
                            uint32_t version = protocol::kProtocolVersion) {
  StoreClient::Reach reach;
  for (uint32_t shard = 0; shard < shards; ++shard) {
    reach.shards.push_back(ShardLink{{7, 3, 1, 2, shard, shard_incarnation}, version});
  }
  return reach;
}

template <typename T>
std::vector<T> sent(const Actions& actions) {
  std::vector<T> bodies;
  for (const SendAction& send : actions.sends) {
    if (const T* body = std::get_if<T>(&send.message.body)) bodies.push_back(*body);
  }
  return bodies;
}

std::vector<float> values_of(const SharedBytes& payload) {
  std::vector<float> values(payload.bytes.size() / sizeof(float));
  if (!values.empty()) std::memcpy(values.data(), payload.bytes.data(), payload.bytes.size());
  return values;
}

protocol::Message store_client_answer(uint64_t id, const std::vector<float>& values, uint64_t n = 0,
                                      uint32_t part = 0) {
  ByteBuffer bytes(values.size() * sizeof(float));
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  Pulled body;
  body.id = id;
  body.part = part;
  body.values = static_cast<uint32_t>(values.size());
  body.n = n;
  body.payload_hash = values.empty() ? 0 : hash64(bytes);
  return {{}, body, SharedBytes::from(std::move(bytes))};
}

struct Client : ::testing::Test {
  Actions turn(const StoreClient::Reach& reach) {
    Actions actions;
    client.advance(reach, now, actions);
    return actions;
  }
  std::vector<StoreClient::Done> hear(const protocol::Message& message) {
    std::vector<StoreClient::Done> done;
    client.on_pulled(message, now, done);
    return done;
  }
  StoreClient client{{.resend_after = kResend}};
  TimeNs now = kNsPerS;
};

TEST_F(Client, APullIsSentOnceAndAnswered) {
  const uint64_t id =
      client.ask({.part = 5, .shard = 1, .at_least = 3, .offset = 10, .count = 2, .indices = {}, .place = {}});
  EXPECT_TRUE(turn({{std::nullopt, std::nullopt}, false}).sends.empty()) << "no shard to ask yet";
  const Actions actions = turn(reach_of(2));
  ASSERT_EQ(actions.sends.size(), 1u);
  EXPECT_EQ(actions.sends[0].shard, 1u);
  EXPECT_EQ(actions.sends[0].message.header, reach_of(2).shards[1]->header);
  EXPECT_EQ(sent<Pull>(actions)[0], (Pull{id, 5, 0, 3, 10, 2}));
  EXPECT_TRUE(turn(reach_of(2)).sends.empty());
  const auto done = hear(store_client_answer(id, {1, 2}, 3, 5));
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].n, 3u);
  EXPECT_THAT(values_of(done[0].values), ElementsAre(1, 2));
  EXPECT_TRUE(client.idle());
  EXPECT_TRUE(hear(store_client_answer(id, {1, 2}, 3, 5)).empty()) << "again";
}

TEST_F(Client, AnswersThatDoNotFitAreNotTaken) {
  const uint64_t id =
      client.ask({.part = 0, .shard = 0, .at_least = 3, .offset = 0, .count = 2, .indices = {}, .place = {}});
  turn(reach_of(1));
  EXPECT_TRUE(hear(store_client_answer(id, {1, 2, 3}, 3)).empty()) << "too many";
  EXPECT_TRUE(hear(store_client_answer(id, {1, 2}, 2)).empty()) << "an earlier step";
  EXPECT_TRUE(hear(store_client_answer(id, {1, 2}, 3, 1)).empty()) << "another part";
  EXPECT_TRUE(hear(store_client_answer(id + 1, {1, 2}, 3)).empty()) << "another pull";
  protocol::Message damaged = store_client_answer(id, {1, 2}, 3);
  std::get<Pulled>(damaged.body).payload_hash ^= 1;
  EXPECT_TRUE(hear(damaged).empty());
  EXPECT_EQ(hear(store_client_answer(id, {1, 2}, 4)).size(), 1u);
}

TEST_F(Client, AnUnansweredPullIsRetransmitted) {
  client.ask({.part = 0, .shard = 0, .at_least = 0, .offset = 0, .count = 2, .indices = {}, .place = {}});
  EXPECT_EQ(turn(reach_of(1)).sends.size(), 1u);
  EXPECT_EQ(client.next_deadline(), now + kResend);
  now += kResend - 1;
  EXPECT_TRUE(turn(reach_of(1)).sends.empty());
  now += 1;
  EXPECT_EQ(turn(reach_of(1)).sends.size(), 1u);
  EXPECT_EQ(client.next_deadline(), now + 2 * kResend) << "doubled";
  turn({{std::nullopt}, false});
  EXPECT_EQ(turn(reach_of(1)).sends.size(), 1u) << "at once over a new connection";
  EXPECT_EQ(turn(reach_of(1, 2)).sends.size(), 1u) << "or to another start of the shard";
  EXPECT_TRUE(turn(reach_of(1, 2)).sends.empty());
}

TEST_F(Client, APullWithoutAConnectionHasNoDeadline) {
  client.ask({.part = 0, .shard = 0, .at_least = 0, .offset = 0, .count = 2, .indices = {}, .place = {}});
  turn(reach_of(1));
  turn({{std::nullopt}, false});
  EXPECT_EQ(client.next_deadline(), INT64_MAX) << "the driver would not sleep";
  EXPECT_EQ(turn(reach_of(1)).sends.size(), 1u);
}

TEST_F(Client, AnAnswerPostponesTheRepeatsOfThePullsBehindIt) {
  std::vector<uint64_t> ids;
  for (size_t at = 0; at < StoreClient::kInFlightMax; ++at)
    ids.push_back(client.ask({.at_least = 0, .offset = at, .count = 1, .indices = {}, .place = {}}));
  EXPECT_EQ(turn(reach_of(1)).sends.size(), ids.size());
  for (const uint64_t id : ids) {
    now += 340 * kNsPerMs;
    EXPECT_TRUE(turn(reach_of(1)).sends.empty()) << "16 runs need 5.4 s at 100 Mbit/s";
    EXPECT_EQ(hear(store_client_answer(id, {1})).size(), 1u);
  }
  EXPECT_TRUE(client.idle());
}

TEST_F(Client, AnOvertakenPullIsRepeatedInTime) {
  const uint64_t lost = client.ask({.at_least = 0, .offset = 0, .count = 1, .indices = {}, .place = {}});
  turn(reach_of(1));
  const TimeNs due = now + kResend;
  for (now += 100 * kNsPerMs; now < due; now += 100 * kNsPerMs) {
    const uint64_t later = client.ask({.at_least = 0, .offset = 1, .count = 1, .indices = {}, .place = {}});
    EXPECT_EQ(turn(reach_of(1)).sends.size(), 1u);
    EXPECT_EQ(hear(store_client_answer(later, {1})).size(), 1u);
  }
  const std::vector<Pull> again = sent<Pull>(turn(reach_of(1)));
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].id, lost);
}

TEST_F(Client, APullDemandsFewerStepsAfterTheWorkerWentBack) {
  uint64_t steps = 101;
  StoreClient::Reach reach = reach_of(1);
  reach.steps_applied = [&steps](uint32_t part) { return part == 4 ? steps : 0; };
  const uint64_t id =
      client.ask({.part = 4, .at_least = 7, .own_steps = 101, .offset = 0, .count = 1, .indices = {}, .place = {}});
  EXPECT_EQ(sent<Pull>(turn(reach))[0].at_least, 101u);
  steps = 102;
  EXPECT_TRUE(turn(reach).sends.empty()) << "it had 101 when it asked";
  EXPECT_TRUE(hear(store_client_answer(id, {1}, 100, 4)).empty());
  steps = 100;
  const std::vector<Pull> lowered = sent<Pull>(turn(reach));
  ASSERT_EQ(lowered.size(), 1u) << "at once: step 100 may need this worker, which waits";
  EXPECT_EQ(lowered[0].at_least, 100u);
  steps = 3;
  EXPECT_EQ(sent<Pull>(turn(reach))[0].at_least, 7u) << "the caller's own demand";
  EXPECT_EQ(hear(store_client_answer(id, {1}, 7, 4)).size(), 1u);
}

TEST_F(Client, ABusyShardIsAskedAgainSoonAndARefusalIsReported) {
  const uint64_t id =
      client.ask({.part = 0, .shard = 0, .at_least = 0, .offset = 0, .count = 1, .indices = {}, .place = {}});
  turn(reach_of(1));
  Pulled refused;
  refused.id = id;
  refused.code = ErrorCode::kUnavailable;
  EXPECT_TRUE(hear({{}, refused, {}}).empty());
  now += 100 * kNsPerMs;
  EXPECT_EQ(turn(reach_of(1)).sends.size(), 1u);
  refused.code = ErrorCode::kInvalidArgument;
  refused.sentence = "no";
  const auto done = hear({{}, refused, {}});
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].error->code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(done[0].error->message, "no");
}

TEST_F(Client, AnswersOfABusyShardAreNoLosses) {
  const uint64_t id =
      client.ask({.part = 0, .shard = 0, .at_least = 0, .offset = 0, .count = 1, .indices = {}, .place = {}});
  turn(reach_of(1));
  Pulled busy;
  busy.id = id;
  busy.code = ErrorCode::kUnavailable;
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(hear({{}, busy, {}}).empty());
    now += 100 * kNsPerMs;
    EXPECT_EQ(turn(reach_of(1)).sends.size(), 1u);
    EXPECT_EQ(client.next_deadline(), now + kResend) << "where this one is lost; " << i;
  }
}

TEST_F(Client, AsManyAreInFlightAsAShardLetsWait) {
  std::vector<uint64_t> ids;
  for (size_t at = 0; at < StoreClient::kInFlightMax + 5; ++at) {
    ids.push_back(
        client.ask({.part = 0, .shard = 0, .at_least = 0, .offset = at, .count = 1, .indices = {}, .place = {}}));
  }
  EXPECT_EQ(turn(reach_of(1)).sends.size(), StoreClient::kInFlightMax);
  EXPECT_TRUE(turn(reach_of(1)).sends.empty());
  hear(store_client_answer(ids[3], {1}));
  client.cancel(ids[4]);
  const std::vector<Pull> more = sent<Pull>(turn(reach_of(1)));
  ASSERT_EQ(more.size(), 2u);
  EXPECT_EQ(more[0].id, ids[StoreClient::kInFlightMax]);
}

TEST_F(Client, IndicesAreThePayload) {
  const SharedBytes indices = SharedBytes::from(ByteBuffer{3, 0, 0, 0, 9, 0, 0, 0});
  client.ask({.part = 0, .shard = 0, .at_least = 0, .offset = 0, .count = 0, .indices = indices, .place = {}});
  const Actions actions = turn(reach_of(1));
  EXPECT_EQ(sent<Pull>(actions)[0].indices, 2u);
  ASSERT_EQ(actions.sends[0].message.payload.bytes.size(), 8u);
  EXPECT_EQ(actions.sends[0].message.payload.bytes[4], 9);
}

SharedBytes store_client_indices(const std::vector<uint32_t>& indices) {
  ByteBuffer bytes(indices.size() * sizeof(uint32_t));
  std::memcpy(bytes.data(), indices.data(), bytes.size());
  return SharedBytes::from(std::move(bytes));
}

std::vector<uint32_t> asked_indices(const SharedBytes& payload) {
  std::vector<uint32_t> indices(payload.bytes.size() / sizeof(uint32_t));
  std::memcpy(indices.data(), payload.bytes.data(), payload.bytes.size());
  return indices;
}

TEST_F(Client, RunsAreAskedForByTheirFirstIndex) {
  const uint64_t id = client.ask({.indices = store_client_indices({3, 9}), .run = 3, .place = {}});
  const Actions actions = turn(reach_of(1));
  EXPECT_EQ(sent<Pull>(actions)[0], (Pull{.id = id, .indices = 2, .run = 3}));
  EXPECT_THAT(asked_indices(actions.sends[0].message.payload), ElementsAre(3, 9));
  EXPECT_TRUE(hear(store_client_answer(id, {1, 2})).empty()) << "too few values";
  EXPECT_EQ(hear(store_client_answer(id, {1, 2, 3, 4, 5, 6})).size(), 1u);
}

TEST_F(Client, AShardOfAnEarlierVersionIsAskedForEveryIndex) {
  const uint64_t id = client.ask({.indices = store_client_indices({3, UINT32_MAX - 2}), .run = 3, .place = {}});
  const Actions actions = turn(reach_of(1, 1, protocol::kPullRunsSince - 1));
  EXPECT_EQ(sent<Pull>(actions)[0], (Pull{.id = id, .indices = 6}));
  EXPECT_THAT(asked_indices(actions.sends[0].message.payload),
              ElementsAre(3, 4, 5, UINT32_MAX - 2, UINT32_MAX - 1, UINT32_MAX));
  const Actions newer = turn(reach_of(1, 2));
  EXPECT_EQ(sent<Pull>(newer)[0].run, 3u) << "the shard was started again, by a newer build";
  EXPECT_EQ(hear(store_client_answer(id, {1, 2, 3, 4, 5, 6})).size(), 1u);
}

TEST_F(Client, TheLowestWorkerPlacesAndTheOthersWaitForTheirTurn) {
  const std::vector<float> first(protocol::kSnapshotRunBytes / sizeof(float) + 3, 1.0F);
  const std::vector<float> second = {2, 3};
  const uint64_t id = client.ask(
      {.part = 4, .shard = 0, .at_least = 0, .offset = 0, .count = 0, .indices = {}, .place = {first, second}});
  StoreClient::Reach reach = reach_of(1);
  Actions actions = turn(reach);
  EXPECT_EQ(actions.sends.size(), 1u) << "it only asks whether they are there";
  reach.places = true;
  actions = turn(reach);
  const std::vector<Place> runs = sent<Place>(actions);
  ASSERT_EQ(runs.size(), 3u) << "4 MiB at most in one";
  EXPECT_EQ(runs[0].offset, 0u);
  EXPECT_EQ(runs[1].offset, first.size() - 3);
  EXPECT_EQ(runs[2].offset, first.size());
  EXPECT_EQ(runs[2].payload_hash, hash64(actions.sends[2].message.payload.bytes));
  EXPECT_THAT(values_of(actions.sends[2].message.payload), ElementsAre(2, 3));
  EXPECT_EQ(sent<Pull>(actions).size(), 1u) << "after them";
  EXPECT_TRUE(std::holds_alternative<Pull>(actions.sends[3].message.body));
  EXPECT_TRUE(turn(reach).sends.empty());
  EXPECT_EQ(hear(store_client_answer(id, {}, 0, 4)).size(), 1u);
}

TEST_F(Client, PlacedWeightsAreRepeatedOverAnotherConnection) {
  const std::vector<float> weights = {1, 2};
  client.ask({.indices = {}, .place = {weights}});
  StoreClient::Reach reach = reach_of(1);
  reach.places = true;
  const auto expect_sent = [&](size_t places) {
    const Actions actions = turn(reach);
    EXPECT_EQ(sent<Place>(actions).size(), places);
    EXPECT_EQ(sent<Pull>(actions).size(), 1u);
  };
  expect_sent(1);
  now += kResend;
  expect_sent(0);
  turn({{std::nullopt}, true});
  expect_sent(1);
  EXPECT_TRUE(turn(reach).sends.empty());
  reach.shards = reach_of(1, 2).shards;
  expect_sent(1);
}

TEST_F(Client, PlacedWeightsAreRepeatedOnceTheQueueIsLongEmpty) {
  const std::vector<float> weights = {1, 2};
  client.ask({.indices = {}, .place = {weights}});
  StoreClient::Reach reach = reach_of(1);
  reach.places = true;
  EXPECT_EQ(sent<Place>(turn(reach)).size(), 1u);
  const auto second_placed_after = [&](TimeNs after) {
    const TimeNs begin = now;
    for (; now < begin + after; now += kNsPerS) EXPECT_TRUE(sent<Place>(turn(reach)).empty());
    return sent<Place>(turn(reach)).size();
  };
  reach.sending = {true};
  EXPECT_EQ(second_placed_after(60 * kNsPerS), 0u) << "the first ones are still on their way";
  reach.sending = {false};
  EXPECT_EQ(second_placed_after(10 * kNsPerS), 1u);
  EXPECT_EQ(second_placed_after(20 * kNsPerS), 1u) << "doubled";
}

protocol::Message dropped_places(uint32_t part) {
  Pulled notice;
  notice.part = part;
  notice.code = ErrorCode::kUnavailable;
  return {{}, notice, {}};
}

TEST_F(Client, AShardThatSaysThatItDroppedWeightsGetsThemAgain) {
  const std::vector<float> weights = {1, 2, 3};
  constexpr uint32_t kParts = 17;  // the pull of the last one is not in flight
  for (uint32_t part = 0; part < kParts; ++part) {
    client.ask({.part = part, .shard = 0, .at_least = 0, .offset = 0, .count = 0, .indices = {}, .place = {weights}});
  }
  StoreClient::Reach reach = reach_of(1);
  reach.places = true;
  for (uint32_t part = 0; part < kParts; ++part) EXPECT_EQ(sent<Place>(turn(reach)).size(), 1u);
  EXPECT_TRUE(sent<Place>(turn(reach)).empty());
  for (TimeNs wait = 100 * kNsPerMs; wait < 10 * kNsPerS; wait *= 2) {
    EXPECT_TRUE(hear(dropped_places(kParts - 1)).empty());
    EXPECT_TRUE(hear(dropped_places(kParts - 1)).empty()) << "again";
    EXPECT_TRUE(sent<Place>(turn(reach)).empty()) << "the shard may have no room";
    EXPECT_LE(client.next_deadline(), now + wait);
    now += wait - 1;
    EXPECT_TRUE(sent<Place>(turn(reach)).empty()) << wait;
    now += 1;
    const std::vector<Place> again = sent<Place>(turn(reach));
    ASSERT_EQ(again.size(), 1u);
    EXPECT_EQ(again[0].part, kParts - 1);
  }
}

TEST_F(Client, ANoticeOfAPartWithoutPlacedWeightsChangesNothing) {
  client.ask({.part = 0, .shard = 0, .at_least = 0, .offset = 0, .count = 2, .indices = {}, .place = {}});
  turn(reach_of(1));
  const TimeNs deadline = client.next_deadline();
  EXPECT_TRUE(hear(dropped_places(0)).empty());
  EXPECT_TRUE(turn(reach_of(1)).sends.empty());
  EXPECT_EQ(client.next_deadline(), deadline);
}

TEST_F(Client, BytesOfAnAnswerDelayTheNextRequest) {
  client.ask({.part = 0, .offset = 0, .count = 2, .indices = {}, .place = {}});
  const StoreClient::Reach reach = reach_of(2);
  ASSERT_EQ(sent<Pull>(turn(reach)).size(), 1u);
  const auto sent_after = [&](uint32_t shard, uint64_t bytes, TimeNs span) {
    size_t count = 0;
    for (const TimeNs end = now + span; now < end && count == 0; now += kNsPerS / 4) {
      client.on_received(shard, bytes, now);
      count = sent<Pull>(turn(reach)).size();
    }
    return count;
  };
  EXPECT_EQ(sent_after(0, 100'000, 60 * kNsPerS), 0u) << "a slow link";
  EXPECT_EQ(sent_after(0, 200, 3 * kNsPerS), 1u) << "heartbeats alone";
  EXPECT_EQ(sent_after(1, 100'000, 5 * kNsPerS), 1u) << "another shard's";
  EXPECT_EQ(sent_after(0, 8'000'000, 60 * kNsPerS), 1u) << "more than all answers under way";
}

TEST_F(Client, APullBehindAQueueIsNotAskedForAgain) {
  client.ask({.part = 0, .offset = 0, .count = 2, .indices = {}, .place = {}});
  StoreClient::Reach reach = reach_of(1);
  ASSERT_EQ(sent<Pull>(turn(reach)).size(), 1u);
  const auto sent_after = [&](TimeNs span) {
    size_t count = 0;
    for (const TimeNs end = now + span; now < end; now += kNsPerS / 4) count += sent<Pull>(turn(reach)).size();
    return count;
  };
  reach.sending = {true};
  EXPECT_EQ(sent_after(50 * kNsPerS), 0u);
  reach.sending = {false};
  EXPECT_EQ(sent_after(kResend + kNsPerS), 1u) << "the shard has it, and does not answer";
  reach.sending = {true};
  EXPECT_EQ(sent_after(60 * kNsPerS), 0u);
  EXPECT_EQ(sent_after(10 * kNsPerS), 1u) << "the queue never ends";
}

TEST_F(Client, EachTurnPlacesOnePartIntoAnEmptyQueue) {
  const std::vector<float> weights = {1, 2};
  constexpr auto kParts = static_cast<uint32_t>(StoreClient::kInFlightMax + 2);
  for (uint32_t part = 0; part < kParts; ++part) client.ask({.part = part, .indices = {}, .place = {weights}});
  StoreClient::Reach reach = reach_of(1);
  reach.places = true;
  reach.queued = {true};
  EXPECT_TRUE(turn(reach).sends.empty());
  reach.queued = {false};
  size_t pulls = 0;
  for (uint32_t part = 0; part < kParts; ++part) {
    const Actions actions = turn(reach);
    const std::vector<Place> runs = sent<Place>(actions);
    ASSERT_EQ(runs.size(), 1u) << "also of parts whose pull has to wait";
    EXPECT_EQ(runs[0].part, part);
    EXPECT_EQ(client.next_deadline() <= now, part + 1 < kParts) << part;
    pulls += sent<Pull>(actions).size();
  }
  EXPECT_EQ(pulls, StoreClient::kInFlightMax);
  EXPECT_TRUE(turn(reach).sends.empty());
}

}  // namespace
}  // namespace millrace::worker
