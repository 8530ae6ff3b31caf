#include "switch_agg/process/switch_status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "switch_agg/aggregator/split_by_lanes.h"
#include "switch_agg/packet_io/lane_of_datagram.h"
#include "switch_agg/process/jobs_of_lane.h"
#include "switch_agg/process/metrics_export.h"
#include "switch_agg/process/status_json.h"

namespace millrace::switch_agg {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

SwitchStatus example() {
  SwitchStatus status;
  status.pmd = "kernel";
  status.slots_max = 512;
  status.lanes.resize(2);
  status.lanes[0].address = "127.0.0.1:7700";
  status.lanes[0].report.port.packets_in = 10;
  status.lanes[0].report.port.bytes_in = 14'000;
  status.lanes[0].report.port.too_long = 3;
  status.lanes[0].report.aggregator.add(AggregatorEvent::kBadMac, 2);
  status.lanes[0].report.aggregator.add(AggregatorEvent::kDuplicate, 4);
  status.lanes[0].report.aggregator.add(AggregatorEvent::kPrevious, 1);
  status.lanes[1].address = "127.0.0.1:7701";
  status.jobs.push_back({"resnet", 7, 2, "reduce", 4, 16'384, 64, 0});
  for (uint32_t at = 0; at < 2; ++at) {
    SwitchStatus::LaneStatus& lane = status.lanes[at];
    LaneReport::Job job;
    job.status = {.job = 7 + at, .slots = 32, .epoch = 3, .phase = SwitchPhase::kOpen};
    job.counters.add(AggregatorEvent::kAdded, 50);
    lane.report.jobs.push_back(job);
  }
  add_job_reports(status);
  return status;
}

TEST(SwitchMetrics, CountWhatGrewSinceTheLastUpdate) {
  monitoring::Metrics metrics;
  MetricsExport metrics_export(metrics);
  SwitchStatus status = example();
  metrics_export.update(status);
  status.lanes[0].report.port.packets_in = 25;
  metrics_export.update(status);
  metrics_export.update(status);
  const std::string text = metrics.prometheus_text();
  EXPECT_THAT(text, HasSubstr(R"(millrace_switch_packets_total{direction="in",lcore="0"} 25)"));
  EXPECT_THAT(text, HasSubstr(R"(millrace_switch_bytes_total{direction="in",lcore="0"} 14000)"));
  EXPECT_THAT(text, HasSubstr(R"(millrace_switch_port_dropped_total{lcore="0",reason="too_long"} 3)"));
  EXPECT_THAT(text, HasSubstr(R"(millrace_switch_events_total{event="bad_mac",lcore="0"} 2)"));
  EXPECT_THAT(text, HasSubstr(R"(millrace_switch_retransmissions_total{lcore="0"} 5)"));
  EXPECT_THAT(text, HasSubstr(R"(millrace_switch_slots_reserved 64)"));
  EXPECT_THAT(text, HasSubstr(R"(millrace_switch_slots_max 512)"));
  EXPECT_THAT(text, HasSubstr(R"(millrace_switch_job_slots{job="resnet"} 64)"));
  EXPECT_THAT(text, HasSubstr(R"(millrace_switch_job_events_total{event="added",job="resnet"} 100)"));
}

TEST(SwitchMetrics, AJobThatIsGoneHasNoSeries) {
  monitoring::Metrics metrics;
  MetricsExport metrics_export(metrics);
  SwitchStatus status = example();
  metrics_export.update(status);
  status.jobs.clear();
  metrics_export.update(status);
  EXPECT_THAT(metrics.prometheus_text(), Not(HasSubstr("resnet")));
}

/// Of one lane.
SwitchStatus example_of_a_rack() {
  SwitchStatus status = example();
  status.jobs.front().lanes = 1;
  status.jobs.front().role = "combine";
  status.jobs.front().rack = SwitchStatus::JobStatus::Rack{1, 0b1100, "192.0.2.9:7600"};
  LaneReport::Job& job = status.lanes[0].report.jobs.front();
  job.status.rack = RackStatus{.uplink = RackUplink::kWelcome, .gathering = 2, .in_flight = 5, .raw = 1};
  job.counters.add(AggregatorEvent::kSentUp, 12);
  job.counters.add(AggregatorEvent::kSentUpBytes, 9'000);
  job.counters.add(AggregatorEvent::kEntriesSelected, 300);
  job.counters.add(AggregatorEvent::kEntriesNotSelected, 700);
  status.lanes[1].report.jobs.clear();
  add_job_reports(status);
  return status;
}

TEST(SwitchMetrics, BeginAtZeroForEveryLcoreAndJob) {
  monitoring::Metrics metrics;
  MetricsExport metrics_export(metrics);
  SwitchStatus status;
  status.lanes.resize(1);
  status.jobs.push_back({"idle", 7, 1, "reduce", 4, 16'384, 64, 0});
  metrics_export.update(status);
  const std::string text = metrics.prometheus_text();
  for (const char* line : {R"(millrace_switch_packets_total{direction="in",lcore="0"} 0)",
                           R"(millrace_switch_bytes_total{direction="out",lcore="0"} 0)",
                           R"(millrace_switch_port_dropped_total{lcore="0",reason="no_neighbour"} 0)",
                           R"(millrace_switch_events_total{event="bad_mac",lcore="0"} 0)",
                           R"(millrace_switch_retransmissions_total{lcore="0"} 0)",
                           R"(millrace_switch_job_packets_total{direction="in",job="idle"} 0)",
                           R"(millrace_switch_job_bytes_total{direction="out",job="idle"} 0)",
                           R"(millrace_switch_job_retransmissions_total{job="idle"} 0)"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  EXPECT_THAT(text, Not(HasSubstr("millrace_switch_job_events_total{")));
}

TEST(SwitchMetrics, EventsOfMoreLcoresThanFitBeginWhereTheyHappen) {
  monitoring::Metrics metrics;
  MetricsExport metrics_export(metrics);
  SwitchStatus status;
  status.lanes.resize(monitoring::Metrics::kSeriesMax / kAggregatorEvents + 1);
  status.lanes.back().report.aggregator.add(AggregatorEvent::kBadMac, 2);
  metrics_export.update(status);
  const std::string text = metrics.prometheus_text();
  const std::string last = std::to_string(status.lanes.size() - 1);
  EXPECT_THAT(text, HasSubstr(R"(millrace_switch_events_total{event="bad_mac",lcore=")" + last + R"("} 2)"));
  EXPECT_THAT(text, Not(HasSubstr(R"(lcore="other")")));
  EXPECT_THAT(text, Not(HasSubstr(R"(millrace_switch_events_total{event="bad_mac",lcore="0"})")));
}

TEST(SwitchMetrics, EveryMetricOfTheCatalogIsSetBySomething) {
  monitoring::Metrics metrics;
  MetricsExport metrics_export(metrics);
  metrics_export.update(example_of_a_rack());
  const std::string text = metrics.prometheus_text();
  for (const monitoring::MetricInfo& info : monitoring::switch_metric_infos())
    EXPECT_THAT(text, HasSubstr("\n" + std::string(info.name))) << "no code sets it";
}

TEST(SwitchStatus, IsJsonWithoutZeros) {
  const nlohmann::json json = nlohmann::json::parse(status_json(example()));
  EXPECT_EQ(json["pmd"], "kernel");
  EXPECT_EQ(json["slots"], 64);
  EXPECT_EQ(json["slots_max"], 512);
  EXPECT_EQ(json["lcores"].size(), 2u);
  EXPECT_EQ(json["lcores"][0]["dropped"], (nlohmann::json{{"too_long", 3}}));
  EXPECT_EQ(json["lcores"][0]["events"]["bad_mac"], 2);
  EXPECT_EQ(json["lcores"][0]["retransmissions"], 5);
  EXPECT_TRUE(json["lcores"][1]["dropped"].empty());
  EXPECT_EQ(json["jobs"][0]["name"], "resnet");
  EXPECT_EQ(json["jobs"][0]["phase"], "open");
  EXPECT_EQ(json["jobs"][0]["epoch"], 3);
  EXPECT_EQ(json["jobs"][0]["events"], (nlohmann::json{{"added", 100}}));
}

TEST(SwitchStatus, ARackSaysWhereItsSumsGoAndHowMany) {
  const nlohmann::json job = nlohmann::json::parse(status_json(example_of_a_rack()))["jobs"][0];
  EXPECT_EQ(job["role"], "combine");
  EXPECT_EQ(job["rack"], (nlohmann::json{{"number", 1},
                                         {"workers", {2, 3}},
                                         {"shard", "192.0.2.9:7600"},
                                         {"uplink", "welcome"},
                                         {"gathering", 2},
                                         {"partials_in_flight", 5},
                                         {"raw", 1},
                                         {"packets_up", 12},
                                         {"bytes_up", 9'000},
                                         {"entries_kept", 300},
                                         {"entries_cut", 700}}));
  EXPECT_FALSE(nlohmann::json::parse(status_json(example()))["jobs"][0].contains("rack"));
}

TEST(SwitchStatus, ADeciderReportsTheWorkersOfItsRacks) {
  SwitchStatus status = example();
  status.jobs.front().racks = {0b0011, 0b1100};
  EXPECT_EQ(nlohmann::json::parse(status_json(status))["jobs"][0]["racks"], (nlohmann::json{{0, 1}, {2, 3}}));
}

TEST(SwitchMetrics, ARackCountsItsPartialsAndItsUplink) {
  monitoring::Metrics metrics;
  MetricsExport metrics_export(metrics);
  SwitchStatus status = example_of_a_rack();
  metrics_export.update(status);
  std::string text = metrics.prometheus_text();
  EXPECT_THAT(text, HasSubstr(R"(millrace_switch_partials_in_flight{job="resnet"} 5)"));
  EXPECT_THAT(text, HasSubstr(R"(millrace_switch_uplink_welcome{job="resnet"} 1)"));
  EXPECT_THAT(text, HasSubstr(R"(millrace_switch_job_events_total{event="sent_up_bytes",job="resnet"} 9000)"));
  status.jobs.front().rack->now.uplink = RackUplink::kAsking;
  metrics_export.update(status);
  EXPECT_THAT(metrics.prometheus_text(), HasSubstr(R"(millrace_switch_uplink_welcome{job="resnet"} 0)"));
}

TEST(SwitchStatus, AJobIsAsFarAsItsLastLane) {
  SwitchStatus status = example();
  status.lanes[1].report.jobs[0].status.phase = SwitchPhase::kCollecting;
  status.lanes[1].report.jobs[0].status.epoch = 4;
  status.lanes[1].report.jobs[0].status.slots = 0;
  add_job_reports(status);
  EXPECT_EQ(status.jobs[0].phase, "collecting");
  EXPECT_EQ(status.jobs[0].epoch, 4u);
  EXPECT_EQ(status.jobs[0].slots_reserved, 32u);
}

TEST(SwitchStatus, AJobsTrafficAndSlotsAreThoseOfAllItsLanes) {
  SwitchStatus status = example();
  LaneReport::Job stranger;
  stranger.status = {.job = 6, .slots = 5, .slots_in_use = 5};
  stranger.counters.add(AggregatorEvent::kReceived, 1);
  status.lanes[0].report.jobs.push_back(stranger);
  stranger.status.job = 9;
  status.lanes[1].report.jobs.push_back(stranger);
  for (uint32_t lane = 0; lane < 2; ++lane) {
    LaneReport::Job& job = status.lanes[lane].report.jobs[0];
    job.status.slots_in_use = lane == 0 ? 9 : 2;
    job.counters.add(AggregatorEvent::kReceived, 10 + lane);
    job.counters.add(AggregatorEvent::kReceivedBytes, 1'000 + lane);
    job.counters.add(AggregatorEvent::kSent, 20 + lane);
    job.counters.add(AggregatorEvent::kSentBytes, 2'000 + lane);
  }
  add_job_reports(status);
  const nlohmann::json job = nlohmann::json::parse(status_json(status))["jobs"][0];
  EXPECT_EQ(job["packets_in"], 21);
  EXPECT_EQ(job["bytes_in"], 2'001);
  EXPECT_EQ(job["packets_out"], 41);
  EXPECT_EQ(job["bytes_out"], 4'001);
  EXPECT_EQ(job["slots_in_use"], 11);
  EXPECT_EQ(job["slots"], 64);
  EXPECT_EQ(job["lanes"], 2);
}

TEST(SwitchStatus, ARackOfSeveralLanesIsAsFarAsItsLast) {
  SwitchStatus status = example_of_a_rack();
  status.jobs.front().lanes = 2;
  LaneReport::Job other;
  other.status = {.job = 8,
                  .slots = 32,
                  .rack = RackStatus{.uplink = RackUplink::kHello, .gathering = 1, .in_flight = 2, .raw = 3}};
  status.lanes[1].report.jobs.push_back(other);
  add_job_reports(status);
  const nlohmann::json rack = nlohmann::json::parse(status_json(status))["jobs"][0]["rack"];
  EXPECT_EQ(rack["uplink"], "hello");
  EXPECT_EQ(rack["gathering"], 3);
  EXPECT_EQ(rack["partials_in_flight"], 7);
  EXPECT_EQ(rack["raw"], 4);
}

/// Sets the counts of the job's lane since it was added.
void count_anew(SwitchStatus& status, uint32_t lane,
                std::initializer_list<std::pair<AggregatorEvent, uint64_t>> events) {
  AggregatorCounters& counters = status.lanes[lane].report.jobs[0].counters;
  counters = {};
  for (const auto& [event, times] : events) counters.add(event, times);
  add_job_reports(status);
}

TEST(SwitchMetrics, TotalsContinueWhenAJobIsAddedAgain) {
  using Event = AggregatorEvent;
  monitoring::Metrics metrics;
  MetricsExport metrics_export(metrics);
  SwitchStatus status = example();
  count_anew(status, 0, {{Event::kReceived, 10}, {Event::kDuplicate, 4}});
  metrics_export.update(status);
  count_anew(status, 0, {{Event::kReceived, 3}, {Event::kPrevious, 6}});
  metrics_export.update(status);
  const std::string text = metrics.prometheus_text();
  EXPECT_THAT(text, HasSubstr(R"(millrace_switch_job_packets_total{direction="in",job="resnet"} 13)"));
  EXPECT_THAT(text, HasSubstr(R"(millrace_switch_job_retransmissions_total{job="resnet"} 10)"));
}

TEST(SwitchMetrics, ARestartedLaneDoesNotCountOtherLanesTwice) {
  using Event = AggregatorEvent;
  monitoring::Metrics metrics;
  MetricsExport metrics_export(metrics);
  SwitchStatus status = example();
  count_anew(status, 0, {{Event::kReceived, 10}});
  count_anew(status, 1, {{Event::kReceived, 1'000}});
  metrics_export.update(status);
  count_anew(status, 0, {{Event::kReceived, 3}});
  metrics_export.update(status);
  // Lcore 1 has taken the job off and says nothing of it yet.
  const LaneReport::Job second = status.lanes[1].report.jobs[0];
  status.lanes[1].report.jobs.clear();
  add_job_reports(status);
  metrics_export.update(status);
  status.lanes[1].report.jobs = {second};
  count_anew(status, 1, {{Event::kReceived, 7}});
  metrics_export.update(status);
  EXPECT_THAT(metrics.prometheus_text(),
              HasSubstr(R"(millrace_switch_job_packets_total{direction="in",job="resnet"} 1020)"));
}

TEST(SwitchStatus, EveryDropOfThePortHasAReason) {
  PortCounters port;
  port.too_long = 1;
  port.malformed_frame = 2;
  port.other_protocol = 3;
  port.other_destination = 4;
  port.lane_full = 5;
  port.no_buffer = 6;
  port.send_full = 7;
  port.send_refused = 8;
  port.no_neighbour = 9;
  uint64_t expected = 1;
  for (const ReasonCount& one : port_drops(port)) EXPECT_EQ(one.count, expected++) << one.reason;
  EXPECT_EQ(expected, 10u);
}

TEST(LaneJobs, EachJobIsWholeOnOneLaneWhicheverRoleItHas) {
  std::vector<SwitchJob> jobs(5);
  for (uint32_t number = 0; number < jobs.size(); ++number) {
    jobs[number].job = 4 + number;
    jobs[number].reselect_k = 10;
    if (number == 3) jobs[number].role = Role::kCombine;
  }
  size_t found = 0;
  for (uint32_t lane = 0; lane < 3; ++lane) {
    for (const SwitchJob& job : jobs_of_lane(jobs, lane, 3)) {
      EXPECT_EQ(job.job % 3, lane);
      EXPECT_EQ(job.reselect_k, 10u) << "all of its windows are here";
      ++found;
    }
  }
  EXPECT_EQ(found, jobs.size());
  EXPECT_EQ(jobs_of_lane(jobs, 0, 1).size(), jobs.size());
}

TEST(LaneJobs, LanesOfAJobSpreadOverLcoresAndShareItsSlotsAndK) {
  SwitchJob job;
  job.job = 5;
  job.name = "resnet";
  job.lanes = 4;
  job.slots = 8;
  job.reselect_k = 10;
  std::vector<uint64_t> shares;
  for (uint32_t lane = 0; lane < 3; ++lane) {
    for (const SwitchJob& one : jobs_of_lane({job}, lane, 3)) {
      EXPECT_EQ(one.job % 3, lane);
      EXPECT_EQ(one.lanes, 1u);
      EXPECT_EQ(one.name, "resnet");
      EXPECT_EQ(one.slots, 2u);
      shares.push_back(one.reselect_k);
    }
  }
  EXPECT_THAT(shares, ::testing::UnorderedElementsAre(3, 3, 2, 2));
  EXPECT_EQ(jobs_of_lane({job}, 2, 3).size(), 2u) << "5 and 8";
  job.reselect_k = 0;
  for (const SwitchJob& one : split_by_lanes(job)) EXPECT_EQ(one.reselect_k, 0u) << "the whole sum";
}

TEST(LaneJobs, AJobWhoseLanesChangedIsAnother) {
  SwitchJob before;
  before.job = 5;
  before.slots = 8;
  SwitchJob after = before;
  after.lanes = 2;
  const JobChanges changes = job_changes({before}, {after}, 0, 1);
  EXPECT_THAT(changes.removed, ::testing::ElementsAre(5));
  EXPECT_EQ(changes.added.size(), 2u);
}

TEST(LaneJobs, AJobWhosePacketsChangedIsAnother) {
  SwitchJob before;
  before.job = 5;
  SwitchJob after = before;
  after.packet_bytes = 8972;
  EXPECT_EQ(job_changes({before}, {after}, 0, 1).added.size(), 1u);
}

TEST(LaneJobs, AChangeOfOneLanesShareReplacesAllLanesOfTheJob) {
  SwitchJob before;
  before.job = 5;
  before.lanes = 2;
  before.slots = 8;
  before.reselect_k = 100;
  SwitchJob after = before;
  after.reselect_k = 101;  // of which the second lane has 50, as before
  for (uint32_t lane = 0; lane < 2; ++lane) {
    const JobChanges changes = job_changes({before}, {after}, lane, 2);
    EXPECT_EQ(changes.removed.size(), 1u);
    EXPECT_EQ(changes.added.size(), 1u);
  }
}

TEST(LaneJobs, ADatagramIsItsJobsLanes) {
  protocol::DatagramHeader header;
  header.job = 0x0102'0305;
  std::array<uint8_t, protocol::kDatagramHeaderBytes> packet;
  put_header(header, packet);
  EXPECT_EQ(lane_of_datagram(packet, 64), 5u);
  EXPECT_EQ(lane_of_datagram(packet, 7), 0x0102'0305u % 7);
  EXPECT_EQ(lane_of_datagram(std::span(packet).first(8), 7), 0x0102'0305u % 7);
  EXPECT_EQ(lane_of_datagram(std::span(packet).first(7), 7), 0u);
}

TEST(LaneJobs, OnlyWhatChangedIsChanged) {
  SwitchJob a;
  a.job = 1;
  SwitchJob b;
  b.job = 2;
  SwitchJob changed = b;
  changed.workers = 9;
  EXPECT_TRUE(job_changes({a, b}, {b, a}, 0, 1).added.empty());
  EXPECT_TRUE(job_changes({a, b}, {b, a}, 0, 1).removed.empty());
  const JobChanges changes = job_changes({a, b}, {changed}, 0, 1);
  EXPECT_THAT(changes.removed, ::testing::ElementsAre(1, 2));
  ASSERT_EQ(changes.added.size(), 1u);
  EXPECT_EQ(changes.added.front().workers, 9u);
}

}  // namespace
}  // namespace millrace::switch_agg
