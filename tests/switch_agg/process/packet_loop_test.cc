#include "switch_agg/process/packet_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "switch_agg/aggregator/job_machine.h"
#include "switch_agg/bench/traffic.h"
#include "tests/support/replaced_new.h"

namespace millrace::switch_agg {
namespace {

constexpr TimeNs kPatience = 20 * kNsPerS;

/// Gives one hostile packet a burst, and counts the lane's actions on it.
class EndlessPort final : public PacketPort {
 public:
  void enter_thread() override { entered.store(true); }
  std::span<const protocol::ReceivedPacket> receive() override {
    ++counters_.packets_in;
    return std::span(&packet_, 1);
  }
  std::span<uint8_t> room() override { return room_; }
  void send(size_t, const protocol::Endpoint&) override {}
  void flush() override {}
  void wait(int) override {}

  static inline std::atomic<bool> entered = false;

 private:
  std::array<uint8_t, 10> bytes_{};
  protocol::ReceivedPacket packet_{bytes_, {}};
  std::array<uint8_t, 1472> room_{};
};

template <typename Holds>
bool becomes_true(const Holds& holds) {
  for (const TimeNs until = monotonic_now_ns() + kPatience; monotonic_now_ns() < until; std::this_thread::yield()) {
    if (holds()) return true;
  }
  return false;
}

TEST(Lane, CountsTakesJobsAndEnds) {
  EndlessPort::entered = false;
  Lane lane(std::make_unique<EndlessPort>(), {.slots_max = 8}, 1);
  ASSERT_TRUE(lane.add_jobs({bench_job(2, 4, 640)}, monotonic_now_ns()));
  EXPECT_EQ(lane.report().at, 0);
  std::jthread thread([&] { lane.run(); });
  EXPECT_TRUE(becomes_true([&] { return lane.report().aggregator[AggregatorEvent::kTooShort] > 100; }));
  EXPECT_TRUE(EndlessPort::entered);
  EXPECT_GT(lane.report().port.packets_in, 100u);
  ASSERT_EQ(lane.report().jobs.size(), 1u);
  EXPECT_EQ(lane.report().jobs[0].status.slots, 4u);

  SwitchJob large = bench_job(2, 8, 640);
  large.job = 8;
  large.name = "large";
  lane.change_jobs({}, *lane.prepare({large}));
  std::vector<std::string> refusals;
  EXPECT_TRUE(becomes_true([&] { return !(refusals = lane.take_refusals()).empty(); }));
  EXPECT_THAT(refusals, ::testing::ElementsAre(::testing::HasSubstr("job 'large'")));
  lane.change_jobs({7}, {});
  EXPECT_TRUE(becomes_true([&] {
    const LaneReport report = lane.report();
    return report.jobs.size() == 1 && report.jobs[0].status.job == 8;
  }));
  lane.request_stop();
}

TEST(Lane, AChangeReplacesThePendingOneBeforeIt) {
  Lane lane(std::make_unique<EndlessPort>(), {.slots_max = 16}, 1);
  SwitchJob job = bench_job(2, 4, 640);
  job.job = 9;
  SwitchJob revoked = bench_job(2, 4, 640);
  revoked.job = 5;
  lane.change_jobs({}, *lane.prepare({revoked, job}));
  job.slots = 8;
  lane.change_jobs({5, 9}, *lane.prepare({job}));
  std::jthread thread([&] { lane.run(); });
  EXPECT_TRUE(becomes_true([&] { return lane.report().at != 0; }));
  const LaneReport report = lane.report();
  ASSERT_EQ(report.jobs.size(), 1u);
  EXPECT_EQ(report.jobs[0].status.job, 9u);
  EXPECT_EQ(report.jobs[0].status.slots, 8u);
  EXPECT_TRUE(lane.take_refusals().empty());
  lane.request_stop();
}

/// Its memory takes long to free, and packets of other jobs would wait.
TEST(Lane, ARemovedJobsMemoryIsHandedOut) {
  Lane lane(std::make_unique<EndlessPort>(), {.slots_max = 4}, 1);
  std::vector<PreparedJob> prepared = *lane.prepare({bench_job(2, 4, 640)});
  const uint32_t job = prepared.front()->job().job;
  const std::weak_ptr<JobMachine> machine = prepared.front();
  lane.change_jobs({}, std::move(prepared));
  std::jthread thread([&] { lane.run(); });
  EXPECT_TRUE(becomes_true([&] { return lane.report().jobs.size() == 1; }));
  SwitchJob next = bench_job(2, 4, 640);
  next.job = job + 1;
  lane.change_jobs({job}, *lane.prepare({next}));
  EXPECT_TRUE(becomes_true([&] {
    const LaneReport report = lane.report();
    return report.jobs.size() == 1 && report.jobs[0].status.job == job + 1 && report.jobs[0].status.slots == 4;
  })) << "the slots are free at once";
  EXPECT_FALSE(machine.expired());
  EXPECT_EQ(lane.take_retired().size(), 1u);
  EXPECT_TRUE(machine.expired());
  lane.request_stop();
}

TEST(Lane, JobsThatCannotBeAreNamed) {
  Lane lane(std::make_unique<EndlessPort>(), {}, 1);
  SwitchJob job = bench_job(2, 4, 100);
  const Status added = lane.add_jobs({job}, 0);
  ASSERT_FALSE(added);
  EXPECT_THAT(added.error().message, ::testing::HasSubstr("job 'bench'"));
}

/// The caller's thread takes the memory, so no exception reaches the loop, and a refused list changes nothing.
TEST(Lane, AJobWithoutMemoryIsRefusedByItsName) {
  using testing::FailingAllocation;
  Lane lane(std::make_unique<EndlessPort>(), {}, 1);
  const std::vector<SwitchJob> jobs = {bench_job(2, 4, 640)};
  for (const uint64_t at : {0, 1, 2}) {
    const FailingAllocation failing(at, FailingAllocation::Then::kGoesOn);
    const auto prepared = lane.prepare(jobs);
    EXPECT_TRUE(failing.failed());
    ASSERT_FALSE(prepared);
    EXPECT_EQ(prepared.error().code, ErrorCode::kLimitExceeded);
    EXPECT_THAT(prepared.error().message, ::testing::HasSubstr("job 'bench': there is no memory"));
  }
  EXPECT_TRUE(lane.prepare(jobs));
}

TEST(Lane, ARefusalNamesAJobWithoutSlots) {
  Lane lane(std::make_unique<EndlessPort>(), {.slots_max = 3}, 1);
  EXPECT_TRUE(lane.add_jobs({bench_job(2, 4, 640)}, 0));
  EXPECT_THAT(lane.take_refusals(), ::testing::ElementsAre(::testing::HasSubstr("job 'bench'")));
  EXPECT_TRUE(lane.take_refusals().empty());
}

}  // namespace
}  // namespace millrace::switch_agg
