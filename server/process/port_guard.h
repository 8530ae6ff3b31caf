#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "kernels/base/clock.h"
#include "kernels/base/result.h"
#include "protocol/transport/key_gate.h"
#include "protocol/transport/transport.h"
#include "server/access/access.h"
#include "server/connections/connection_watch.h"
#include "server/connections/descriptor_room.h"
#include "server/process/metrics_export.h"
#include "server/process/options.h"
#include "server/process/process_log.h"

namespace millrace::server {

/// Returns the address for other processes, where the port is `bound`. Errors  invalid_argument: it is every address of
/// the machine, or --listen has a name of loopback alone, and --advertise names no other.
Result<std::string> advertised_address(const Options& options, const std::string& bound);

/// Returns the limits and keys of the message plane.
protocol::TransportOptions transport_options(const Options& options, std::optional<protocol::TransportKeys> keys);

/// Keeps descriptors and memory from the connections of a listener: accepts no surplus ones, ends guilty ones, and logs
/// and counts both. The audit log has the ended ones.
///
/// Threads  one at a time (the loop's).
class PortGuard {
 public:
  /// The references outlive it. port: of the listener.
  PortGuard(const Options& options, uint16_t port, ProcessLog& log, MetricsExport& metrics, Access& access);

  /// Divides the process's descriptors; called again when the number of shards is known.
  /// Errors  limit_exceeded: there are too few to serve one worker.
  Status share_descriptors(uint32_t shards);
  Status judge_worker(TimeNs now) { return room_->judge_worker(now); }
  /// Answers the questions whether keys may connect, and counts the refused ones.
  void answer(protocol::KeyGate& gate);
  /// Notes a message that the loop has taken. True: it is a Hello.
  bool on_message(const protocol::Received& received, TimeNs now);
  /// Ends the message's connection later, if it must end. Returns whether its refusal is to be sent: a flood gets one.
  bool on_intake(const protocol::PeerId& from, const Access::Intake& intake, TimeNs now);
  ConnectionWatch& connections() { return connections_; }
  /// Ends connections, if it is time. As ConnectionWatch::look().
  void look(ConnectionWatch::Inbox inbox, const ConnectionWatch::HasSession& has_session, TimeNs now);
  /// Reports, at intervals, bytes of messages that have not ended. As ConnectionWatch::report_arriving().
  void report_arriving(const std::function<void(const protocol::PeerId&, uint64_t bytes)>& report, TimeNs now);
  /// Reports the connections that were closed as they came.
  void report_surplus(TimeNs now);

 private:
  const Options& options_;
  ProcessLog& log_;
  MetricsExport& metrics_;
  Access& access_;
  ConnectionWatch connections_;
  std::optional<DescriptorRoom> room_;
  TimeNs say_closed_at_ = 0;
  TimeNs report_arriving_at_ = 0;
};

}  // namespace millrace::server
