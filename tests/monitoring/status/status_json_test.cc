#include "monitoring/status/status_json.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace millrace::monitoring {
namespace {

/// Gives every field of a record a value of its own, and each list and each optional record one entry.
StatusReport filled_report() {
  StatusReport report;
  report.shard = 1;
  report.shard_count = 3;
  report.incarnation = 2;
  report.address = "tcp://a:1";
  report.software = "millrace";
  report.table = "/table";
  report.shutting_down = true;
  report.memory_bytes = 4;
  report.memory_bytes_max = 5;
  report.peers = {{2, "tcp://b:1", 6, true}};
  report.refusals = {{"worker", "job", 7, "other", "conflict", "a sentence", 8, 9, 10}};
  report.ended = {{"old", 11, "finished", "why", 12}};
  report.datagrams_dropped = {{"no_job", 13}, {"short", 14}};
  report.table_error = "locked";
  report.table_failures = {"timeout", 15, 16, 17};
  report.keys = {50, 51};
  JobStatus& job = report.jobs.emplace_back();
  job.name = "job";
  job.epoch = 18;
  job.workers = 4;
  job.waiting_for = "contributions";
  job.waited_for = {19, 20};
  job.waiting_shards = {2};
  job.waiting_step = {21, 22, 23, 24};
  job.moved_ms = 25;
  job.members = {{26, 27, true, true, true, 28, 29, 30}};
  job.disagreements = {{31, 32, 33, 34}};
  job.store = {"adam", true, 35, 45, true, 46, 47, 48, 49, "full"};
  job.audit.emplace().entered = 1.5;
  job.audit->carried = -2.5;
  job.audit->workers = {{36, 1, 2, 3, 4, 0.5}};
  job.codecs = {{37, "tensor 'w'", "gap", 38}};
  SwitchPathStatus& path = job.switch_path.emplace();
  path.decided_by = "switch";
  path.reports = {{39, "silent"}};
  path.waits = {{40, "answer", 41, 42}};
  path.aggregator.emplace().events = {{"dropped", 43}};
  path.aggregator->waited_for = {44};
  return report;
}

TEST(StatusJson, AReportIsReadAsItWasWritten) {
  const std::string text = status_json(filled_report());
  const auto read = read_status(nlohmann::json::parse(text));
  ASSERT_TRUE(read);
  EXPECT_EQ(status_json(*read), text);
  EXPECT_EQ(read->jobs[0].audit->imbalance(), 0.5);
  EXPECT_EQ(read->jobs[0].switch_path->aggregator->events[0].count, 43u);
}

TEST(StatusJson, EmptyOrUnknownFieldsAreOmittedOrEmpty) {
  StatusReport report;
  report.shard_count = 1;
  report.jobs.emplace_back();
  const auto json = nlohmann::json::parse(status_json(report));
  for (const char* absent : {"table_error", "table_failures", "datagrams_dropped", "keys"})
    EXPECT_FALSE(json.contains(absent));
  for (const char* absent : {"waiting_step", "store", "switch_path", "audit", "codecs_down"})
    EXPECT_FALSE(json["jobs"][0].contains(absent)) << absent;
  for (const char* empty : {"other_shards", "refusals", "ended_jobs"}) EXPECT_EQ(json[empty], nlohmann::json::array());
  EXPECT_EQ(json["jobs"][0]["waiting_for"], "");
}

/// Puts each of some values of every kind in the place of each field in turn: no reader may throw.
TEST(StatusJson, AnyValueInPlaceOfAnyFieldIsRead) {
  const auto whole = nlohmann::json::parse(status_json(filled_report()));
  const std::vector<nlohmann::json> values = {nullptr, true, -1, 1e300, UINT64_MAX, "\x1b", {1, "a"}, {{"worker", {}}}};
  const nlohmann::json flat = whole.flatten();
  for (const auto& [pointer, old] : flat.items()) {
    for (const nlohmann::json& value : values) {
      for (auto at = nlohmann::json::json_pointer(pointer); !at.empty(); at = at.parent_pointer()) {
        nlohmann::json status = whole;
        status[at] = value;
        const auto read = read_status(status);
        if (!read) continue;
        // The reader takes the writer's text of this report unchanged.
        const std::string text = status_json(*read);
        const auto again = read_status(nlohmann::json::parse(text));
        ASSERT_TRUE(again.has_value()) << text;
        EXPECT_EQ(status_json(*again), text);
      }
    }
  }
}

TEST(StatusJson, NumbersAreKeptInTheirRange) {
  const auto read = read_status({{"shard", 0},
                                 {"shard_count", 1},
                                 {"incarnation", -3},
                                 {"memory_bytes", 1.5},
                                 {"jobs", {{{"quorum", UINT64_MAX}, {"moved_ms", UINT64_MAX}, {"waiting_ms", -1}}}}});
  ASSERT_TRUE(read);
  EXPECT_EQ(read->incarnation, 0u);
  EXPECT_EQ(read->memory_bytes, 0u);
  EXPECT_EQ(read->jobs[0].quorum, UINT32_MAX);
  EXPECT_EQ(read->jobs[0].moved_ms, INT64_MAX);
  EXPECT_EQ(read->jobs[0].waiting_ms, 0);
}

}  // namespace
}  // namespace millrace::monitoring
