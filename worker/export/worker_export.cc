#include "worker/export/worker_export.h"

#include <cmath>
#include <cstdint>

namespace millrace::worker {
namespace {

double grown(uint64_t now, uint64_t before) { return static_cast<double>(now - before); }

void count_switch(monitoring::WorkerMetrics& exported, const std::string& job, const SwitchStats& now,
                  const SwitchStats& before) {
  if (!now.used) return;
  monitoring::CounterFamily& events = exported.switch_events;
  events.with({job, "turn"}).increment(grown(now.turns, before.turns));
  events.with({job, "resend"}).increment(grown(now.resends, before.resends));
  events.with({job, "timeout"}).increment(grown(now.timeouts, before.timeouts));
  events.with({job, "fallback"}).increment(grown(now.fallbacks, before.fallbacks));
  events.with({job, "return"}).increment(grown(now.came_back, before.came_back));
  events.with({job, "congestion_mark"}).increment(grown(now.congestion_marks, before.congestion_marks));
  events.with({job, "packet_lost"}).increment(grown(now.packets_lost, before.packets_lost));
  for (const auto& [event, count] : now.events) {
    const auto known = before.events.find(event);
    events.with({job, event}).increment(grown(count, known == before.events.end() ? 0 : known->second));
  }
}

}  // namespace

TensorSums::TensorSums(const Stats& stats) {
  for (const TensorStats& tensor : stats.tensors) {
    entries_sent += tensor.entries_sent;
    entries_received += tensor.entries_received;
    false_positives += tensor.false_positives;
    entries_discarded += tensor.entries_discarded;
    dropped_magnitude += tensor.dropped_magnitude;
    residual_norm = std::hypot(residual_norm, tensor.residual_norm);
  }
}

std::vector<std::pair<const char*, double>> audit_terms(const AuditStats& audit) {
  if (!audit.audits) return {};
  return {{"entered", audit.entered}, {"residual", audit.residual}, {"in_flight", audit.in_flight},
          {"carried", audit.carried}, {"lost", audit.lost},         {"rounded_off", audit.rounded_off}};
}

WorkerExport::WorkerExport(monitoring::Metrics& metrics, std::string job)
    : job_(std::move(job)), exported_(metrics), step_seconds_(exported_.step_seconds.with({job_})) {
  monitoring::begin_series(metrics, monitoring::worker_metric_infos(), std::nullopt);
  monitoring::begin_series(metrics, monitoring::worker_metric_infos(), job_);
  update({});
}

void WorkerExport::update(const Stats& stats) {
  const std::string& job = job_;
  const TensorSums now(stats);
  const TensorSums before(shown_);
  exported_.network_bytes.with({job, "out"}).increment(grown(stats.bytes_up, shown_.bytes_up));
  exported_.network_bytes.with({job, "in"}).increment(grown(stats.bytes_down, shown_.bytes_down));
  exported_.dropped.with({"stale"}).increment(grown(stats.updates_dropped_stale, shown_.updates_dropped_stale));
  exported_.dropped.with({"malformed"})
      .increment(grown(stats.updates_dropped_malformed, shown_.updates_dropped_malformed));
  exported_.dropped.with({"unexpected"})
      .increment(grown(stats.messages_dropped_unexpected, shown_.messages_dropped_unexpected));
  exported_.reconnects.with({job}).increment(grown(stats.reconnects, shown_.reconnects));
  exported_.resends.with({job}).increment(grown(stats.resends, shown_.resends));
  exported_.steps.with({job}).increment(grown(stats.rounds, shown_.rounds));
  exported_.not_counted.with({job}).increment(grown(stats.not_counted, shown_.not_counted));
  exported_.discarded_entries.with({job}).increment(grown(now.entries_discarded, before.entries_discarded));
  exported_.contribution_entries.with({job}).increment(grown(now.entries_sent, before.entries_sent));
  exported_.update_entries.with({job}).increment(grown(now.entries_received, before.entries_received));
  exported_.contribution_bytes.with({job}).increment(grown(stats.payload_bytes_up, shown_.payload_bytes_up));
  exported_.update_bytes.with({job}).increment(grown(stats.payload_bytes_down, shown_.payload_bytes_down));
  exported_.contribution_raw_bytes.with({job}).increment(grown(stats.raw_bytes_up, shown_.raw_bytes_up));
  exported_.update_raw_bytes.with({job}).increment(grown(stats.raw_bytes_down, shown_.raw_bytes_down));
  exported_.dense_bytes.with({job}).increment(grown(stats.dense_bytes, shown_.dense_bytes));
  exported_.bloom_false_positives.with({job}).increment(grown(now.false_positives, before.false_positives));
  exported_.codec_error.with({job}).increment(now.dropped_magnitude - before.dropped_magnitude);
  exported_.residual_norm.with({job}).set(now.residual_norm);
  exported_.audit_imbalance.with({job}).set(stats.audit.imbalance);
  for (const auto& [term, mass] : audit_terms(stats.audit)) exported_.audit_mass.with({job, term}).set(mass);
  count_switch(exported_, job, stats.by_switch, shown_.by_switch);
  shown_ = stats;
}

}  // namespace millrace::worker
