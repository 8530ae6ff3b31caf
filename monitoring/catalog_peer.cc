#include <array>

#include "monitoring/catalog.h"
#include "monitoring/catalog_lists.h"

namespace millrace::monitoring {
namespace {

constexpr std::array<MetricInfo, 11> kPeerMetrics = {{
    {.name = "millrace_peer_network_bytes_total",
     .kind = MetricKind::kCounter,
     .labels = kJobDirection,
     .help = "Bytes of messages among the ranks, in and out, by this rank"},
    {.name = "millrace_peer_messages_unexpected_total",
     .kind = MetricKind::kCounter,
     .labels = kJob,
     .help = "Messages of other ranks that this rank dropped; must be 0"},
    {.name = "millrace_peer_steps_total", .kind = MetricKind::kCounter, .labels = kJob, .help = "Steps completed"},
    {.name = "millrace_peer_step_seconds",
     .kind = MetricKind::kHistogram,
     .labels = kJob,
     .help = "From the start of the computation of a step to its applied sum",
     .bounds = kSeconds},
    {.name = "millrace_peer_compute_seconds_total",
     .kind = MetricKind::kCounter,
     .labels = kJob,
     .help = "Time spent on gradients and on applying sums"},
    {.name = "millrace_peer_wait_seconds_total",
     .kind = MetricKind::kCounter,
     .labels = kJob,
     .help = "Time spent waiting for sums"},
    {.name = "millrace_peer_contribution_entries_total",
     .kind = MetricKind::kCounter,
     .labels = kJob,
     .help = "Entries of this rank in sums: the achieved k up"},
    {.name = "millrace_peer_update_entries_total",
     .kind = MetricKind::kCounter,
     .labels = kJob,
     .help = "Entries of sums: the achieved k down"},
    {.name = "millrace_peer_dense_bytes_total",
     .kind = MetricKind::kCounter,
     .labels = kJob,
     .help = "Bytes of a dense exchange, one way: 4 a parameter and step"},
    {.name = "millrace_peer_residual_norm",
     .kind = MetricKind::kGauge,
     .labels = kJob,
     .help = "Euclidean norm of the residual"},
    {.name = "millrace_peer_ranks", .kind = MetricKind::kGauge, .labels = kJob, .help = "Ranks of the job"},
}};

}  // namespace

std::span<const MetricInfo> peer_metric_infos() { return kPeerMetrics; }

PeerMetrics::PeerMetrics(Metrics& metrics)
    : network_bytes(metrics, kPeerMetrics[index_of(kPeerMetrics, "millrace_peer_network_bytes_total")]),
      messages_unexpected(metrics, kPeerMetrics[index_of(kPeerMetrics, "millrace_peer_messages_unexpected_total")]),
      steps(metrics, kPeerMetrics[index_of(kPeerMetrics, "millrace_peer_steps_total")]),
      step_seconds(metrics, kPeerMetrics[index_of(kPeerMetrics, "millrace_peer_step_seconds")]),
      compute_seconds(metrics, kPeerMetrics[index_of(kPeerMetrics, "millrace_peer_compute_seconds_total")]),
      wait_seconds(metrics, kPeerMetrics[index_of(kPeerMetrics, "millrace_peer_wait_seconds_total")]),
      contribution_entries(metrics, kPeerMetrics[index_of(kPeerMetrics, "millrace_peer_contribution_entries_total")]),
      update_entries(metrics, kPeerMetrics[index_of(kPeerMetrics, "millrace_peer_update_entries_total")]),
      dense_bytes(metrics, kPeerMetrics[index_of(kPeerMetrics, "millrace_peer_dense_bytes_total")]),
      residual_norm(metrics, kPeerMetrics[index_of(kPeerMetrics, "millrace_peer_residual_norm")]),
      ranks(metrics, kPeerMetrics[index_of(kPeerMetrics, "millrace_peer_ranks")]) {}

}  // namespace millrace::monitoring
