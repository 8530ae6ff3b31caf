#include "server/page/reader_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "monitoring/status/status_json.h"

namespace millrace::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

bool shows_mine(const std::string& name) { return name == "mine"; }

/// A status in which every sentence about the other job has its name.
StatusReport report_of_two() {
  StatusReport report;
  report.shard = 1;
  report.shard_count = 2;
  report.memory_bytes = 9;
  for (const char* name : {"mine", "news"}) {
    JobStatus& job = report.jobs.emplace_back();
    job.name = name;
    job.waiting_because = std::string(name) + " waits";
    job.members.emplace_back();
    RefusalStatus& refusal = report.refusals.emplace_back();
    refusal.job = name;
    refusal.sentence = "job 'news' has number 3 at its switch, as this one";
    report.ended.emplace_back().name = name;
  }
  report.refusals.emplace_back().sentence = "news bytes";
  report.table_error = "the record of job news is damaged";
  report.table_failures.emplace().code = "malformed";
  return report;
}

void expect_mine_alone(const nlohmann::json& status) {
  ASSERT_EQ(status["jobs"].size(), 1u);
  EXPECT_EQ(status["jobs"][0]["name"], "mine");
  EXPECT_EQ(status["jobs"][0]["members"].size(), 1u);
  EXPECT_EQ(status["shard"], 1);
  EXPECT_EQ(status["memory_bytes"], 9) << "of all jobs";
  EXPECT_THAT(status.dump(), AllOf(HasSubstr("the shard's log"), HasSubstr("malformed"), Not(HasSubstr("news"))));
}

TEST(ReaderView, AStatusShowsTheReadersJobs) {
  const auto shown = status_shown(monitoring::status_json(report_of_two()), shows_mine);
  ASSERT_TRUE(shown);
  expect_mine_alone(nlohmann::json::parse(*shown));
  const auto all = status_shown(monitoring::status_json(report_of_two()), [](const std::string&) { return true; });
  EXPECT_EQ(nlohmann::json::parse(*all)["jobs"].size(), 2u);
}

TEST(ReaderView, AnInvalidStatusIsNotShown) {
  for (const char* text : {"", "[]", "{", "{}", R"({"error": "the loop of job news is stalled"})"})
    EXPECT_EQ(status_shown(text, shows_mine), std::nullopt) << text;
}

TEST(ReaderView, AClusterShowsTheReadersJobsAndWorkers) {
  nlohmann::json cluster = {{"age_ms", 5}, {"spares", {{{"http", "s:1"}}}}};
  const auto status = nlohmann::json::parse(monitoring::status_json(report_of_two()));
  cluster["shards"] = {{{"shard", 0}, {"problem", "no answer"}},
                       {{"shard", 1}, {"status", status}},
                       {{"shard", 2}, {"status", {{"job", "news"}}}}};
  cluster["workers"] = {{{"http", "w0:1"}, {"status", {{"job", "mine"}, {"worker", 0}}}},
                        {{"http", "w1:1"}, {"status", {{"job", "news"}, {"worker", 0}}}},
                        {{"http", "w2:1"}, {"problem", "no answer"}}};
  const auto shown = nlohmann::json::parse(cluster_shown(cluster.dump(), shows_mine));
  EXPECT_EQ(shown["age_ms"], 5);
  EXPECT_EQ(shown["spares"].size(), 1u);
  ASSERT_EQ(shown["shards"].size(), 3u);
  EXPECT_EQ(shown["shards"][0], cluster["shards"][0]);
  expect_mine_alone(shown["shards"][1]["status"]);
  EXPECT_FALSE(shown["shards"][2].contains("status")) << "it is no status of a shard";
  ASSERT_EQ(shown["workers"].size(), 1u);
  EXPECT_EQ(shown["workers"][0]["http"], "w0:1");
  for (const char* text : {"", "{", R"({"collecting": true})", R"({"news": 1})"})
    EXPECT_EQ(cluster_shown(text, shows_mine), R"({"collecting": true})") << text;
}

}  // namespace
}  // namespace millrace::server
