// The counts for each job (packets, bytes, retransmissions, slots in use), and their values in /status and /metrics.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <deque>
#include <nlohmann/json.hpp>

#include "switch_agg/process/metrics_export.h"
#include "switch_agg/process/status_json.h"
#include "tests/switch_agg/made_up_worker.h"

namespace millrace::testing {
namespace {

using switch_agg::AggregatorCounters;
using switch_agg::Role;
using switch_agg::SwitchJob;
using switch_agg::SwitchPhase;
using switch_agg::SwitchStatus;
using ::testing::HasSubstr;
using Event = switch_agg::AggregatorEvent;

constexpr uint32_t kJobTrafficFirst = 7;
constexpr uint32_t kJobTrafficSecond = 8;
/// Header, two nonces and MAC of a CHALLENGE. A CHALREQ is filled up to the same length, so that no sender gets more
/// bytes than it sent.
constexpr size_t kChallengeBytes = 112;

/// Counted by the test itself, packet by packet.
struct Tally {
  uint64_t packets_in = 0;
  uint64_t bytes_in = 0;
  uint64_t packets_out = 0;
  uint64_t bytes_out = 0;
  bool operator==(const Tally&) const = default;
};

void PrintTo(const Tally& tally, std::ostream* out) {
  *out << "in " << tally.packets_in << " of " << tally.bytes_in << " bytes, out " << tally.packets_out << " of "
       << tally.bytes_out << " bytes";
}

Tally tally_of(const AggregatorCounters& counters) {
  return {counters[Event::kReceived], counters[Event::kReceivedBytes], counters[Event::kSent],
          counters[Event::kSentBytes]};
}

/// One aggregator with two jobs: the first one of two workers, the second one of one.
class JobTraffic : public ::testing::Test {
 protected:
  struct Job {
    SwitchJob job;
    std::deque<MadeUpWorker> workers{};
    Tally tally{};
  };

  JobTraffic() {
    add(first_, kJobTrafficFirst, 2);
    add(second_, kJobTrafficSecond, 1);
  }

  void add(Job& job, uint32_t number, uint16_t workers) {
    job.job.job = number;
    job.job.name = "job " + std::to_string(number);
    job.job.key.fill(static_cast<uint8_t>(number));
    job.job.workers = workers;
    job.job.window_indices = 256;
    job.job.slots = 2;
    ASSERT_TRUE(aggregator_.add_job(job.job, now_));
    for (uint16_t id = 0; id < workers; ++id) job.workers.emplace_back(number, job.job.key, id);
  }

  /// Hands a packet in for that job, and tallies it and the answers.
  void give(Job& job, uint16_t worker, ByteSpan packet) {
    sink_.sent.clear();
    aggregator_.receive({.bytes = packet, .from = job.workers[worker].endpoint()}, now_, sink_);
    ++job.tally.packets_in;
    job.tally.bytes_in += packet.size();
    take_sent(job);
  }
  void take_sent(Job& job) {
    for (const Sent& sent : sink_.sent) {
      ++job.tally.packets_out;
      job.tally.bytes_out += sent.bytes.size();
    }
  }
  /// Hands in a packet of no job.
  void give_nobodys(ByteSpan packet) {
    sink_.sent.clear();
    aggregator_.receive({.bytes = packet, .from = first_.workers[0].endpoint()}, now_, sink_);
    EXPECT_TRUE(sink_.sent.empty());
  }

  void shake_hands(Job& job) {
    for (uint16_t id = 0; id < job.workers.size(); ++id) {
      give(job, id, job.workers[id].challenge_request());
      ASSERT_EQ(sink_.sent.size(), 1);
      ASSERT_TRUE(job.workers[id].take_challenge(sink_.sent[0].bytes));
    }
  }
  void open(Job& job) {
    shake_hands(job);
    const uint64_t live = (uint64_t{1} << job.workers.size()) - 1;
    for (uint16_t id = 0; id < job.workers.size(); ++id)
      give(job, id, job.workers[id].hello({.live = live, .positions = {1, 1}}));
    ASSERT_EQ(status(job).phase, SwitchPhase::kOpen);
  }
  void contribute(Job& job, uint16_t worker, const MadeUpWorker::ContributionFields& fields) {
    give(job, worker, job.workers[worker].contribution(fields, {{5, 1}}));
  }

  switch_agg::SwitchJobStatus status(const Job& job) const {
    for (const switch_agg::SwitchJobStatus& one : aggregator_.status()) {
      if (one.job == job.job.job) return one;
    }
    return {};
  }
  const AggregatorCounters& counters(const Job& job) const { return *aggregator_.counters(job.job.job); }
  uint64_t retransmissions(const Job& job) const { return switch_agg::retransmissions(counters(job)); }

  /// As the process makes it, of one lane.
  SwitchStatus process_status() const {
    SwitchStatus status;
    status.lanes.resize(1);
    status.lanes[0].report.aggregator = aggregator_.counters();
    for (const Job* job : {&first_, &second_}) {
      status.lanes[0].report.jobs.push_back({this->status(*job), counters(*job)});
      status.jobs.push_back({job->job.name, job->job.job, 1, "reduce", job->job.workers, 256, job->job.slots, 0});
    }
    add_job_reports(status);
    return status;
  }

  TimeNs now_ = 1'000'000'000;
  switch_agg::Aggregator aggregator_{{.jobs_max = 3, .slots_max = 6, .window_indices_max = 256}, 99};
  KeepingSink sink_;
  Job first_;
  Job second_;
};

TEST_F(JobTraffic, AHandshakeIsOnePacketInAndOneOut) {
  shake_hands(first_);
  EXPECT_EQ(tally_of(counters(first_)), (Tally{2, 2 * kChallengeBytes, 2, 2 * kChallengeBytes}));
  EXPECT_EQ(tally_of(counters(second_)), Tally{});
}

TEST_F(JobTraffic, EachJobHasItsOwnPacketsAndBytes) {
  open(first_);
  open(second_);
  contribute(first_, 0, {});
  contribute(first_, 1, {});
  ASSERT_EQ(sink_.sent.size(), 2) << "a result to each worker";
  for (uint64_t turn = 1; turn <= 5; ++turn)
    contribute(second_, 0, {.turn = turn, .step = static_cast<uint32_t>(turn - 1)});
  EXPECT_EQ(tally_of(counters(first_)), first_.tally);
  EXPECT_EQ(first_.tally.packets_in, 2 + 2 + 2);
  EXPECT_EQ(first_.tally.packets_out, 2 + 2 + 2) << "CHALLENGE, WELCOME, RESULT";
  EXPECT_EQ(tally_of(counters(second_)), second_.tally);
  EXPECT_EQ(second_.tally.packets_in, 1 + 1 + 5);
  EXPECT_EQ(second_.tally.packets_out, 1 + 1 + 5);
  EXPECT_EQ(
      tally_of(aggregator_.counters()),
      (Tally{first_.tally.packets_in + second_.tally.packets_in, first_.tally.bytes_in + second_.tally.bytes_in,
             first_.tally.packets_out + second_.tally.packets_out, first_.tally.bytes_out + second_.tally.bytes_out}));
}

TEST_F(JobTraffic, WhatNamesNoJobOfThisSwitchCountsForNone) {
  open(first_);
  ByteBuffer others = first_.workers[0].contribution({}, {{5, 1}});
  others[4] = 9;
  give_nobodys(others);
  give_nobodys(ByteBuffer(10));
  give_nobodys(ByteBuffer(200));
  EXPECT_EQ(tally_of(counters(first_)), first_.tally);
  EXPECT_EQ(tally_of(counters(second_)), Tally{});
  const Tally all = tally_of(aggregator_.counters());
  EXPECT_EQ(all.packets_in, first_.tally.packets_in + 3);
  EXPECT_EQ(all.bytes_in, first_.tally.bytes_in + others.size() + 10 + 200);
  EXPECT_EQ(all.packets_out, first_.tally.packets_out);
}

TEST_F(JobTraffic, AForgedPacketCountsForTheJobThatItNames) {
  open(first_);
  ByteBuffer forged = first_.workers[0].contribution({}, {{5, 1}});
  forged.back() ^= 1;
  give(first_, 0, forged);
  EXPECT_EQ(counters(first_)[Event::kBadMac], 1);
  EXPECT_EQ(tally_of(counters(first_)), first_.tally);
}

TEST_F(JobTraffic, PaddingAfterADatagramCountsInTheBytesOfItsJob) {
  open(second_);
  ByteBuffer filled = second_.workers[0].contribution({}, {{5, 1}});
  filled.resize(filled.size() + 40);
  give(second_, 0, filled);
  EXPECT_EQ(counters(second_)[Event::kClosed], 1);
  EXPECT_EQ(tally_of(counters(second_)), second_.tally);
}

TEST_F(JobTraffic, WhatFindsNoRoomIsNotSent) {
  open(first_);
  contribute(first_, 0, {});
  sink_.rooms_left = 1;
  contribute(first_, 1, {});
  EXPECT_EQ(sink_.sent.size(), 1) << "of two results";
  EXPECT_EQ(counters(first_)[Event::kNoRoom], 1);
  EXPECT_EQ(tally_of(counters(first_)), first_.tally);
}

TEST_F(JobTraffic, RetransmissionsAreOfTheJobThatSentThem) {
  open(first_);
  open(second_);
  contribute(first_, 0, {});
  contribute(first_, 0, {});
  EXPECT_EQ(retransmissions(first_), 1) << "a duplicate";
  contribute(first_, 1, {});
  contribute(first_, 1, {});
  EXPECT_EQ(retransmissions(first_), 2) << "of the turn that is closed";
  contribute(first_, 0, {.turn = 2, .step = 1});
  contribute(first_, 1, {.turn = 1});
  EXPECT_EQ(retransmissions(first_), 3) << "of the turn before";
  EXPECT_EQ(retransmissions(second_), 0);
  contribute(second_, 0, {});
  contribute(second_, 0, {});
  EXPECT_EQ(retransmissions(second_), 1);
  EXPECT_EQ(retransmissions(first_), 3);
  EXPECT_EQ(tally_of(counters(first_)), first_.tally) << "the answers, too";
}

TEST_F(JobTraffic, ASlotIsInUseWhileItsTurnIsOpen) {
  open(first_);
  open(second_);
  EXPECT_EQ(status(first_).slots_in_use, 0);
  contribute(first_, 0, {.slot = 0});
  EXPECT_EQ(status(first_).slots_in_use, 1);
  contribute(first_, 0, {.window = 1, .slot = 1});
  EXPECT_EQ(status(first_).slots_in_use, 2);
  EXPECT_EQ(status(first_).slots, 2);
  EXPECT_EQ(status(second_).slots_in_use, 0);
  contribute(second_, 0, {});
  EXPECT_EQ(status(second_).slots_in_use, 0) << "open and closed by one packet";
  contribute(first_, 1, {.window = 1, .slot = 1});
  EXPECT_EQ(status(first_).slots_in_use, 1);
  now_ += first_.job.lease_ns;
  aggregator_.tick(now_, sink_);
  EXPECT_EQ(status(first_).slots_in_use, 0) << "its lease is over";
  EXPECT_EQ(status(first_).slots, 0);
}

TEST_F(JobTraffic, ARackCountsItsPacketsToTheDeciderToo) {
  Job rack;
  rack.job.role = Role::kCombine;
  rack.job.rack = 1;
  rack.job.shard.port = 7600;
  add(rack, 9, 1);
  shake_hands(rack);
  EXPECT_EQ(tally_of(counters(rack)), (Tally{1, kChallengeBytes, 1, kChallengeBytes}));
  give(rack, 0, rack.workers[0].hello({.live = 1, .positions = {}}));
  ASSERT_EQ(sink_.sent.size(), 1);
  EXPECT_EQ(sink_.sent[0].to, rack.job.shard);
  EXPECT_EQ(sink_.sent[0].bytes.size(), 1472) << "a request has the length of the job's longest packet";
  EXPECT_EQ(tally_of(counters(rack)), rack.tally);

  // No answer comes: it asks again, and once more where there is no room for it.
  now_ += kNsPerS;
  sink_.sent.clear();
  aggregator_.tick(now_, sink_);
  ASSERT_EQ(sink_.sent.size(), 1);
  take_sent(rack);
  EXPECT_EQ(tally_of(counters(rack)), rack.tally);
  sink_.rooms_left = 0;
  now_ += kNsPerS;
  aggregator_.tick(now_, sink_);
  EXPECT_EQ(counters(rack)[Event::kNoRoom], 1);
  EXPECT_EQ(tally_of(counters(rack)), rack.tally);
}

TEST_F(JobTraffic, StatusSaysItOfEachJob) {
  open(first_);
  contribute(first_, 0, {});
  contribute(first_, 0, {});
  shake_hands(second_);
  const nlohmann::json jobs = nlohmann::json::parse(status_json(process_status()))["jobs"];
  EXPECT_EQ(jobs[0]["packets_in"], 2 + 2 + 2);
  EXPECT_EQ(jobs[0]["packets_out"], 2 + 2);
  EXPECT_EQ(jobs[0]["bytes_in"], first_.tally.bytes_in);
  EXPECT_EQ(jobs[0]["bytes_out"], first_.tally.bytes_out);
  EXPECT_EQ(jobs[0]["retransmissions"], 1);
  EXPECT_EQ(jobs[0]["slots"], 2);
  EXPECT_EQ(jobs[0]["slots_in_use"], 1);
  EXPECT_EQ(jobs[1]["packets_in"], 1);
  EXPECT_EQ(jobs[1]["packets_out"], 1);
  EXPECT_EQ(jobs[1]["bytes_in"], kChallengeBytes);
  EXPECT_EQ(jobs[1]["bytes_out"], kChallengeBytes);
  EXPECT_EQ(jobs[1]["retransmissions"], 0);
  EXPECT_EQ(jobs[1]["slots"], 2);
  EXPECT_EQ(jobs[1]["slots_in_use"], 0);
}

TEST_F(JobTraffic, MetricsSayItOfEachJob) {
  monitoring::Metrics metrics;
  switch_agg::MetricsExport metrics_export(metrics);
  shake_hands(second_);
  metrics_export.update(process_status());
  open(first_);
  contribute(first_, 0, {});
  contribute(first_, 0, {});
  metrics_export.update(process_status());
  metrics_export.update(process_status());
  const std::string text = metrics.prometheus_text();
  const auto expect = [&text](const std::string& name, const std::string& labels, uint64_t value) {
    EXPECT_THAT(text, HasSubstr("millrace_switch_job_" + name + "{" + labels + "} " + std::to_string(value) + "\n"));
  };
  expect("packets_total", R"(direction="in",job="job 7")", 6);
  expect("packets_total", R"(direction="out",job="job 7")", 4);
  expect("bytes_total", R"(direction="in",job="job 7")", first_.tally.bytes_in);
  expect("bytes_total", R"(direction="out",job="job 7")", first_.tally.bytes_out);
  expect("retransmissions_total", R"(job="job 7")", 1);
  expect("slots", R"(job="job 7")", 2);
  expect("slots_in_use", R"(job="job 7")", 1);
  expect("packets_total", R"(direction="in",job="job 8")", 1);
  expect("packets_total", R"(direction="out",job="job 8")", 1);
  expect("bytes_total", R"(direction="in",job="job 8")", kChallengeBytes);
  expect("bytes_total", R"(direction="out",job="job 8")", kChallengeBytes);
  expect("slots", R"(job="job 8")", 2);
  expect("slots_in_use", R"(job="job 8")", 0);
  expect("retransmissions_total", R"(job="job 8")", 0);
}

}  // namespace
}  // namespace millrace::testing
