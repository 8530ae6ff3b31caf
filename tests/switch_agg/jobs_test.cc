// Jobs side by side: quotas, leases, lives.
#include <gtest/gtest.h>

#include <set>
#include <string_view>

#include "tests/switch_agg/switch_rig.h"

namespace millrace::testing {
namespace {

using protocol::Datagram;
using protocol::DatagramType;
using protocol::NoticeCode;
using protocol::WindowIndexCodec;
using protocol::WindowValueCodec;
using switch_agg::Aggregator;
using switch_agg::Role;
using switch_agg::SwitchJob;
using switch_agg::SwitchPhase;
using Event = switch_agg::AggregatorEvent;

/// Another job on the rig's switch, with workers of its own.
struct JobsSecondJob {
  JobsSecondJob(SwitchRig& on, uint32_t slots) : rig(on) {
    job = rig.job();
    job.job = 8;
    job.key = job_key(9);
    job.slots = slots;
    job.workers = 1;
  }
  void give(ByteSpan packet) {
    sink.sent.clear();
    rig.aggregator().receive({.bytes = packet, .from = worker.endpoint()}, rig.now, sink);
  }
  SwitchRig& rig;
  SwitchJob job;
  MadeUpWorker worker{8, job_key(9), 0};
  KeepingSink sink;
};

TEST(JobsTest, JobsThatCannotBeAreRefused) {
  Aggregator aggregator({.slots_max = 4, .window_indices_max = 256}, 1);
  const SwitchJob good{.job = 1, .name = "j", .workers = 2, .window_indices = 256, .slots = 2};
  const auto code_of = [&](auto change) {
    SwitchJob job = good;
    change(job);
    const Status added = aggregator.add_job(job, 0);
    return added ? ErrorCode::kInternal : added.error().code;
  };
  const ErrorCode invalid = ErrorCode::kInvalidArgument;
  EXPECT_EQ(code_of([](SwitchJob& job) { job.workers = 0; }), invalid);
  EXPECT_EQ(code_of([](SwitchJob& job) { job.workers = 65; }), invalid);
  EXPECT_EQ(code_of([](SwitchJob& job) { job.window_indices = 100; }), invalid);
  EXPECT_EQ(code_of([](SwitchJob& job) { job.window_indices = 0; }), invalid);
  EXPECT_EQ(code_of([](SwitchJob& job) { job.window_indices = 320; }), invalid);
  EXPECT_EQ(code_of([](SwitchJob& job) { job.slots = 0; }), invalid);
  EXPECT_EQ(code_of([](SwitchJob& job) { job.slots = 129; }), invalid);
  EXPECT_EQ(code_of([](SwitchJob& job) { job.lanes = 2; }), invalid) << "it is split before";
  EXPECT_EQ(code_of([](SwitchJob& job) { job.packet_bytes = 1199; }), invalid);
  EXPECT_EQ(code_of([](SwitchJob& job) { job.packet_bytes = 1473; }), invalid) << "the port takes 1472";
  EXPECT_EQ(code_of([](SwitchJob& job) { job.lease_ns = 0; }), invalid);
  EXPECT_EQ(code_of([](SwitchJob& job) { job.result_codecs.index = WindowIndexCodec::kBloom; }), invalid);
  EXPECT_EQ(code_of([](SwitchJob& job) { job.result_codecs.value = WindowValueCodec::kQsgd8; }), invalid);
  EXPECT_TRUE(aggregator.add_job(good, 0).has_value());
  EXPECT_EQ(code_of([](SwitchJob&) {}), invalid);  // here already
}

TEST(JobsTest, TooManyJobsAreRefused) {
  Aggregator aggregator({.jobs_max = 2, .slots_max = 8, .window_indices_max = 64}, 1);
  for (uint32_t job = 1; job <= 3; ++job) {
    const Status added =
        aggregator.add_job({.job = job, .name = "j", .workers = 1, .window_indices = 64, .slots = 1}, 0);
    ASSERT_EQ(added.has_value(), job <= 2);
    if (!added) {
      EXPECT_EQ(added.error().code, ErrorCode::kLimitExceeded);
    }
  }
}

TEST(JobsTest, AJobOverTheQuotaGetsANoticeAndTheOtherContinues) {
  SwitchRig rig({.slots = 2, .slots_max = 3});
  rig.open();
  JobsSecondJob second(rig, 2);
  const Status added = rig.aggregator().add_job(second.job, rig.now);
  ASSERT_FALSE(added.has_value());
  EXPECT_EQ(added.error().code, ErrorCode::kLimitExceeded);
  const ByteBuffer request = second.worker.challenge_request();
  second.give(request);
  ASSERT_EQ(second.sink.sent.size(), 1);
  EXPECT_LE(second.sink.sent[0].bytes.size(), request.size());
  const auto heard = second.worker.hear(second.sink.sent[0].bytes);
  ASSERT_TRUE(heard && heard->authentic);
  const auto notice = protocol::read_notice(heard->datagram.extension);
  ASSERT_TRUE(notice);
  EXPECT_EQ(notice->code, NoticeCode::kNoSlots);
  EXPECT_NE(notice->worker_nonce, protocol::Nonce{});
  EXPECT_EQ((*rig.aggregator().counters(8))[Event::kNoSlots], 1);
  rig.turn({}, {{{5, 1}}, {{5, 1}}, {{5, 1}}});
  EXPECT_EQ(rig.result(0), (Entries{{5, 3}}));
}

TEST(JobsTest, AJobThatWaitedGetsTheSlotsOfOneThatLeft) {
  SwitchRig rig({.slots = 2, .slots_max = 3});
  rig.open();
  JobsSecondJob second(rig, 2);
  EXPECT_FALSE(rig.aggregator().add_job(second.job, rig.now).has_value());
  rig.aggregator().remove_job(SwitchRig::kJob);
  second.give(second.worker.challenge_request());
  ASSERT_TRUE(second.worker.take_challenge(second.sink.sent.at(0).bytes));
  second.give(second.worker.hello({.live = 1, .positions = {1, 1}}));
  second.give(second.worker.contribution({}, {{5, 1}}));
  const auto heard = second.worker.hear(second.sink.sent.at(0).bytes);
  EXPECT_EQ(entries_of(heard->datagram, 256), (Entries{{5, 1}}));
  rig.since_now();
  rig.give(0, rig.worker(0).contribution({}, {{5, 1}}));
  EXPECT_EQ(rig.counted(Event::kWrongJob), 1);
  EXPECT_EQ(rig.aggregator().counters(SwitchRig::kJob), nullptr);
}

TEST(JobsTest, AStalledJobDelaysNoOtherJob) {
  SwitchRig rig({.slots = 2, .slots_max = 4});
  rig.open();
  JobsSecondJob second(rig, 2);
  ASSERT_TRUE(rig.aggregator().add_job(second.job, rig.now).has_value());
  rig.give(0, rig.worker(0).contribution({}, {{5, 1}}));  // and nothing more
  second.give(second.worker.challenge_request());
  ASSERT_TRUE(second.worker.take_challenge(second.sink.sent.at(0).bytes));
  second.give(second.worker.hello({.live = 1, .positions = {1, 1}}));
  for (uint64_t turn = 1; turn <= 50; ++turn) {
    second.give(second.worker.contribution({.turn = turn, .step = static_cast<uint32_t>(turn - 1)}, {{5, 1}}));
    ASSERT_EQ(second.sink.sent.size(), 1);
  }
  EXPECT_EQ((*rig.aggregator().counters(8))[Event::kClosed], 50);
  EXPECT_EQ((*rig.aggregator().counters(SwitchRig::kJob))[Event::kClosed], 0);
}

TEST(JobsTest, APacketOfOneJobIsNoneOfAnother) {
  SwitchRig rig({.slots = 2, .slots_max = 4});
  rig.open();
  JobsSecondJob second(rig, 2);
  ASSERT_TRUE(rig.aggregator().add_job(second.job, rig.now).has_value());
  ByteBuffer packet = rig.worker(0).contribution({}, {{5, 1}});
  packet[4] = 8;  // another job's number, the same incarnation number: each job has its own
  rig.since_now();
  rig.give(0, packet);
  EXPECT_EQ(rig.counted(Event::kWrongIncarnation), 1);
}

TEST(JobsTest, AnExpiredLeaseDrawsANewIncarnationAndFreesSlots) {
  SwitchRig rig({.slots = 2, .slots_max = 2});
  rig.open();
  rig.give(0, rig.worker(0).contribution({}, {{5, 1}}));
  const uint64_t incarnation = rig.aggregator().status()[0].incarnation;
  rig.now += 10 * kNsPerS - 1;
  rig.tick();
  EXPECT_EQ(rig.aggregator().status()[0].incarnation, incarnation);
  rig.now += 1;
  rig.tick();
  EXPECT_EQ(rig.counted(Event::kLeaseExpired), 1);
  EXPECT_NE(rig.aggregator().status()[0].incarnation, incarnation);
  EXPECT_EQ(rig.aggregator().status()[0].slots, 0);
  EXPECT_EQ(rig.aggregator().status()[0].phase, SwitchPhase::kClosed);
  rig.now += 100 * kNsPerS;
  rig.tick();
  EXPECT_EQ(rig.counted(Event::kLeaseExpired), 1);

  // Its workers return: another handshake, HELLO in the same epoch. The half sum of the earlier incarnation is gone.
  rig.give(1, rig.worker(1).contribution(
                  {}, {{5, 1}, {6, 1}, {90, 70'000}, {99, 1}, {100, 1}, {101, 1}, {107, 2}, {119, 2}}));
  EXPECT_EQ(rig.counted(Event::kWrongIncarnation), 1);
  EXPECT_EQ(protocol::read_notice(rig.only(1).extension)->code, NoticeCode::kUnknownIncarnation);
  rig.open();
  rig.turn({}, {{{5, 1}}, {{5, 1}}, {{5, 1}}});
  EXPECT_EQ(rig.result(0), (Entries{{5, 3}}));
}

TEST(JobsTest, AnyAuthenticPacketHoldsTheLease) {
  SwitchRig rig;
  rig.open();
  for (int time = 0; time < 5; ++time) {
    rig.now += 9 * kNsPerS;
    rig.give(0, rig.worker(0).contribution({.turn = 1}, {{5, 1}}));
    rig.tick();
  }
  EXPECT_EQ(rig.counted(Event::kLeaseExpired), 0);
  ByteBuffer forged = rig.worker(0).contribution({.turn = 1}, {{5, 1}});
  forged.back() ^= 1;
  rig.now += 9 * kNsPerS;
  rig.give(0, forged);
  rig.now += 1 * kNsPerS;
  rig.tick();
  EXPECT_EQ(rig.counted(Event::kLeaseExpired), 1);
}

TEST(JobsTest, ARepeatedHelloHoldsTheLeaseBetweenTwoSteps) {
  SwitchRig rig;
  rig.open();
  rig.turn({.next = 2}, {{{5, 1}}, {{5, 1}}, {{5, 1}}});
  for (int time = 0; time < 5; ++time) {
    rig.now += 9 * kNsPerS;
    rig.give(0, rig.worker(0).hello({.live = 7, .positions = {2, 1}}));
    EXPECT_EQ(rig.only(0).header.type, DatagramType::kWelcome);
    rig.tick();
  }
  EXPECT_EQ(rig.counted(Event::kLeaseExpired), 0);
  EXPECT_EQ(rig.aggregator().status()[0].phase, SwitchPhase::kOpen);
  rig.turn({.turn = 2, .window = 2}, {{{5, 1}}, {{5, 1}}, {{5, 1}}});
  EXPECT_EQ(rig.result(0), (Entries{{5, 3}})) << "the turns before go on";
}

TEST(JobsTest, LivesOfARestartedSwitchAreOthers) {
  Aggregator first({.slots_max = 1, .window_indices_max = 64}, 1);
  Aggregator second({.slots_max = 1, .window_indices_max = 64}, 2);
  const SwitchJob job{.job = 1, .name = "j", .workers = 1, .window_indices = 64, .slots = 1};
  ASSERT_TRUE(first.add_job(job, 0).has_value());
  ASSERT_TRUE(second.add_job(job, 0).has_value());
  EXPECT_NE(first.status()[0].incarnation, second.status()[0].incarnation);
}

TEST(JobsTest, EventNamesAreThereAndDiffer) {
  std::set<std::string_view> names;
  for (size_t at = 0; at < switch_agg::kAggregatorEvents; ++at) {
    EXPECT_TRUE(names.insert(aggregator_event_name(static_cast<Event>(at))).second);
  }
}

}  // namespace
}  // namespace millrace::testing
