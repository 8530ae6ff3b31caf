#include "worker/training/peers/peer_port.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "kernels/base/version.h"
#include "monitoring/trace/trace_answer.h"
#include "protocol/address/host_port.h"
#include "worker/program/json_text.h"

namespace millrace::training {
namespace {

double peer_port_growth(uint64_t now, uint64_t before) { return static_cast<double>(now - before); }

}  // namespace

Result<std::string> http_address_of_rank(const std::string& address, uint32_t rank) {
  constexpr uint32_t kPortMax = 65'535;
  const auto first = protocol::parse_host_port(address);
  if (!first) return fail(first.error().code, "--http: " + first.error().message);
  if (first->port == 0) return address;
  if (first->port + rank > kPortMax) {
    return fail(ErrorCode::kInvalidArgument, "--http " + address + ": rank " + std::to_string(rank) +
                                                 " would listen on the port " + std::to_string(first->port + rank) +
                                                 ", and the last is 65535: give a smaller one");
  }
  return protocol::host_port_text(first->host, static_cast<uint16_t>(first->port + rank));
}

Result<std::unique_ptr<PeerPort>> PeerPort::start(Listen listen, Identity identity, Source source) {
  std::unique_ptr<PeerPort> peer(new PeerPort(std::move(identity), std::move(source)));
  peer->update({});
  monitoring::HttpHandlers handlers;
  handlers.metrics_text = [at = peer.get()] {
    at->ask_source();
    const std::lock_guard lock(at->mutex_);  // all of one update
    return at->metrics_.prometheus_text();
  };
  handlers.unhealthy = [at = peer.get()] {
    return at->source_.unhealthy ? at->source_.unhealthy() : std::optional<std::string>();
  };
  handlers.status_json = [at = peer.get()] {
    at->ask_source();
    const std::lock_guard lock(at->mutex_);
    return at->status_;
  };
  if (peer->source_.spans != nullptr) {
    handlers.trace_json = [at = peer.get()](std::string_view query) {
      const Identity& rank = at->identity_;
      return monitoring::answer_trace(*at->source_.spans, query,
                                      {.kind = "rank", .job = rank.job, .worker = rank.rank});
    };
  }
  handlers.title = "Millrace rank " + std::to_string(peer->identity_.rank);
  auto port =
      monitoring::HttpPort::start(listen.address, listen.flag, std::move(handlers), std::move(listen.protection));
  if (!port) return std::unexpected(port.error());
  peer->port_ = std::move(*port);
  return peer;
}

PeerPort::PeerPort(Identity identity, Source source)
    : identity_(std::move(identity)),
      source_(std::move(source)),
      exported_(metrics_),
      step_seconds_(exported_.step_seconds.with({identity_.job})) {
  monitoring::begin_series(metrics_, monitoring::peer_metric_infos(), identity_.job);
  exported_.ranks.with({identity_.job}).set(identity_.ranks);
  if (identity_.path == ExchangePath::kServers) session_.emplace(metrics_, identity_.job);
}

void PeerPort::ask_source() {
  if (!source_.progress) return;
  const std::lock_guard lock(asking_);  // so that no answer counts sums that are older than another's
  update(source_.progress());
}

void PeerPort::update(const PeerProgress& progress) {
  std::string status = status_of(progress);
  const std::lock_guard lock(mutex_);
  count(progress);
  status_ = std::move(status);
}

void PeerPort::count(const PeerProgress& progress) {
  const std::string& job = identity_.job;
  const OptimizerCounts& now = progress.counts;
  const OptimizerCounts& before = shown_.counts;
  // Over servers the entries that an update omits leave the count again: a counter of Prometheus must not fall.
  const uint64_t entries = std::max(now.entries, before.entries);
  exported_.network_bytes.with({job, "out"})
      .increment(peer_port_growth(progress.traffic.bytes_sent, shown_.traffic.bytes_sent));
  exported_.network_bytes.with({job, "in"})
      .increment(peer_port_growth(progress.traffic.bytes_received, shown_.traffic.bytes_received));
  exported_.messages_unexpected.with({job}).increment(
      peer_port_growth(progress.traffic.messages_unexpected, shown_.traffic.messages_unexpected));
  exported_.steps.with({job}).increment(peer_port_growth(progress.steps, shown_.steps));
  exported_.dense_bytes.with({job}).increment(peer_port_growth(progress.dense_bytes, shown_.dense_bytes));
  exported_.compute_seconds.with({job}).increment(now.compute_s - before.compute_s);
  exported_.wait_seconds.with({job}).increment(now.waiting_s - before.waiting_s);
  exported_.contribution_entries.with({job}).increment(peer_port_growth(entries, before.entries));
  exported_.update_entries.with({job}).increment(peer_port_growth(now.sum_entries, before.sum_entries));
  exported_.residual_norm.with({job}).set(now.residual_norm);
  if (session_ && now.session) session_->update(*now.session);
  shown_ = progress;
  shown_.counts.entries = entries;
}

std::string PeerPort::status_of(const PeerProgress& progress) const {
  const OptimizerCounts& counts = progress.counts;
  return program::json_text({{"job", identity_.job},
                             {"rank", identity_.rank},
                             {"ranks", identity_.ranks},
                             {"path", path_name(identity_.path)},
                             {"software", software_name()},
                             {"steps", progress.steps},
                             {"sent_bytes", progress.traffic.bytes_sent + counts.bytes_sent},
                             {"received_bytes", progress.traffic.bytes_received + counts.bytes_received},
                             {"dense_bytes", progress.dense_bytes},
                             {"entries_sent", counts.entries},
                             {"entries_received", counts.sum_entries},
                             {"residual_norm", counts.residual_norm},
                             {"messages_unexpected", progress.traffic.messages_unexpected},
                             {"computing_seconds", counts.compute_s},
                             {"waiting_seconds", counts.waiting_s}});
}

}  // namespace millrace::training
