#include "server/process/metrics_export.h"

#include <algorithm>
#include <unordered_set>
#include <utility>
#include <vector>

#include "monitoring/catalog_lists.h"
#include "server/supervision/supervision.h"

namespace millrace::server {

using monitoring::Counter;
using monitoring::Histogram;

namespace {

/// Returns the reason as the catalog has it. A code that is not there is a fault of Millrace: only series that begin at
/// 0 raise an alert.
std::string_view ending_of(std::string_view label) {
  const auto& known = monitoring::values::kEndings;
  return std::ranges::find(known, label) == known.end() ? "internal" : label;
}

}  // namespace

/// Series of one job: all that are known beforehand begin with it, and those of every round have their handles here.
struct MetricsExport::JobSeries {
  JobSeries(monitoring::Metrics& metrics, const monitoring::ShardMetrics& shard, const std::string& job)
      : contributions(shard.contributions.with({job})),
        contribution_bytes(shard.contribution_bytes.with({job})),
        contribution_entries(shard.contribution_entries.with({job})),
        contribution_raw_bytes(shard.contribution_raw_bytes.with({job})),
        rounds(shard.rounds.with({job})),
        sum_entries(shard.sum_entries.with({job})),
        update_entries(shard.update_entries.with({job})),
        update_bytes(shard.update_bytes.with({job})),
        update_raw_bytes(shard.update_raw_bytes.with({job})),
        round_seconds(shard.round_seconds.with({job})),
        wait_seconds(shard.wait_seconds.with({job})),
        fill_in(shard.fill_in_ratio.with({job})) {
    monitoring::begin_series(metrics, monitoring::shard_metric_infos(), job);
    shard.audit_imbalance.with({job}).set(0);
  }

  Counter& contributions;
  Counter& contribution_bytes;
  Counter& contribution_entries;
  Counter& contribution_raw_bytes;
  Counter& rounds;
  Counter& sum_entries;
  Counter& update_entries;
  Counter& update_bytes;
  Counter& update_raw_bytes;
  Histogram& round_seconds;
  Histogram& wait_seconds;
  Histogram& fill_in;
};

MetricsExport::MetricsExport(monitoring::Metrics& metrics) : metrics_(metrics), shard_(metrics) {
  monitoring::begin_series(metrics, monitoring::shard_metric_infos(), std::nullopt);
}
MetricsExport::~MetricsExport() = default;

MetricsExport::JobSeries& MetricsExport::series_of(const std::string& job) {
  std::string label = monitoring::Metrics::label_text(job);
  if (const auto known = jobs_.find(label); known != jobs_.end()) return *known->second;
  counted_.try_emplace(label);  // first: no series that is never forgotten
  return *jobs_.emplace(std::move(label), std::make_unique<JobSeries>(metrics_, shard_, job)).first->second;
}

bool MetricsExport::record_of_job(const MetricEvent& event) {
  switch (event.metric) {
    case Metric::kContributions: return series_of(event.job).contributions.increment(event.value), true;
    case Metric::kContributionBytes: return series_of(event.job).contribution_bytes.increment(event.value), true;
    case Metric::kContributionEntries: return series_of(event.job).contribution_entries.increment(event.value), true;
    case Metric::kContributionRawBytes: return series_of(event.job).contribution_raw_bytes.increment(event.value), true;
    case Metric::kRounds: return series_of(event.job).rounds.increment(event.value), true;
    case Metric::kSumEntries: return series_of(event.job).sum_entries.increment(event.value), true;
    case Metric::kUpdateEntries: return series_of(event.job).update_entries.increment(event.value), true;
    case Metric::kUpdateBytes: return series_of(event.job).update_bytes.increment(event.value), true;
    case Metric::kUpdateRawBytes: return series_of(event.job).update_raw_bytes.increment(event.value), true;
    case Metric::kRoundSeconds: return series_of(event.job).round_seconds.observe(event.value), true;
    case Metric::kWaitSeconds: return series_of(event.job).wait_seconds.observe(event.value), true;
    case Metric::kFillIn: return series_of(event.job).fill_in.observe(event.value), true;
    default: return false;
  }
}

void MetricsExport::record(const MetricEvent& event) {
  if (record_of_job(event)) return;
  if (!event.job.empty()) counted_.try_emplace(monitoring::Metrics::label_text(event.job));
  switch (event.metric) {
    case Metric::kMessages: return shard_.messages.with({event.label}).increment(event.value);
    case Metric::kDropped: return shard_.dropped.with({event.label}).increment(event.value);
    case Metric::kRefused: return shard_.refused.with({event.label}).increment(event.value);
    case Metric::kWorkerHandshakes: return shard_.handshakes.with({"worker", event.label}).increment(event.value);
    case Metric::kShardHandshakes: return shard_.handshakes.with({"shard", event.label}).increment(event.value);
    case Metric::kDuplicates: return shard_.duplicates.with({event.job}).increment(event.value);
    case Metric::kLate: return shard_.late.with({event.job, event.label}).increment(event.value);
    case Metric::kServedAgain: return shard_.served_again.with({event.job}).increment(event.value);
    case Metric::kLeftOut: return shard_.left_out.with({event.job}).increment(event.value);
    case Metric::kFusedThresholds: return shard_.fused_thresholds.with({event.job, event.label}).increment(event.value);
    case Metric::kPulls: return shard_.pulls.with({event.job, event.label}).increment(event.value);
    case Metric::kStoreSaves: return shard_.store_saves.with({event.job, event.label}).increment(event.value);
    case Metric::kDigests: return shard_.weight_digests.with({event.job, event.label}).increment(event.value);
    case Metric::kMergedUpdates: return shard_.merged_updates.with({event.job}).increment(event.value);
    case Metric::kMergedSteps: return shard_.merged_steps.with({event.job}).increment(event.value);
    case Metric::kRestarted: return shard_.restarted.with({event.job}).increment(event.value);
    case Metric::kExchangeFallbacks: return shard_.stale_thresholds.with({event.job}).increment(event.value);
    case Metric::kLateHistograms: return shard_.late_histograms.with({event.job}).increment(event.value);
    case Metric::kCodecErrorDown: return shard_.codec_error.with({event.job}).increment(event.value);
    case Metric::kAuditImbalance: return shard_.audit_imbalance.with({event.job}).add(event.value);
    case Metric::kMembersJoined: return shard_.members_joined.with({event.job}).increment(event.value);
    case Metric::kMembersFinished: return shard_.members_finished.with({event.job}).increment(event.value);
    case Metric::kMembersRemoved: return shard_.members_removed.with({event.job, event.label}).increment(event.value);
    case Metric::kRecoveries: return shard_.recoveries.with({event.job, event.label}).increment(event.value);
    case Metric::kSettled: return shard_.settled_parts.with({event.job, event.label}).increment(event.value);
    case Metric::kSnapshotBytes: return shard_.snapshot_bytes.with({event.job}).increment(event.value);
    case Metric::kPathChanges: return shard_.path_changes.with({event.job, event.label}).increment(event.value);
    case Metric::kJobsOpened:
      static_cast<void>(series_of(event.job));
      return shard_.jobs_opened.with({}).increment(event.value);
    case Metric::kJobsEnded: return shard_.jobs_ended.with({ending_of(event.label)}).increment(event.value);
    case Metric::kTableErrors: return shard_.table_errors.with({event.label}).increment(event.value);
    case Metric::kKeysRefused: return shard_.keys_refused.with({}).increment(event.value);
    // Those of record_of_job(). All are listed: a metric that is not exported does not build.
    case Metric::kContributions:
    case Metric::kContributionBytes:
    case Metric::kContributionEntries:
    case Metric::kContributionRawBytes:
    case Metric::kRounds:
    case Metric::kSumEntries:
    case Metric::kUpdateEntries:
    case Metric::kUpdateBytes:
    case Metric::kUpdateRawBytes:
    case Metric::kRoundSeconds:
    case Metric::kWaitSeconds:
    case Metric::kFillIn: return;
  }
}

namespace {

/// Returns how much a counter grew since the last call. A smaller value means that the counter restarted from 0.
double metrics_growth(uint64_t now, uint64_t& before) {
  const uint64_t base = now < before ? 0 : before;
  before = now;
  return static_cast<double>(now - base);
}

}  // namespace

void MetricsExport::count_datagrams(const StatusReport& status) {
  for (const JobStatus& job : status.jobs) {
    if (!job.switch_path || !job.switch_path->aggregator) continue;
    Counts& before = datagram_events_[monitoring::Metrics::label_text(job.name)];
    for (const NamedCount& one : job.switch_path->aggregator->events) {
      shard_.datagram_events.with({job.name, one.name}).increment(metrics_growth(one.count, before[one.name]));
    }
  }
  for (const NamedCount& one : status.datagrams_dropped)
    shard_.datagrams_dropped.with({one.name}).increment(metrics_growth(one.count, datagrams_dropped_[one.name]));
}

void MetricsExport::forget_ended(const StatusReport& status, TimeNs now) {
  std::unordered_set<std::string> open;
  for (const JobStatus& job : status.jobs) open.insert(monitoring::Metrics::label_text(job.name));
  for (const std::string& label : open) counted_[label].reset();
  std::vector<std::pair<TimeNs, std::string>> ended;
  for (auto& [label, since] : counted_) {
    if (open.contains(label)) continue;
    if (!since) {
      shard_.live_workers.with({label}).set(0);
      since = now;
    }
    ended.emplace_back(*since, label);
  }
  std::ranges::sort(ended);
  for (size_t at = 0; at < ended.size(); ++at) {
    const auto& [since, label] = ended[at];
    if (now - since < kEndedSeriesKept && ended.size() - at <= kEndedJobsMax) return;
    jobs_.erase(label);  // before the handles in it die
    datagram_events_.erase(label);
    metrics_.forget("job", label);
    counted_.erase(label);  // last: what breaks off before is forgotten at the next update
  }
}

void MetricsExport::update_gauges(const StatusReport& status, TimeNs now) {
  forget_ended(status, now);
  count_datagrams(status);
  for (const JobStatus& job : status.jobs) {
    static_cast<void>(series_of(job.name));
    shard_.live_workers.with({job.name}).set(static_cast<double>(job.members.size()));
    shard_.epoch.with({job.name}).set(static_cast<double>(job.epoch));
    shard_.retained_updates.with({job.name}).set(static_cast<double>(job.retained_updates));
    shard_.retained_update_bytes.with({job.name}).set(static_cast<double>(job.retained_bytes));
    if (job.switch_path) shard_.path_is_switch.with({job.name}).set(job.switch_path->decided_by == "switch" ? 1 : 0);
    if (!job.audit) continue;
    shard_.audit_workers_imbalance.with({job.name}).set(job.audit->workers_imbalance());
    shard_.audit_mass.with({job.name, "entered"}).set(job.audit->entered);
    shard_.audit_mass.with({job.name, "carried"}).set(job.audit->carried);
    shard_.audit_mass.with({job.name, "lost"}).set(job.audit->lost);
    shard_.audit_mass.with({job.name, "held"}).set(job.audit->in_residual);
  }
  shard_.table_reachable.with({}).set(reaches_table(status) ? 1 : 0);
  shard_.memory_bytes.with({}).set(static_cast<double>(status.memory_bytes));
  shard_.memory_limit_bytes.with({}).set(static_cast<double>(status.memory_bytes_max));
  shard_.key_files_skipped.with({}).set(status.keys ? static_cast<double>(status.keys->skipped_files) : 0);
  shard_.key_end_time.with({}).set(status.keys ? static_cast<double>(status.keys->first_end_s) : 0);
}

void MetricsExport::count_network(uint64_t in_bytes, uint64_t out_bytes) {
  if (in_bytes != 0) shard_.network_bytes.with({"in"}).increment(static_cast<double>(in_bytes));
  if (out_bytes != 0) shard_.network_bytes.with({"out"}).increment(static_cast<double>(out_bytes));
}

}  // namespace millrace::server
