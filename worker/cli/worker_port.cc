#include "worker/cli/worker_port.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "kernels/base/version.h"

#include "worker/cli/json_text.h"

namespace millrace::cli {
namespace {

/// The sums over tensors that the metrics show.
struct TensorSums {
  uint64_t entries_sent = 0;
  uint64_t entries_received = 0;
  uint64_t false_positives = 0;
  uint64_t entries_discarded = 0;
  double dropped_magnitude = 0;
  double residual_norm = 0;

  explicit TensorSums(const Stats& stats) {
    for (const TensorStats& tensor : stats.tensors) {
      entries_sent += tensor.entries_sent;
      entries_received += tensor.entries_received;
      false_positives += tensor.false_positives;
      entries_discarded += tensor.entries_discarded;
      dropped_magnitude += tensor.dropped_magnitude;
      residual_norm = std::hypot(residual_norm, tensor.residual_norm);
    }
  }
};

/// Of a job that audits; else none.
std::vector<std::pair<const char*, double>> audit_terms(const AuditStats& audit) {
  if (!audit.audits) return {};
  return {{"entered", audit.entered}, {"residual", audit.residual}, {"in_flight", audit.in_flight},
          {"carried", audit.carried}, {"lost", audit.lost},         {"rounded_off", audit.rounded_off}};
}

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

nlohmann::json switch_json(const SwitchStats& path) {
  return {{"at_switch", path.at_switch},
          {"turns", path.turns},
          {"resends", path.resends},
          {"timeouts", path.timeouts},
          {"fallbacks", path.fallbacks},
          {"came_back", path.came_back},
          {"congestion_marks", path.congestion_marks},
          {"packets_lost", path.packets_lost},
          {"events", path.events}};
}

Result<std::unique_ptr<WorkerPort>> WorkerPort::start(const std::string& address, Identity identity) {
  std::unique_ptr<WorkerPort> worker(new WorkerPort(std::move(identity)));
  auto port =
      monitoring::HttpPort::start(address, "--http",
                                  {.metrics_text = [at = worker.get()] { return at->metrics_.prometheus_text(); },
                                   .unhealthy = [] { return std::optional<std::string>(); },
                                   .status_json = [at = worker.get()] { return at->status_json(); },
                                   .title = "Millrace worker " + std::to_string(worker->identity_.worker)});
  if (!port) return std::unexpected(port.error());
  worker->port_ = std::move(*port);
  worker->update({});
  return worker;
}

WorkerPort::WorkerPort(Identity identity) : identity_(std::move(identity)), exported_(metrics_) {}

std::string WorkerPort::status_json() {
  const std::lock_guard lock(mutex_);
  return status_;
}

void WorkerPort::update(const Stats& stats) {
  count(stats);
  const std::string status = status_of(stats);
  const std::lock_guard lock(mutex_);
  status_ = status;
}

void WorkerPort::count(const Stats& stats) {
  const std::string& job = identity_.job;
  const TensorSums now(stats);
  const TensorSums before(shown_);
  exported_.network_bytes.with({"out"}).increment(grown(stats.bytes_up, shown_.bytes_up));
  exported_.network_bytes.with({"in"}).increment(grown(stats.bytes_down, shown_.bytes_down));
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
  exported_.bloom_false_positives.with({job}).increment(grown(now.false_positives, before.false_positives));
  exported_.codec_error.with({job}).increment(now.dropped_magnitude - before.dropped_magnitude);
  exported_.residual_norm.with({job}).set(now.residual_norm);
  exported_.audit_imbalance.with({job}).set(stats.audit.imbalance);
  for (const auto& [term, mass] : audit_terms(stats.audit)) exported_.audit_mass.with({job, term}).set(mass);
  count_switch(exported_, job, stats.by_switch, shown_.by_switch);
  shown_ = stats;
}

std::string WorkerPort::status_of(const Stats& stats) const {
  const TensorSums now(stats);
  nlohmann::json status = {{"job", identity_.job},
                           {"worker", identity_.worker},
                           {"workers", identity_.workers},
                           {"software", software_name()},
                           {"rounds", stats.rounds},
                           {"sent_bytes", stats.bytes_up},
                           {"received_bytes", stats.bytes_down},
                           {"dense_bytes", stats.dense_bytes},
                           {"entries_sent", now.entries_sent},
                           {"entries_received", now.entries_received},
                           {"residual_norm", now.residual_norm},
                           {"not_counted", stats.not_counted},
                           {"lost_save_too_old", stats.lost_save_too_old},
                           {"lost_off_log", stats.lost_off_log},
                           {"lost_cut", stats.lost_cut},
                           {"unreturnable", stats.unreturnable},
                           {"entries_void", stats.entries_void},
                           {"history_bytes_saved", stats.history_bytes_saved},
                           {"history_shortened", stats.history_shortened},
                           {"history_refused", stats.history_refused},
                           {"duplicates", stats.duplicates},
                           {"returns", stats.returns},
                           {"returns_asked_for", stats.returns_asked_for},
                           {"resends", stats.resends},
                           {"reconnects", stats.reconnects},
                           {"blocked_seconds", stats.time_blocked_s},
                           {"communication_seconds", stats.time_in_communication_s}};
  if (stats.audit.audits) {
    status["audit"] = {{"imbalance", stats.audit.imbalance}, {"checks", stats.audit.checks}};
    for (const auto& [term, mass] : audit_terms(stats.audit)) status["audit"][term] = mass;
  }
  if (stats.by_switch.used) status["switch"] = switch_json(stats.by_switch);
  constexpr size_t kListedMax = 64;  // nobody reads more
  for (const TensorStats& tensor : stats.tensors) {
    if (tensor.codec_choice.empty() || status["codecs_up"].size() >= kListedMax) continue;
    status["codecs_up"].push_back({{"tensor", tensor.name}, {"codec", tensor.codec_choice}});
  }
  return json_text(status);
}

}  // namespace millrace::cli
