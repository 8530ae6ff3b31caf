#include "server/metrics_export.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "monitoring/catalog.h"
#include "monitoring/metrics.h"

namespace millrace::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

/// A shard whose jobs open, count and end; gauges every second, as the process does it.
class MetricsExportTest : public ::testing::Test {
 protected:
  void open(const std::string& job) {
    status_.jobs.emplace_back().name = job;
    export_.record({Metric::kJobsOpened, job, "", 1});
    export_.record({Metric::kRounds, job, "", 1});
    export_.record({Metric::kDuplicates, job, "", 1});
  }
  void end(const std::string& job) {
    std::erase_if(status_.jobs, [&](const JobStatus& one) { return one.name == job; });
    export_.record({Metric::kJobsEnded, job, "finished", 1});
  }
  void pass(TimeNs time) {
    for (const TimeNs until = now_ + time; now_ < until; now_ += kNsPerS) export_.update_gauges(status_, now_);
  }
  std::string text() const { return metrics_.prometheus_text(); }
  size_t series_of(const std::string& metric) const {
    const std::string exported = text();
    size_t lines = 0;
    for (size_t at = 0; (at = exported.find("\n" + metric + "{", at)) != std::string::npos; ++at) ++lines;
    return lines;
  }

  monitoring::Metrics metrics_;
  MetricsExport export_{metrics_};
  StatusReport status_;
  TimeNs now_ = kNsPerS;
};

TEST_F(MetricsExportTest, SeriesOfAJobGoAStatedTimeAfterItsEnd) {
  open("short");
  open("long");
  pass(5 * kNsPerS);
  EXPECT_THAT(text(), HasSubstr("job=\"short\""));
  end("short");
  pass(MetricsExport::kEndedSeriesKept - 5 * kNsPerS);
  EXPECT_THAT(text(), HasSubstr("millrace_shard_rounds_total{job=\"short\"} 1\n"));
  EXPECT_THAT(text(), HasSubstr("millrace_shard_live_workers{job=\"short\"} 0\n"));
  pass(10 * kNsPerS);
  EXPECT_THAT(text(), Not(HasSubstr("job=\"short\"")));
  EXPECT_THAT(text(), HasSubstr("millrace_shard_rounds_total{job=\"long\"} 1\n"));
  EXPECT_THAT(text(), HasSubstr("millrace_shard_jobs_ended_total{reason=\"finished\"} 1\n"));
}

TEST_F(MetricsExportTest, WhoDecidesTheStepsOfAJobOfPathSwitch) {
  open("plain");
  open("by switch");
  status_.jobs.back().switch_path.emplace().decided_by = "switch";
  pass(2 * kNsPerS);
  EXPECT_THAT(text(), HasSubstr("millrace_shard_path_is_switch{job=\"by switch\"} 1\n"));
  EXPECT_THAT(text(), Not(HasSubstr("millrace_shard_path_is_switch{job=\"plain\"}")));
  export_.record({Metric::kPathChanges, "by switch", "server", 1});
  status_.jobs.back().switch_path->decided_by = "server";
  pass(2 * kNsPerS);
  EXPECT_THAT(text(), HasSubstr("millrace_shard_path_is_switch{job=\"by switch\"} 0\n"));
  EXPECT_THAT(text(), HasSubstr("millrace_shard_path_changes_total{job=\"by switch\",path=\"server\"} 1\n"));
}

TEST_F(MetricsExportTest, AnEndWhoseEventWasLostIsSeenInTheStatus) {
  open("lost");
  pass(2 * kNsPerS);
  status_.jobs.clear();
  pass(MetricsExport::kEndedSeriesKept - kNsPerS);
  EXPECT_THAT(text(), HasSubstr("millrace_shard_live_workers{job=\"lost\"} 0\n"));
  pass(5 * kNsPerS);
  EXPECT_THAT(text(), Not(HasSubstr("job=\"lost\"")));
}

TEST_F(MetricsExportTest, AnEndThatIsToldBeforeTheStatusHasItIsNotForgotten) {
  open("early");
  export_.record({Metric::kJobsEnded, "early", "finished", 1});
  pass(2 * kNsPerS);  // the status still has it
  status_.jobs.clear();
  pass(MetricsExport::kEndedSeriesKept + 5 * kNsPerS);
  EXPECT_THAT(text(), Not(HasSubstr("job=\"early\"")));
}

TEST_F(MetricsExportTest, AJobThatNeverCountedARoundIsForgottenAsWell) {
  status_.jobs.emplace_back().name = "idle";
  pass(2 * kNsPerS);
  EXPECT_THAT(text(), HasSubstr("job=\"idle\""));
  status_.jobs.clear();
  pass(MetricsExport::kEndedSeriesKept + 5 * kNsPerS);
  EXPECT_THAT(text(), Not(HasSubstr("job=\"idle\"")));
}

TEST_F(MetricsExportTest, AJobThatBeginsAgainGoesOnCounting) {
  open("again");
  pass(2 * kNsPerS);
  end("again");
  pass(MetricsExport::kEndedSeriesKept / 2);
  open("again");
  pass(2 * MetricsExport::kEndedSeriesKept);
  export_.record({Metric::kRounds, "again", "", 1});
  EXPECT_THAT(text(), HasSubstr("millrace_shard_rounds_total{job=\"again\"} 3\n"));
}

TEST_F(MetricsExportTest, JobsThatShareALabelKeepItWhileOneOfThemLives) {
  open("m\xfchle");
  open("m\xf6hle");  // no UTF-8: both are exported as m?hle
  pass(2 * kNsPerS);
  end("m\xfchle");
  pass(2 * MetricsExport::kEndedSeriesKept);
  export_.record({Metric::kRounds, "m\xf6hle", "", 1});
  EXPECT_THAT(text(), HasSubstr("millrace_shard_rounds_total{job=\"m?hle\"} 3\n"));
}

TEST_F(MetricsExportTest, WhatIsCountedAfterTheEndGoesAsWell) {
  open("late");
  end("late");
  export_.record({Metric::kRounds, "late", "", 1});
  pass(MetricsExport::kEndedSeriesKept + 5 * kNsPerS);
  export_.record({Metric::kRounds, "later", "", 1});
  EXPECT_EQ(series_of("millrace_shard_rounds_total"), 1u);
}

TEST_F(MetricsExportTest, AFloodOfJobsLeavesABoundedNumberOfSeries) {
  open("steady");
  for (int job = 0; job < 3000; ++job) {
    open("flood-" + std::to_string(job));
    end("flood-" + std::to_string(job));
    if (job % 50 == 0) pass(kNsPerS);
  }
  pass(kNsPerS);
  EXPECT_LE(series_of("millrace_shard_rounds_total"), MetricsExport::kEndedJobsMax + 1);
  EXPECT_THAT(text(), HasSubstr("millrace_shard_rounds_total{job=\"steady\"} 1\n"));
  EXPECT_THAT(text(), Not(HasSubstr("job=\"other\"")));
}

TEST_F(MetricsExportTest, EveryMetricOfTheCatalogIsSetBySomething) {
  for (int metric = 0; metric <= static_cast<int>(Metric::kTableErrors); ++metric)
    export_.record({static_cast<Metric>(metric), "job", "label", 1});
  JobStatus& job = status_.jobs.emplace_back();
  job.name = "job";
  job.audit.emplace();
  job.switch_path.emplace().aggregator = SwitchPathStatus::Aggregator{};
  job.switch_path->aggregator->events = {{"bad_mac", 3}};
  status_.datagrams_dropped = {{"send_full", 2}};
  export_.count_network(1, 1);
  export_.update_gauges(status_, now_);
  const std::string exported = text();
  for (const monitoring::MetricInfo* info : monitoring::metric_catalog()) {
    if (!info->name.starts_with("millrace_shard_")) continue;
    const std::string series = info->kind == monitoring::MetricKind::kHistogram ? "_count" : "";
    EXPECT_THAT(exported, HasSubstr("\n" + std::string(info->name) + series)) << "nobody sets it";
  }
}

TEST_F(MetricsExportTest, WhatBecameOfDatagramsIsCountedByGrowthAndFromTheStartWhereItBeganAnew) {
  JobStatus& job = status_.jobs.emplace_back();
  job.name = "by switch";
  job.switch_path.emplace().aggregator = SwitchPathStatus::Aggregator{};
  std::vector<NamedCount>& events = job.switch_path->aggregator->events;
  const auto update = [&](uint64_t bad_macs, uint64_t too_short) {
    events = {{"bad_mac", bad_macs}};
    status_.datagrams_dropped = {{"too_short", too_short}};
    export_.update_gauges(status_, now_);
  };
  update(3, 1);
  update(5, 1);
  update(5, 4);
  EXPECT_THAT(text(), HasSubstr("millrace_shard_datagram_events_total{event=\"bad_mac\",job=\"by switch\"} 5\n"));
  EXPECT_THAT(text(), HasSubstr("millrace_shard_datagrams_dropped_total{reason=\"too_short\"} 4\n"));
  update(2, 4);  // another aggregator, for the job's next life
  EXPECT_THAT(text(), HasSubstr("millrace_shard_datagram_events_total{event=\"bad_mac\",job=\"by switch\"} 7\n"));
  status_.jobs.clear();
  pass(MetricsExport::kEndedSeriesKept + 5 * kNsPerS);
  EXPECT_THAT(text(), Not(HasSubstr("by switch")));
}

}  // namespace
}  // namespace millrace::server
