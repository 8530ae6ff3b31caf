#include "worker/export/worker_port.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "kernels/base/version.h"

namespace millrace::worker {

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

Result<std::unique_ptr<WorkerPort>> WorkerPort::start(const std::string& address, std::string_view flag,
                                                      Identity identity, Source source,
                                                      std::shared_ptr<monitoring::HttpProtection> protection) {
  std::unique_ptr<WorkerPort> worker(new WorkerPort(std::move(identity), std::move(source)));
  worker->update({});
  monitoring::HttpHandlers handlers;
  handlers.metrics_text = [at = worker.get()] {
    at->ask_source();
    const std::lock_guard lock(at->mutex_);  // all of one update
    return at->metrics_.prometheus_text();
  };
  handlers.unhealthy = [at = worker.get()] {
    return at->source_.unhealthy ? at->source_.unhealthy() : std::optional<std::string>();
  };
  handlers.status_json = [at = worker.get()] {
    at->ask_source();
    return at->status_json();
  };
  handlers.trace_json = worker->source_.trace;
  handlers.title = "Millrace worker " + std::to_string(worker->identity_.worker);
  auto port = monitoring::HttpPort::start(address, flag, std::move(handlers), std::move(protection));
  if (!port) return std::unexpected(port.error());
  worker->port_ = std::move(*port);
  return worker;
}

WorkerPort::WorkerPort(Identity identity, Source source)
    : identity_(std::move(identity)), source_(std::move(source)), export_(metrics_, identity_.job) {}

void WorkerPort::ask_source() {
  if (!source_.stats) return;
  const std::lock_guard lock(asking_);  // so that no answer counts sums that are older than another's
  update(source_.stats());
}

std::string WorkerPort::status_json() {
  // Not in Stats: time that a program needs for a display alone.
  const auto phases = source_.trace ? source_.trace("phases") : Result<std::string>("{}");
  const std::lock_guard lock(mutex_);
  if (!phases) return status_;  // before the session, or after it
  auto status = nlohmann::json::parse(status_);
  status.update(nlohmann::json::parse(*phases));
  return status.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void WorkerPort::update(const Stats& stats) {
  std::string status = status_of(stats);
  const std::lock_guard lock(mutex_);
  export_.update(stats);
  status_ = std::move(status);
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
  constexpr size_t kListedMax = 64;
  for (const TensorStats& tensor : stats.tensors) {
    if (tensor.codec_choice.empty() || status["codecs_up"].size() >= kListedMax) continue;
    status["codecs_up"].push_back({{"tensor", tensor.name}, {"codec", tensor.codec_choice}});
  }
  return status.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);  // names may be any bytes
}

}  // namespace millrace::worker
