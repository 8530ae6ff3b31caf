#include "server/page/job_history.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace millrace::server {
namespace {

StatusReport report_of(uint64_t job, uint64_t steps) {
  StatusReport report;
  JobStatus& status = report.jobs.emplace_back();
  status.job = job;
  status.parts = 1;
  status.steps_decided = steps;
  status.memory_bytes = 9;
  status.members = {{.worker = 0, .steps_behind = 2, .contribution_bytes = 10, .dense_bytes = 100},
                    {.worker = 1, .steps_behind = 5, .contribution_bytes = 20, .dense_bytes = 200}};
  return report;
}

TEST(JobHistoryTest, KeepsTenMinutesOfSamplesTheOldestFirst) {
  JobHistory history;
  TimeNs now = 0;
  for (uint64_t at = 0; at < 2 * JobHistory::kSamplesMax; ++at, now += JobHistory::kEvery)
    history.add(report_of(7, at), now);
  const auto said = nlohmann::json::parse(history.json(now));
  ASSERT_EQ(said["jobs"].size(), 1u);
  EXPECT_EQ(said["shard"], 0);
  EXPECT_EQ(said["jobs"][0]["job"], 7);
  const auto& samples = said["jobs"][0]["samples"];
  ASSERT_EQ(samples.size(), JobHistory::kSamplesMax);
  EXPECT_EQ(samples.back(), nlohmann::json({5000, 241, 5, 30, 9}));
  EXPECT_EQ(samples.front()[0], 605'000);
  EXPECT_EQ(said["columns"].size(), samples.back().size());
}

TEST(JobHistoryTest, SamplesOnceInFiveSeconds) {
  JobHistory history;
  for (int i = 0; i < 10; ++i) history.add(report_of(7, 1), i * kNsPerS);
  EXPECT_EQ(nlohmann::json::parse(history.json(0))["jobs"][0]["samples"].size(), 2u);
}

TEST(JobHistoryTest, ForgetsAJobThatHasEnded) {
  JobHistory history;
  history.add(report_of(7, 1), 0);
  history.add(report_of(8, 1), JobHistory::kEvery);
  const auto said = nlohmann::json::parse(history.json(JobHistory::kEvery));
  ASSERT_EQ(said["jobs"].size(), 1u);
  EXPECT_EQ(said["jobs"][0]["job"], 8);
}

TEST(JobHistoryTest, ShowsTheJobsOfAReader) {
  JobHistory history;
  StatusReport report = report_of(7, 1);
  report.jobs.front().name = "mine";
  report.jobs.push_back(report_of(8, 1).jobs.front());
  history.add(report, 0);
  const auto said = nlohmann::json::parse(history.json(0, [](const std::string& name) { return name == "mine"; }));
  ASSERT_EQ(said["jobs"].size(), 1u);
  EXPECT_EQ(said["jobs"][0]["job"], 7);
}

TEST(JobHistoryTest, SkipsAJobWithoutPartsHere) {
  JobHistory history;
  StatusReport report = report_of(7, 1);
  report.jobs.front().parts = 0;
  history.add(report, 0);
  EXPECT_TRUE(nlohmann::json::parse(history.json(0))["jobs"].empty());
}

TEST(JobHistoryTest, KeepsABoundedNumberOfJobs) {
  JobHistory history;
  StatusReport report;
  for (uint64_t job = 0; job < JobHistory::kJobsMax + 5; ++job) {
    report.jobs.emplace_back().job = job;
    report.jobs.back().parts = 1;
  }
  history.add(report, 0);
  EXPECT_EQ(nlohmann::json::parse(history.json(0))["jobs"].size(), JobHistory::kJobsMax);
}

}  // namespace
}  // namespace millrace::server
