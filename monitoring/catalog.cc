#include "monitoring/catalog.h"

#include <array>

#include "kernels/base/check.h"

namespace millrace::monitoring {
namespace {

using Names = std::span<const std::string_view>;

constexpr std::array<std::string_view, 1> kJob = {"job"};
constexpr std::array<std::string_view, 2> kJobAnswer = {"job", "answer"};
constexpr std::array<std::string_view, 2> kJobReason = {"job", "reason"};
constexpr std::array<std::string_view, 2> kJobResult = {"job", "result"};
constexpr std::array<std::string_view, 2> kJobOutcome = {"job", "outcome"};
constexpr std::array<std::string_view, 2> kJobPath = {"job", "path"};
constexpr std::array<std::string_view, 2> kJobWeights = {"job", "weights"};
constexpr std::array<std::string_view, 1> kReason = {"reason"};
constexpr std::array<std::string_view, 1> kCode = {"code"};
constexpr std::array<std::string_view, 1> kMessage = {"message"};
constexpr std::array<std::string_view, 1> kDirection = {"direction"};
constexpr std::array<std::string_view, 2> kPeerOutcome = {"peer", "outcome"};
constexpr std::array<std::string_view, 2> kJobEvent = {"job", "event"};
constexpr std::array<std::string_view, 2> kJobTerm = {"job", "term"};

// 50 us to 26 s: a round within a rack, and one that waits for a worker that is being restarted.
constexpr std::array<double, 20> kSeconds = {5e-5,   1e-4,   2e-4,   4e-4,   8e-4,    1.6e-3, 3.2e-3,
                                             6.4e-3, 0.0128, 0.0256, 0.0512, 0.1024,  0.2048, 0.4096,
                                             0.8192, 1.6384, 3.2768, 6.5536, 13.1072, 26.2144};

// 1: all contributions have the same entries; the number of workers: none has another's.
constexpr std::array<double, 12> kRatios = {1, 1.25, 1.5, 2, 3, 4, 6, 8, 16, 32, 64, 128};

constexpr std::array<MetricInfo, 53> kShardMetrics = {{
    {"millrace_shard_messages_total", MetricKind::kCounter, kMessage, "Messages received, by kind"},
    {"millrace_shard_network_bytes_total", MetricKind::kCounter, kDirection, "Bytes of whole messages, in and out"},
    {"millrace_shard_dropped_total", MetricKind::kCounter, kReason, "Messages dropped without an answer, by reason"},
    {"millrace_shard_refused_total", MetricKind::kCounter, kCode, "Messages answered with a refusal, by error code"},
    {"millrace_shard_handshakes_total", MetricKind::kCounter, kPeerOutcome,
     "Handshakes with workers and shards, by outcome"},
    {"millrace_shard_contributions_total", MetricKind::kCounter, kJob, "Contributions admitted"},
    {"millrace_shard_duplicates_total", MetricKind::kCounter, kJob,
     "Contributions that were here before: acknowledged, not added"},
    {"millrace_shard_late_total", MetricKind::kCounter, kJobAnswer,
     "Contributions to decided steps, by what was answered"},
    {"millrace_shard_served_again_total", MetricKind::kCounter, kJob,
     "Kept updates sent again because a worker says that it lacks them"},
    {"millrace_shard_left_out_total", MetricKind::kCounter, kJob,
     "Contributions that steps were decided without, of modes that leave workers out"},
    {"millrace_shard_restarted_total", MetricKind::kCounter, kJob, "Decisions begun again because the members changed"},
    {"millrace_shard_rounds_total", MetricKind::kCounter, kJob, "Steps of parts decided"},
    {"millrace_shard_round_seconds", MetricKind::kHistogram, kJob,
     "From the first contribution of a step of a part to its decision", kSeconds},
    {"millrace_shard_wait_seconds", MetricKind::kHistogram, kJob,
     "From the first contribution of a step of a part to the last one", kSeconds},
    {"millrace_shard_contribution_entries_total", MetricKind::kCounter, kJob,
     "Entries of admitted contributions: the achieved k up"},
    {"millrace_shard_sum_entries_total", MetricKind::kCounter, kJob,
     "Entries of sums that were made whole, before they are cut"},
    {"millrace_shard_update_entries_total", MetricKind::kCounter, kJob, "Entries of updates: the achieved k down"},
    {"millrace_shard_fill_in_ratio", MetricKind::kHistogram, kJob,
     "Of whole sums: entries over the most entries of one of its contributions", kRatios},
    {"millrace_shard_quick_cuts_total", MetricKind::kCounter, kJobResult,
     "Parts cut while they were summed: as_it_was, trimmed to the right size, or summed_again"},
    {"millrace_shard_contribution_bytes_total", MetricKind::kCounter, kJob,
     "Encoded payload of admitted contributions"},
    {"millrace_shard_contribution_raw_bytes_total", MetricKind::kCounter, kJob,
     "The same contributions as pairs of index and value"},
    {"millrace_shard_update_bytes_total", MetricKind::kCounter, kJob, "Encoded payload of updates, once a round"},
    {"millrace_shard_update_raw_bytes_total", MetricKind::kCounter, kJob,
     "The same updates as pairs of index and value"},
    {"millrace_shard_stale_thresholds_total", MetricKind::kCounter, kJob,
     "Buckets cut by the last threshold because a shard was silent"},
    {"millrace_shard_late_histograms_total", MetricKind::kCounter, kJob,
     "Histograms of other shards that came too late to be used"},
    {"millrace_shard_codec_error_total", MetricKind::kCounter, kJob,
     "Sum of |sum - decoded| over the entries of updates"},
    {"millrace_shard_pulls_total", MetricKind::kCounter, kJobResult,
     "Pulls of weights out of a store: answered, refused"},
    {"millrace_shard_store_saves_total", MetricKind::kCounter, kJobResult,
     "Saves of a job's store: written, failed (the one before stays)"},
    {"millrace_shard_merged_updates_total", MetricKind::kCounter, kJob,
     "Mode asynchronous: updates sent to one worker for several steps at once"},
    {"millrace_shard_merged_steps_total", MetricKind::kCounter, kJob, "Steps in them"},
    {"millrace_shard_weight_digests_total", MetricKind::kCounter, kJobResult,
     "What workers say to have applied, compared with what was decided: agree, differ (must be 0), too_old to be "
     "known"},
    {"millrace_shard_members_joined_total", MetricKind::kCounter, kJob, "Workers that joined"},
    {"millrace_shard_members_finished_total", MetricKind::kCounter, kJob, "Workers that finished"},
    {"millrace_shard_members_removed_total", MetricKind::kCounter, kJobReason, "Workers that were removed, by reason"},
    {"millrace_shard_recoveries_total", MetricKind::kCounter, kJobOutcome,
     "Rounds of a job that were not known: begun to be found, activated, cut to a worker's state"},
    {"millrace_shard_settled_parts_total", MetricKind::kCounter, kJobWeights,
     "Parts of joining workers that go on: with their own weights, a snapshot, or none yet"},
    {"millrace_shard_snapshot_bytes_total", MetricKind::kCounter, kJob, "Weights handed on to joining workers"},
    {"millrace_shard_path_changes_total", MetricKind::kCounter, kJobPath,
     "Jobs of path switch: changes of who decides, by who does from then on: server, switch"},
    {"millrace_shard_datagram_events_total", MetricKind::kCounter, kJobEvent,
     "Jobs of path switch while shard 0 stands in for the switch: what became of their datagrams, by event"},
    {"millrace_shard_datagrams_dropped_total", MetricKind::kCounter, kReason,
     "Datagrams that are of no job here, or that shard 0's port dropped, by reason"},
    {"millrace_shard_jobs_opened_total", MetricKind::kCounter, {}, "Jobs opened"},
    {"millrace_shard_jobs_ended_total", MetricKind::kCounter, kReason, "Jobs ended, by reason"},
    {"millrace_shard_table_errors_total", MetricKind::kCounter, kCode, "Errors of the membership table, by error code"},
    {"millrace_shard_live_workers", MetricKind::kGauge, kJob, "Members of the current epoch"},
    {"millrace_shard_epoch", MetricKind::kGauge, kJob, "The current epoch"},
    {"millrace_shard_kept_updates", MetricKind::kGauge, kJob, "Updates that some member has not acknowledged yet"},
    {"millrace_shard_kept_update_bytes", MetricKind::kGauge, kJob, "Memory of kept updates"},
    {"millrace_shard_path_is_switch", MetricKind::kGauge, kJob,
     "Jobs of path switch: 1 the switch decides, 0 shard 0 stands in for it"},
    {"millrace_shard_memory_bytes", MetricKind::kGauge, {}, "Memory accounted for"},
    {"millrace_shard_memory_limit_bytes", MetricKind::kGauge, {}, "Bound of the memory accounted for"},
    {"millrace_shard_audit_imbalance", MetricKind::kGauge, kJob,
     "Audited jobs: sum of |update - what it carries|; must be 0"},
    {"millrace_shard_audit_workers_imbalance", MetricKind::kGauge, kJob,
     "Audited jobs: what the workers' own books miss, as their contributions say; must be 0"},
    {"millrace_shard_audit_mass", MetricKind::kGauge, kJobTerm,
     "Audited jobs, over all workers: entered = carried + lost + held"},
}};

constexpr std::array<MetricInfo, 20> kWorkerMetrics = {{
    {"millrace_worker_network_bytes_total", MetricKind::kCounter, kDirection, "Bytes of whole messages, in and out"},
    {"millrace_worker_dropped_total", MetricKind::kCounter, kReason, "Messages dropped, by reason"},
    {"millrace_worker_reconnects_total", MetricKind::kCounter, kJob, "Connections to shards opened again"},
    {"millrace_worker_resends_total", MetricKind::kCounter, kJob, "Contributions sent again"},
    {"millrace_worker_switch_total", MetricKind::kCounter, kJobEvent,
     "Path switch: turns settled, packets sent again, time-outs, fallbacks to a shard, returns to the switch, packets "
     "with a mark of congestion, packets lost or dropped and why, and what else was done, by event"},
    {"millrace_worker_steps_total", MetricKind::kCounter, kJob, "Steps completed"},
    {"millrace_worker_step_seconds", MetricKind::kHistogram, kJob, "From sending a contribution to the complete update",
     kSeconds},
    {"millrace_worker_not_counted_total", MetricKind::kCounter, kJob,
     "Updates that do not name this worker: what it sent went back to the residual"},
    {"millrace_worker_discarded_entries_total", MetricKind::kCounter, kJob,
     "Entries that an unbiased job discarded, their contribution having missed its step"},
    {"millrace_worker_contribution_entries_total", MetricKind::kCounter, kJob,
     "Entries of contributions: the achieved k up"},
    {"millrace_worker_update_entries_total", MetricKind::kCounter, kJob, "Entries of updates: the achieved k down"},
    {"millrace_worker_contribution_bytes_total", MetricKind::kCounter, kJob,
     "Encoded payload of contributions, resends included"},
    {"millrace_worker_contribution_raw_bytes_total", MetricKind::kCounter, kJob,
     "The same contributions as pairs of index and value"},
    {"millrace_worker_update_bytes_total", MetricKind::kCounter, kJob, "Encoded payload of updates"},
    {"millrace_worker_update_raw_bytes_total", MetricKind::kCounter, kJob,
     "The same updates as pairs of index and value"},
    {"millrace_worker_bloom_false_positives_total", MetricKind::kCounter, kJob,
     "Entries that a Bloom filter made the worker send and nobody selected"},
    {"millrace_worker_codec_error_total", MetricKind::kCounter, kJob,
     "Sum of |accumulator - decoded| that a job with codec error 'drop' gave up"},
    {"millrace_worker_residual_norm", MetricKind::kGauge, kJob, "Euclidean norm of the residuals"},
    {"millrace_worker_audit_imbalance", MetricKind::kGauge, kJob,
     "Audited jobs: what the conservation law misses; must be 0"},
    {"millrace_worker_audit_mass", MetricKind::kGauge, kJobTerm,
     "Audited jobs: entered = residual + in_flight + carried + lost; rounded_off is a part of lost"},
}};

/// The entry of a name, when the program is compiled: a misspelled one does not build.
template <size_t kSize>
consteval size_t at(const std::array<MetricInfo, kSize>& infos, std::string_view name) {
  for (size_t i = 0; i < kSize; ++i) {
    if (infos[i].name == name) return i;
  }
  return infos.at(kSize).name.size();
}

Labels labels_of(const MetricInfo& info, std::initializer_list<std::string_view> values) {
  MILLRACE_CHECK(values.size() == info.labels.size(), info.name, values.size(), info.labels.size());
  Labels labels;
  for (const std::string_view value : values) labels.emplace_back(info.labels[labels.size()], value);
  return labels;
}

}  // namespace

std::vector<const MetricInfo*> metric_catalog() {
  std::vector<const MetricInfo*> all;
  for (const MetricInfo& info : kShardMetrics) all.push_back(&info);
  for (const MetricInfo& info : kWorkerMetrics) all.push_back(&info);
  return all;
}

Counter& CounterFamily::with(std::initializer_list<std::string_view> values) const {
  MILLRACE_CHECK(info_.kind == MetricKind::kCounter, info_.name);
  return metrics_.counter(info_.name, info_.help, labels_of(info_, values));
}

Gauge& GaugeFamily::with(std::initializer_list<std::string_view> values) const {
  MILLRACE_CHECK(info_.kind == MetricKind::kGauge, info_.name);
  return metrics_.gauge(info_.name, info_.help, labels_of(info_, values));
}

Histogram& HistogramFamily::with(std::initializer_list<std::string_view> values) const {
  MILLRACE_CHECK(info_.kind == MetricKind::kHistogram, info_.name);
  return metrics_.histogram(info_.name, info_.help, info_.bounds, labels_of(info_, values));
}

ShardMetrics::ShardMetrics(Metrics& metrics)
    : messages(metrics, kShardMetrics[at(kShardMetrics, "millrace_shard_messages_total")]),
      network_bytes(metrics, kShardMetrics[at(kShardMetrics, "millrace_shard_network_bytes_total")]),
      dropped(metrics, kShardMetrics[at(kShardMetrics, "millrace_shard_dropped_total")]),
      refused(metrics, kShardMetrics[at(kShardMetrics, "millrace_shard_refused_total")]),
      handshakes(metrics, kShardMetrics[at(kShardMetrics, "millrace_shard_handshakes_total")]),
      contributions(metrics, kShardMetrics[at(kShardMetrics, "millrace_shard_contributions_total")]),
      duplicates(metrics, kShardMetrics[at(kShardMetrics, "millrace_shard_duplicates_total")]),
      late(metrics, kShardMetrics[at(kShardMetrics, "millrace_shard_late_total")]),
      served_again(metrics, kShardMetrics[at(kShardMetrics, "millrace_shard_served_again_total")]),
      left_out(metrics, kShardMetrics[at(kShardMetrics, "millrace_shard_left_out_total")]),
      restarted(metrics, kShardMetrics[at(kShardMetrics, "millrace_shard_restarted_total")]),
      rounds(metrics, kShardMetrics[at(kShardMetrics, "millrace_shard_rounds_total")]),
      round_seconds(metrics, kShardMetrics[at(kShardMetrics, "millrace_shard_round_seconds")]),
      wait_seconds(metrics, kShardMetrics[at(kShardMetrics, "millrace_shard_wait_seconds")]),
      contribution_entries(metrics, kShardMetrics[at(kShardMetrics, "millrace_shard_contribution_entries_total")]),
      sum_entries(metrics, kShardMetrics[at(kShardMetrics, "millrace_shard_sum_entries_total")]),
      update_entries(metrics, kShardMetrics[at(kShardMetrics, "millrace_shard_update_entries_total")]),
      fill_in_ratio(metrics, kShardMetrics[at(kShardMetrics, "millrace_shard_fill_in_ratio")]),
      quick_cuts(metrics, kShardMetrics[at(kShardMetrics, "millrace_shard_quick_cuts_total")]),
      contribution_bytes(metrics, kShardMetrics[at(kShardMetrics, "millrace_shard_contribution_bytes_total")]),
      contribution_raw_bytes(metrics, kShardMetrics[at(kShardMetrics, "millrace_shard_contribution_raw_bytes_total")]),
      update_bytes(metrics, kShardMetrics[at(kShardMetrics, "millrace_shard_update_bytes_total")]),
      update_raw_bytes(metrics, kShardMetrics[at(kShardMetrics, "millrace_shard_update_raw_bytes_total")]),
      stale_thresholds(metrics, kShardMetrics[at(kShardMetrics, "millrace_shard_stale_thresholds_total")]),
      late_histograms(metrics, kShardMetrics[at(kShardMetrics, "millrace_shard_late_histograms_total")]),
      codec_error(metrics, kShardMetrics[at(kShardMetrics, "millrace_shard_codec_error_total")]),
      pulls(metrics, kShardMetrics[at(kShardMetrics, "millrace_shard_pulls_total")]),
      store_saves(metrics, kShardMetrics[at(kShardMetrics, "millrace_shard_store_saves_total")]),
      merged_updates(metrics, kShardMetrics[at(kShardMetrics, "millrace_shard_merged_updates_total")]),
      merged_steps(metrics, kShardMetrics[at(kShardMetrics, "millrace_shard_merged_steps_total")]),
      weight_digests(metrics, kShardMetrics[at(kShardMetrics, "millrace_shard_weight_digests_total")]),
      members_joined(metrics, kShardMetrics[at(kShardMetrics, "millrace_shard_members_joined_total")]),
      members_finished(metrics, kShardMetrics[at(kShardMetrics, "millrace_shard_members_finished_total")]),
      members_removed(metrics, kShardMetrics[at(kShardMetrics, "millrace_shard_members_removed_total")]),
      recoveries(metrics, kShardMetrics[at(kShardMetrics, "millrace_shard_recoveries_total")]),
      settled_parts(metrics, kShardMetrics[at(kShardMetrics, "millrace_shard_settled_parts_total")]),
      snapshot_bytes(metrics, kShardMetrics[at(kShardMetrics, "millrace_shard_snapshot_bytes_total")]),
      path_changes(metrics, kShardMetrics[at(kShardMetrics, "millrace_shard_path_changes_total")]),
      datagram_events(metrics, kShardMetrics[at(kShardMetrics, "millrace_shard_datagram_events_total")]),
      datagrams_dropped(metrics, kShardMetrics[at(kShardMetrics, "millrace_shard_datagrams_dropped_total")]),
      jobs_opened(metrics, kShardMetrics[at(kShardMetrics, "millrace_shard_jobs_opened_total")]),
      jobs_ended(metrics, kShardMetrics[at(kShardMetrics, "millrace_shard_jobs_ended_total")]),
      table_errors(metrics, kShardMetrics[at(kShardMetrics, "millrace_shard_table_errors_total")]),
      live_workers(metrics, kShardMetrics[at(kShardMetrics, "millrace_shard_live_workers")]),
      epoch(metrics, kShardMetrics[at(kShardMetrics, "millrace_shard_epoch")]),
      kept_updates(metrics, kShardMetrics[at(kShardMetrics, "millrace_shard_kept_updates")]),
      kept_update_bytes(metrics, kShardMetrics[at(kShardMetrics, "millrace_shard_kept_update_bytes")]),
      path_is_switch(metrics, kShardMetrics[at(kShardMetrics, "millrace_shard_path_is_switch")]),
      memory_bytes(metrics, kShardMetrics[at(kShardMetrics, "millrace_shard_memory_bytes")]),
      memory_limit_bytes(metrics, kShardMetrics[at(kShardMetrics, "millrace_shard_memory_limit_bytes")]),
      audit_imbalance(metrics, kShardMetrics[at(kShardMetrics, "millrace_shard_audit_imbalance")]),
      audit_workers_imbalance(metrics, kShardMetrics[at(kShardMetrics, "millrace_shard_audit_workers_imbalance")]),
      audit_mass(metrics, kShardMetrics[at(kShardMetrics, "millrace_shard_audit_mass")]) {}

WorkerMetrics::WorkerMetrics(Metrics& metrics)
    : network_bytes(metrics, kWorkerMetrics[at(kWorkerMetrics, "millrace_worker_network_bytes_total")]),
      dropped(metrics, kWorkerMetrics[at(kWorkerMetrics, "millrace_worker_dropped_total")]),
      reconnects(metrics, kWorkerMetrics[at(kWorkerMetrics, "millrace_worker_reconnects_total")]),
      resends(metrics, kWorkerMetrics[at(kWorkerMetrics, "millrace_worker_resends_total")]),
      switch_events(metrics, kWorkerMetrics[at(kWorkerMetrics, "millrace_worker_switch_total")]),
      steps(metrics, kWorkerMetrics[at(kWorkerMetrics, "millrace_worker_steps_total")]),
      step_seconds(metrics, kWorkerMetrics[at(kWorkerMetrics, "millrace_worker_step_seconds")]),
      not_counted(metrics, kWorkerMetrics[at(kWorkerMetrics, "millrace_worker_not_counted_total")]),
      discarded_entries(metrics, kWorkerMetrics[at(kWorkerMetrics, "millrace_worker_discarded_entries_total")]),
      contribution_entries(metrics, kWorkerMetrics[at(kWorkerMetrics, "millrace_worker_contribution_entries_total")]),
      update_entries(metrics, kWorkerMetrics[at(kWorkerMetrics, "millrace_worker_update_entries_total")]),
      contribution_bytes(metrics, kWorkerMetrics[at(kWorkerMetrics, "millrace_worker_contribution_bytes_total")]),
      contribution_raw_bytes(metrics,
                             kWorkerMetrics[at(kWorkerMetrics, "millrace_worker_contribution_raw_bytes_total")]),
      update_bytes(metrics, kWorkerMetrics[at(kWorkerMetrics, "millrace_worker_update_bytes_total")]),
      update_raw_bytes(metrics, kWorkerMetrics[at(kWorkerMetrics, "millrace_worker_update_raw_bytes_total")]),
      bloom_false_positives(metrics, kWorkerMetrics[at(kWorkerMetrics, "millrace_worker_bloom_false_positives_total")]),
      codec_error(metrics, kWorkerMetrics[at(kWorkerMetrics, "millrace_worker_codec_error_total")]),
      residual_norm(metrics, kWorkerMetrics[at(kWorkerMetrics, "millrace_worker_residual_norm")]),
      audit_imbalance(metrics, kWorkerMetrics[at(kWorkerMetrics, "millrace_worker_audit_imbalance")]),
      audit_mass(metrics, kWorkerMetrics[at(kWorkerMetrics, "millrace_worker_audit_mass")]) {}

}  // namespace millrace::monitoring
