#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "monitoring/metrics.h"

namespace millrace::monitoring {

enum class MetricKind : uint8_t { kCounter, kGauge, kHistogram };

/// Describes a label of a metric.
struct LabelInfo {
  std::string_view name;
  std::span<const std::string_view> values = {};  ///< all of them; none: not known beforehand
};

/// Says where a metric is shown.
enum class Shown : uint8_t {
  kPanel,   ///< in a panel of the dashboard
  kDetail,  ///< in no panel: for questions that a panel raises
};

/// Describes one metric that a program exports. Tests compare the tables of METRICS.md and the dashboard with these.
struct MetricInfo {
  std::string_view name;
  MetricKind kind = MetricKind::kCounter;
  std::span<const LabelInfo> labels = {};
  std::string_view help = {};
  std::span<const double> bounds = {};  ///< of a histogram
  Shown shown = Shown::kPanel;
};

// Every metric of a program, and of all programs in this order.
std::span<const MetricInfo> shard_metric_infos();
std::span<const MetricInfo> worker_metric_infos();
std::span<const MetricInfo> switch_metric_infos();
std::span<const MetricInfo> peer_metric_infos();
std::span<const MetricInfo> http_metric_infos();  ///< of the HTTP port of any program
std::vector<const MetricInfo*> metric_catalog();

/// Begins counters and histograms of `infos` at 0 for every label set that is known beforehand, so that rates and
/// alerts see the first event. Counts nothing: a series that exists stays as it is.
///
/// job  begins the series whose label `job` has this value, and whose other labels have known values. Nothing: begins
///      those without the label `job`.
void begin_series(Metrics& metrics, std::span<const MetricInfo> infos, std::optional<std::string_view> job);

/// Metrics of one name that differ in their labels. `values` are those of the labels, in the order of the catalog, as
/// many as there are. The handle stays valid; keep it where the path is hot.
class CounterFamily {
 public:
  CounterFamily(Metrics& metrics, const MetricInfo& info) : metrics_(metrics), info_(info) {}
  Counter& with(std::initializer_list<std::string_view> values = {}) const;

 private:
  Metrics& metrics_;
  const MetricInfo& info_;
};

class GaugeFamily {
 public:
  GaugeFamily(Metrics& metrics, const MetricInfo& info) : metrics_(metrics), info_(info) {}
  Gauge& with(std::initializer_list<std::string_view> values = {}) const;

 private:
  Metrics& metrics_;
  const MetricInfo& info_;
};

class HistogramFamily {
 public:
  HistogramFamily(Metrics& metrics, const MetricInfo& info) : metrics_(metrics), info_(info) {}
  Histogram& with(std::initializer_list<std::string_view> values = {}) const;

 private:
  Metrics& metrics_;
  const MetricInfo& info_;
};

/// Holds the metrics of a shard. Labels in brackets; "raw" bytes are those of the same entries as pairs of index and
/// value.
struct ShardMetrics {
  explicit ShardMetrics(Metrics& metrics);

  CounterFamily messages;                ///< [message] received
  CounterFamily network_bytes;           ///< [direction] "in", "out": whole messages
  CounterFamily dropped;                 ///< [reason] messages not answered
  CounterFamily refused;                 ///< [code] messages answered with a refusal
  CounterFamily handshakes;              ///< [peer, outcome] "worker" or "shard"; "accepted" or "refused"
  CounterFamily contributions;           ///< [job] admitted
  CounterFamily duplicates;              ///< [job] acknowledged and not added
  CounterFamily late;                    ///< [job, answer] to decided steps
  CounterFamily served_again;            ///< [job] kept updates sent again
  CounterFamily left_out;                ///< [job] contributions that steps were decided without
  CounterFamily restarted;               ///< [job] decisions begun again because the members changed
  CounterFamily rounds;                  ///< [job] steps of parts decided
  HistogramFamily round_seconds;         ///< [job] first contribution to decision
  HistogramFamily wait_seconds;          ///< [job] first contribution to last
  CounterFamily contribution_entries;    ///< [job] the achieved k up, over contributions
  CounterFamily sum_entries;             ///< [job] of whole sums, before re-selection
  CounterFamily update_entries;          ///< [job] the achieved k down, over rounds
  HistogramFamily fill_in_ratio;         ///< [job] of whole sums: entries / most entries of one of its contributions
  CounterFamily fused_thresholds;        ///< [job, result] parts cut while they were summed
  CounterFamily contribution_bytes;      ///< [job] encoded payload
  CounterFamily contribution_raw_bytes;  ///< [job]
  CounterFamily update_bytes;            ///< [job] encoded payload, once a round
  CounterFamily update_raw_bytes;        ///< [job]
  CounterFamily stale_thresholds;        ///< [job] parts cut by the last threshold because a shard was silent
  CounterFamily late_histograms;         ///< [job] too late to be used
  CounterFamily codec_error;             ///< [job] sum of |sum - decoded| over the updates' entries
  CounterFamily pulls;                   ///< [job, result] of weights out of a store
  CounterFamily store_saves;             ///< [job, result]
  CounterFamily merged_updates;          ///< [job] sent, each of several steps
  CounterFamily merged_steps;            ///< [job] in them
  CounterFamily weight_digests;          ///< [job, result] of members, compared with the decided updates
  CounterFamily members_joined;          ///< [job]
  CounterFamily members_finished;        ///< [job]
  CounterFamily members_removed;         ///< [job, reason]
  CounterFamily recoveries;              ///< [job, outcome] of this shard's rounds of the job
  CounterFamily settled_parts;           ///< [job, weights] of joining workers
  CounterFamily snapshot_bytes;          ///< [job] of weights, forwarded to joining workers
  CounterFamily path_changes;            ///< [job, path] of jobs of path switch
  CounterFamily datagram_events;         ///< [job, event] of jobs whose switch shard 0 replaces
  CounterFamily datagrams_dropped;       ///< [reason] by shard 0's port of datagrams
  CounterFamily jobs_opened;             ///< none
  CounterFamily jobs_ended;              ///< [reason]
  CounterFamily table_errors;            ///< [code] of the membership table
  GaugeFamily table_reachable;           ///< none; 1: the membership table answers
  CounterFamily keys_refused;            ///< none; connections whose key is not allowed
  GaugeFamily key_files_skipped;         ///< none; of the folder of allowed keys
  GaugeFamily key_end_time;              ///< none; of the first key that ends
  GaugeFamily certificate_end_time;      ///< [certificate] of other ports and of the table: the earliest end
  GaugeFamily live_workers;              ///< [job]
  GaugeFamily epoch;                     ///< [job]
  GaugeFamily retained_updates;          ///< [job] not yet acknowledged by all
  GaugeFamily retained_update_bytes;     ///< [job]
  GaugeFamily path_is_switch;            ///< [job] of path switch
  GaugeFamily memory_bytes;              ///< none
  GaugeFamily memory_limit_bytes;        ///< none
  GaugeFamily audit_imbalance;           ///< [job] of updates; must be 0
  GaugeFamily audit_workers_imbalance;   ///< [job] of the law, as workers report; must be 0
  GaugeFamily audit_mass;                ///< [job, term]
};

/// Holds the metrics of a worker.
struct WorkerMetrics {
  explicit WorkerMetrics(Metrics& metrics);

  CounterFamily network_bytes;           ///< [job, direction]
  CounterFamily dropped;                 ///< [reason]
  CounterFamily reconnects;              ///< [job]
  CounterFamily resends;                 ///< [job] contributions sent again
  CounterFamily switch_events;           ///< [job, event] of path switch
  CounterFamily steps;                   ///< [job] completed
  HistogramFamily step_seconds;          ///< [job] contribution sent to update complete
  CounterFamily not_counted;             ///< [job] updates that do not name this worker: all of it taken back
  CounterFamily discarded_entries;       ///< [job] entries of such contributions of an unbiased job: gone
  CounterFamily contribution_entries;    ///< [job]
  CounterFamily update_entries;          ///< [job]
  CounterFamily contribution_bytes;      ///< [job]
  CounterFamily contribution_raw_bytes;  ///< [job]
  CounterFamily update_bytes;            ///< [job]
  CounterFamily update_raw_bytes;        ///< [job]
  CounterFamily dense_bytes;             ///< [job] of a dense exchange of the same steps
  CounterFamily bloom_false_positives;   ///< [job] entries sent that no selection chose
  CounterFamily codec_error;             ///< [job] dropped by a job whose codec error is "drop"
  GaugeFamily residual_norm;             ///< [job]
  GaugeFamily audit_imbalance;           ///< [job] of the law; must be 0
  GaugeFamily audit_mass;                ///< [job, term]
};

/// Holds the metrics of a switch.
struct SwitchMetrics {
  explicit SwitchMetrics(Metrics& metrics);

  CounterFamily packets;              ///< [lcore, direction]
  CounterFamily bytes;                ///< [lcore, direction]
  CounterFamily port_dropped;         ///< [lcore, reason]
  CounterFamily events;               ///< [lcore, event]
  CounterFamily retransmissions;      ///< [lcore]
  GaugeFamily slots_max;              ///< none
  GaugeFamily slots_reserved;         ///< none
  CounterFamily job_events;           ///< [job, event]
  CounterFamily job_packets;          ///< [job, direction]
  CounterFamily job_bytes;            ///< [job, direction]
  CounterFamily job_retransmissions;  ///< [job]
  GaugeFamily job_slots;              ///< [job]
  GaugeFamily job_slots_in_use;       ///< [job]
  GaugeFamily job_workers;            ///< [job]
  GaugeFamily partials_in_flight;     ///< [job]
  GaugeFamily uplink_welcome;         ///< [job]
};

/// Holds the metrics of a rank of millrace-peer.
struct PeerMetrics {
  explicit PeerMetrics(Metrics& metrics);

  CounterFamily network_bytes;         ///< [job, direction]
  CounterFamily messages_unexpected;   ///< [job]
  CounterFamily steps;                 ///< [job]
  HistogramFamily step_seconds;        ///< [job]
  CounterFamily compute_seconds;       ///< [job]
  CounterFamily wait_seconds;          ///< [job]
  CounterFamily contribution_entries;  ///< [job]
  CounterFamily update_entries;        ///< [job]
  CounterFamily dense_bytes;           ///< [job]
  GaugeFamily residual_norm;           ///< [job]
  GaugeFamily ranks;                   ///< [job]
};

/// Holds the metrics of an HTTP port, which exports them itself beside those of its program.
struct HttpMetrics {
  explicit HttpMetrics(Metrics& metrics);

  CounterFamily refused;             ///< [reason]
  GaugeFamily certificate_end_time;  ///< [certificate] the earliest end of a file's certificates
};

}  // namespace millrace::monitoring
