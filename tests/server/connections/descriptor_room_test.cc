#include "server/connections/descriptor_room.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

/// Which descriptors of a shard's process are workers', and which are kept.
namespace millrace::server {
namespace {

using ::testing::HasSubstr;

struct Room {
  uint64_t used = 25;
  uint64_t accepted = 0;
  int counts = 0;
  void connect(uint64_t connections = 1) {
    used += connections;
    accepted += connections;
  }
  DescriptorRoom with_limit(uint64_t limit, uint32_t shards = 1) {
    return DescriptorRoom({.limit = limit,
                           .shards = shards,
                           .count = [this]() -> std::optional<uint64_t> {
                             ++counts;
                             return used;
                           },
                           .accepted = [this] { return accepted; }});
  }
};

TEST(DescriptorRoom, TheFirstWorkerMustFitOrTheShardDoesNotStart) {
  Room room;
  const Status few = room.with_limit(20).judge_start();
  ASSERT_FALSE(few);
  EXPECT_EQ(few.error().code, ErrorCode::kLimitExceeded);
  EXPECT_THAT(few.error().message, HasSubstr("may open 20 files, and needs 106"));
  EXPECT_THAT(few.error().message, HasSubstr("ulimit -n"));
  EXPECT_FALSE(room.with_limit(105).judge_start());
  EXPECT_TRUE(room.with_limit(106).judge_start());
  EXPECT_TRUE(room.with_limit(1'024).judge_start());
}

TEST(DescriptorRoom, EveryOtherShardIsCountedIn) {
  Room room;
  EXPECT_TRUE(room.with_limit(106, 1).judge_start());
  EXPECT_FALSE(room.with_limit(106, 2).judge_start());
  EXPECT_TRUE(room.with_limit(114, 2).judge_start());
  EXPECT_EQ(room.with_limit(1'000, 2).accept_below() + 8, room.with_limit(1'000, 1).accept_below());
}

TEST(DescriptorRoom, FewerWorkersThanTheLimitsAllowAreWorthASentence) {
  Room room;
  const Limits limits{.jobs_max = 2, .workers_max = 50};
  EXPECT_EQ(room.with_limit(205).warning(limits), "");
  const std::string warning = room.with_limit(204).warning(limits);
  EXPECT_THAT(warning, HasSubstr("enough for 99 workers"));
  EXPECT_THAT(warning, HasSubstr("--jobs-max 2 and --workers-max 50 allow 100"));
  EXPECT_THAT(room.with_limit(10).warning(limits), HasSubstr("enough for 0 workers"));
}

TEST(DescriptorRoom, AWorkerThatNeedsReservedFilesIsRefusedWithTheReason) {
  Room room;
  DescriptorRoom judge = room.with_limit(180);
  room.used = 100;
  EXPECT_TRUE(judge.judge_worker(0));
  room.used = 101;
  const Status refused = judge.judge_worker(kNsPerS);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kLimitExceeded);
  EXPECT_THAT(refused.error().message, HasSubstr("may open 180 files, 101 are open, and it keeps 80"));
  EXPECT_THAT(refused.error().message, HasSubstr("LimitNOFILE="));
  room.used = 60;
  EXPECT_TRUE(judge.judge_worker(2 * kNsPerS)) << "as soon as there is room again";
}

// All connect, then say Hello: a count has the connections of workers that are judged later.
TEST(DescriptorRoom, AsManyWorkersAsFitAreAdmittedHoweverOftenTheyAreCounted) {
  const Limits limits{.jobs_max = 10, .workers_max = 100};
  for (const uint64_t limit : {106, 107, 140, 205, 300}) {
    for (const TimeNs between : {TimeNs{1}, 7 * kNsPerMs, kNsPerS}) {
      for (const bool all_connect_first : {false, true}) {
        Room room;
        DescriptorRoom judge = room.with_limit(limit);
        const uint64_t fit = limit - 105;
        ASSERT_THAT(judge.warning(limits), HasSubstr("enough for " + std::to_string(fit) + " workers"));
        if (all_connect_first) room.connect(fit);
        TimeNs now = 0;
        for (uint64_t worker = 0; worker < fit; ++worker, now += between) {
          if (!all_connect_first) room.connect();
          ASSERT_TRUE(judge.judge_worker(now)) << limit << ' ' << between << ' ' << worker;
        }
        room.connect();
        EXPECT_FALSE(judge.judge_worker(now)) << "one more does not fit, however short ago the last count was";
      }
    }
  }
}

TEST(DescriptorRoom, DescriptorsAreCountedOnceInAWhile) {
  Room room;
  DescriptorRoom judge = room.with_limit(180);
  for (TimeNs now = 0; now < 50 * kNsPerMs; now += kNsPerMs) EXPECT_TRUE(judge.judge_worker(now));
  EXPECT_EQ(room.counts, 1);
  EXPECT_TRUE(judge.judge_worker(50 * kNsPerMs));
  EXPECT_EQ(room.counts, 2);
}

TEST(DescriptorRoom, ConnectionsSinceTheCountAreCountedWhereTheyMayBeTooMany) {
  Room room;
  DescriptorRoom judge = room.with_limit(180);  // up to 100
  EXPECT_TRUE(judge.judge_worker(0));
  room.accepted += 75;
  EXPECT_TRUE(judge.judge_worker(1));
  EXPECT_EQ(room.counts, 1) << "they all fit";
  room.accepted += 1;
  EXPECT_TRUE(judge.judge_worker(2)) << "they are gone again";
  EXPECT_EQ(room.counts, 2);
  room.connect(76);
  EXPECT_FALSE(judge.judge_worker(3));
  EXPECT_EQ(room.counts, 3);
  for (TimeNs now = 4; now < 100; ++now) EXPECT_FALSE(judge.judge_worker(now));
  EXPECT_EQ(room.counts, 3) << "a crowd that is refused is not counted again and again";
}

TEST(DescriptorRoom, RoomIsReservedToAnswerRefusedConnections) {
  Room room;
  DescriptorRoom judge = room.with_limit(1'000);
  room.used = judge.accept_below();
  EXPECT_FALSE(judge.judge_worker(0));
  room.used = judge.accept_below() - 32;
  EXPECT_TRUE(judge.judge_worker(kNsPerS)) << "the connections above are for refusals";
}

TEST(DescriptorRoom, AnUnknownCountAdmitsEveryWorker) {
  DescriptorRoom judge({.limit = 20, .count = [] { return std::optional<uint64_t>(); }});
  EXPECT_TRUE(judge.judge_start());
  EXPECT_TRUE(judge.judge_worker(0));
}

}  // namespace
}  // namespace millrace::server
