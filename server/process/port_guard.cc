#include "server/process/port_guard.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>
#include <variant>

#include "monitoring/open_files.h"
#include "protocol/address/host_lookup.h"
#include "protocol/address/host_port.h"
#include "server/connections/accept_limit.h"
#include "server/connections/connection_ledger.h"

namespace millrace::server {
namespace {

/// Interval between log lines about connections that were closed for lack of a descriptor.
constexpr TimeNs kSayClosedEvery = 60 * kNsPerS;
/// Messages of one connection that wait for the loop: as many large ones fill memory. ZeroMQ then reads no more of it.
constexpr uint32_t kReceivedMessagesMax = 1'024;
/// Bytes that wait for a worker that reads slowly, or one message of the largest. It asks for missing messages again.
constexpr uint64_t kQueueBytesMin = 256 << 20;
/// Of the shard's memory, the share that connections without a session may take beside it.
constexpr uint64_t kStrangersPart = 4;
/// A look at intervals ends the largest of them until half is free, so that they do not keep others out.
constexpr uint64_t kStrangersKeptPart = 2 * kStrangersPart;
/// Bytes that CURVE adds to a frame, and that ZeroMQ counts in its limit.
constexpr uint64_t kCurveBytes = 64;
/// The largest Hello, and the buffers that ZeroMQ reads it into.
constexpr uint64_t kStrangerBytesMax = protocol::FrameLimits().envelope_bytes_max + (1 << 20);

}  // namespace

Result<std::string> advertised_address(const Options& options, const std::string& bound) {
  if (!options.advertise.empty()) return options.advertise;
  const Result<protocol::HostPort> wanted = protocol::parse_tcp_address(options.listen);
  if (const std::string number = wanted ? protocol::loopback_of_name(wanted->host) : ""; !number.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--listen {}: {} is {} here, which no other host reaches; remove the name {} from its line "
                            "of /etc/hosts, or listen on 0.0.0.0 and give --advertise {}:PORT",
                            protocol::without_tcp(options.listen), wanted->host, number, wanted->host, wanted->host));
  }
  const Result<protocol::HostPort> at = protocol::parse_tcp_address(bound);
  if (!at || !protocol::is_every_host(at->host)) return bound;
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("--listen {} accepts on every address; say with --advertise HOST:PORT which one workers and "
                          "other shards are to use",
                          options.listen));
}

protocol::TransportOptions transport_options(const Options& options, std::optional<protocol::TransportKeys> keys) {
  protocol::TransportOptions transport;
  transport.keys = std::move(keys);
  transport.limits.payload_bytes_max = options.limits.received_bytes_max() + kCurveBytes;
  transport.received_messages_max = kReceivedMessagesMax;
  transport.queue_bytes_max = std::max<uint64_t>(kQueueBytesMin, options.limits.message_bytes_max);
  transport.queue_total_bytes_max = options.limits.shard_memory_bytes_max;
  return transport;
}

PortGuard::PortGuard(const Options& options, uint16_t port, ProcessLog& log, MetricsExport& metrics, Access& access)
    : options_(options),
      log_(log),
      metrics_(metrics),
      access_(access),
      connections_(port, options.limits.received_bytes_max() + protocol::FrameLimits().envelope_bytes_max,
                   kStrangerBytesMax,
                   std::max(options.limits.shard_memory_bytes_max / kStrangersKeptPart, kStrangerBytesMax)) {
  limit_strangers(
      {.port = port,
       .each_max = kStrangerBytesMax,
       .total_max = std::max(options.limits.shard_memory_bytes_max / kStrangersPart, 2 * kStrangerBytesMax)});
}

Status PortGuard::share_descriptors(uint32_t shards) {
  room_.emplace(DescriptorRoom::Options{.limit = monitoring::open_file_limit(),
                                        .shards = shards,
                                        .count = monitoring::open_file_count,
                                        .accepted = accepted_connections});
  if (const Status enough = room_->judge_start(); !enough) return enough;
  // Beyond the counted ones a connection could not be ended.
  const uint64_t below = std::min<uint64_t>(room_->accept_below(), kCountedDescriptors);
  set_accept_limit(below);
  connections_.set_room(below);
  if (const std::string warning = room_->warning(options_.limits); !warning.empty())
    log_.write(Severity::kWarning, warning, monotonic_now_ns());
  return {};
}

void PortGuard::answer(protocol::KeyGate& gate) {
  gate.answer([this](const protocol::KeyGate::Caller& caller) {
    const bool admitted = access_.admits(caller, monotonic_now_ns());
    if (!admitted) metrics_.record({Metric::kKeysRefused, {}, {}, 1});
    return admitted;
  });
}

bool PortGuard::on_message(const protocol::Received& received, TimeNs now) {
  const bool is_hello = received.message && (std::holds_alternative<protocol::Hello>(received.message->body) ||
                                             std::holds_alternative<protocol::ShardHello>(received.message->body));
  MessageSize size{.bytes = received.bytes, .payload_bytes = {}};
  if (received.message) size.payload_bytes = received.message->payload.bytes.size();
  connections_.on_message(received.peer, received.descriptor,
                          is_hello ? ConnectionWatch::Spoken::kHello : ConnectionWatch::Spoken::kOther, now, size);
  return is_hello;
}

bool PortGuard::on_intake(const protocol::PeerId& from, const Access::Intake& intake, TimeNs now) {
  if (intake.ends_because.empty()) return true;
  const bool is_first = connections_.end_later(from, intake.ends_because, now + intake.ends_after);
  return is_first || intake.ends_because != Access::kOverRate;
}

void PortGuard::look(ConnectionWatch::Inbox inbox, const ConnectionWatch::HasSession& has_session, TimeNs now) {
  std::map<std::string_view, uint64_t> closed;
  for (const ConnectionWatch::Ended& ended : connections_.look(inbox, has_session, now)) {
    closed[ended.why] += ended.connections;
    metrics_.record({Metric::kDropped, {}, ended.why, static_cast<double>(ended.connections)});
    access_.record({.what = AuditEvent::What::kClose, .by = ended.by, .code = std::string(ended.why)}, now);
  }
  for (const ConnectionWatch::Unfinished& left : connections_.take_unfinished())
    access_.charge_unfinished(left.by, left.bytes, now);
  for (const auto& [why, count] : closed) {
    const std::string what = count == 1 ? "a connection" : fmt::format("{} connections", count);
    log_.write(Severity::kWarning, fmt::format("closed {}: {}", what, why), now);
  }
}

void PortGuard::report_arriving(const std::function<void(const protocol::PeerId&, uint64_t bytes)>& report,
                                TimeNs now) {
  if (now < report_arriving_at_) return;
  report_arriving_at_ = now + ConnectionWatch::kLookEvery;
  connections_.report_arriving(report);
}

void PortGuard::report_surplus(TimeNs now) {
  const uint64_t closed = take_over_accept_limit();
  if (closed == 0) return;
  metrics_.record({Metric::kDropped, {}, "no_descriptor", static_cast<double>(closed)});
  if (now < say_closed_at_) return;
  say_closed_at_ = now + kSayClosedEvery;
  log_.write(
      Severity::kError,
      fmt::format("{} connections were closed as they came: this process may open {} files, and no more of them are "
                  "for connections; {}",
                  closed, monitoring::open_file_limit(), monitoring::kRaiseOpenFiles),
      now);
}

}  // namespace millrace::server
