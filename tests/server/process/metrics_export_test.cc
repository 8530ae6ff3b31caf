#include "server/process/metrics_export.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "monitoring/catalog.h"
#include "monitoring/metrics.h"
#include "protocol/job/enum_words.h"
#include "protocol/job/job_spec.h"

namespace millrace::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

/// The lines of a metric's series, from the exported text.
std::set<std::string> lines_of(const std::string& text, const std::string& metric) {
  std::set<std::string> lines;
  for (size_t at = 0; (at = text.find("\n" + metric, at)) != std::string::npos; ++at)
    lines.insert(text.substr(at + 1, text.find('\n', at + 1) - at - 1));
  return lines;
}

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

TEST_F(MetricsExportTest, TheTablesGaugeFollowsFailuresThatLast) {
  pass(kNsPerS);
  EXPECT_THAT(text(), HasSubstr("\nmillrace_shard_table_reachable 1\n"));
  status_.table_failures = TableFailuresStatus{"timeout", 1, 100, 100};
  pass(kNsPerS);
  EXPECT_THAT(text(), HasSubstr("\nmillrace_shard_table_reachable 1\n")) << "a lock of another process";
  status_.table_failures = TableFailuresStatus{"timeout", 9, 5'000, 100};
  pass(kNsPerS);
  EXPECT_THAT(text(), HasSubstr("\nmillrace_shard_table_reachable 0\n"));
}

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

TEST_F(MetricsExportTest, APathSwitchJobExportsItsPathAsAGauge) {
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

TEST_F(MetricsExportTest, AnEndReportedBeforeTheStatusStillDropsTheSeries) {
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

TEST_F(MetricsExportTest, AReopenedJobContinuesItsCounters) {
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

TEST_F(MetricsExportTest, SeriesCountedAfterTheEndExpireToo) {
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
  for (int metric = 0; metric <= static_cast<int>(Metric::kKeysRefused); ++metric)
    export_.record({static_cast<Metric>(metric), "job", "label", 1});
  JobStatus& job = status_.jobs.emplace_back();
  job.name = "job";
  job.audit.emplace();
  job.switch_path.emplace().aggregator = AggregatorStatus{};
  job.switch_path->aggregator->events = {{"bad_mac", 3}};
  status_.datagrams_dropped = {{"send_full", 2}};
  status_.keys = KeysStatus{.allowed = 3, .skipped_files = 1, .first_end_s = 1'827'446'400};
  export_.count_network(1, 1);
  export_.update_gauges(status_, now_);
  const std::string exported = text();
  for (const monitoring::MetricInfo& info : monitoring::shard_metric_infos()) {
    // ShardPage sets it at each scrape: etcd_test.py, http_security_test.py.
    if (info.name == std::string_view("millrace_shard_certificate_end_time_seconds")) continue;
    const std::string series = info.kind == monitoring::MetricKind::kHistogram ? "_count" : "";
    const std::set<std::string> lines = lines_of(exported, std::string(info.name) + series);
    const bool may_be_zero = info.kind == monitoring::MetricKind::kGauge;
    EXPECT_TRUE(
        std::ranges::any_of(lines, [&](const std::string& line) { return may_be_zero || !line.ends_with(" 0"); }))
        << info.name << ": no code sets it";
  }
}

TEST_F(MetricsExportTest, SeriesWithKnownLabelsStartAtZero) {
  EXPECT_THAT(text(), HasSubstr("millrace_shard_jobs_opened_total 0\n"));
  EXPECT_THAT(text(), HasSubstr("millrace_shard_jobs_ended_total{reason=\"too_few_workers\"} 0\n"));
  EXPECT_THAT(text(), HasSubstr("millrace_shard_handshakes_total{outcome=\"refused\",peer=\"worker\"} 0\n"));
  EXPECT_THAT(text(), HasSubstr("millrace_shard_network_bytes_total{direction=\"in\"} 0\n"));
  export_.record({Metric::kJobsOpened, "new", "", 1});
  EXPECT_THAT(text(), HasSubstr("millrace_shard_late_total{answer=\"counted\",job=\"new\"} 0\n"));
  EXPECT_THAT(text(), HasSubstr("millrace_shard_weight_digests_total{job=\"new\",result=\"differ\"} 0\n"));
  EXPECT_THAT(text(), HasSubstr("millrace_shard_store_saves_total{job=\"new\",result=\"failed\"} 0\n"));
  EXPECT_THAT(text(), HasSubstr("millrace_shard_duplicates_total{job=\"new\"} 0\n"));
  EXPECT_THAT(text(), HasSubstr("millrace_shard_round_seconds_count{job=\"new\"} 0\n"));
}

TEST_F(MetricsExportTest, AnEndHasAReasonThatBeganAtZero) {
  open("saved");
  export_.record({Metric::kJobsEnded, "saved", "job_mismatch", 1});
  EXPECT_THAT(text(), HasSubstr("millrace_shard_jobs_ended_total{reason=\"job_mismatch\"} 1\n"));
  open("odd");
  export_.record({Metric::kJobsEnded, "odd", error_code_name(ErrorCode::kConflict), 1});
  EXPECT_THAT(text(), HasSubstr("millrace_shard_jobs_ended_total{reason=\"internal\"} 1\n"));
  EXPECT_THAT(text(), Not(HasSubstr("reason=\"conflict\"")));
}

TEST_F(MetricsExportTest, NothingKnownBeforehandIsMissingFromTheCatalogsValues) {
  // The values of labels with which the core reports about a job: each exists since the job began.
  open("job");
  const std::vector<std::pair<Metric, std::vector<std::string_view>>> words = {
      {Metric::kLate, {"crossed", "update", "acknowledged", "counted", "not_counted"}},
      {Metric::kPathChanges,
       {protocol::enum_word(protocol::Path::kServer), protocol::enum_word(protocol::Path::kSwitch)}},
      {Metric::kRecoveries, {"begun", "activated", "cut"}},
      {Metric::kDigests, {"agree", "differ", "too_old"}},
      {Metric::kMembersRemoved, {"failed", "silent", "wrong", "behind"}},
      {Metric::kSettled, {"own", "snapshot", "none"}},
      {Metric::kFusedThresholds, {"as_it_was", "trimmed", "summed_again"}},
      {Metric::kPulls, {"answered", "refused"}},
      {Metric::kStoreSaves, {"written", "failed"}}};
  const auto series = [&] {
    size_t count = 0;
    for (const monitoring::MetricInfo& info : monitoring::shard_metric_infos())
      count += lines_of(text(), std::string(info.name) + "{").size();
    return count;
  };
  const size_t before = series();
  for (const auto& [metric, labels] : words) {
    for (const std::string_view label : labels) export_.record({metric, "job", label, 1});
  }
  EXPECT_EQ(series(), before);
}

TEST_F(MetricsExportTest, DatagramCounts_AddGrowthAndStartAgainWhereTheyRestarted) {
  JobStatus& job = status_.jobs.emplace_back();
  job.name = "by switch";
  job.switch_path.emplace().aggregator = AggregatorStatus{};
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
  update(2, 4);  // another aggregator, for the job's next incarnation
  EXPECT_THAT(text(), HasSubstr("millrace_shard_datagram_events_total{event=\"bad_mac\",job=\"by switch\"} 7\n"));
  status_.jobs.clear();
  pass(MetricsExport::kEndedSeriesKept + 5 * kNsPerS);
  EXPECT_THAT(text(), Not(HasSubstr("by switch")));
}

}  // namespace
}  // namespace millrace::server
