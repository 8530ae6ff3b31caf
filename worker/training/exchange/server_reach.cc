#include "worker/training/exchange/server_reach.h"

#include <poll.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/clock.h"
#include "monitoring/http/http_sockets.h"
#include "protocol/address/host_lookup.h"
#include "protocol/address/host_port.h"

namespace millrace::training {
namespace {

constexpr int kConnections = 3;
constexpr int kAttemptMsMax = 1'000;
constexpr int kBetweenAttemptsMs = 50;

/// Seconds in which one connection is accepted, the fastest of several.
Result<double> connection_s(const protocol::HostPort& address) {
  const auto hosts = protocol::look_up_host(address.host);
  if (!hosts) return std::unexpected(hosts.error());
  const auto looked_up = [&hosts](const std::string&) { return hosts; };  // so that the measured time has no lookup in
                                                                          // it
  TimeNs best = std::numeric_limits<TimeNs>::max();
  for (int at = 0; at < kConnections; ++at) {
    const TimeNs begin = monotonic_now_ns();
    const auto socket = monitoring::connect_to_host(address, kAttemptMsMax, looked_up);
    if (!socket) return std::unexpected(socket.error());
    best = std::min(best, monotonic_now_ns() - begin);
  }
  return static_cast<double>(best) / static_cast<double>(kNsPerS);
}

}  // namespace

Result<double> latency_to_servers(const std::vector<std::string>& servers, std::chrono::milliseconds timeout,
                                  const std::function<bool()>& goes_on) {
  const TimeNs deadline = monotonic_now_ns() + static_cast<TimeNs>(timeout.count()) * kNsPerMs;
  double slowest_s = 0;
  for (size_t shard = 0; shard < servers.size(); ++shard) {
    const auto address = protocol::parse_tcp_address(servers[shard]);
    MILLRACE_CHECK(address.has_value(), servers[shard]);
    Result<double> took = connection_s(*address);
    while (!took && monotonic_now_ns() < deadline && goes_on()) {
      ::poll(nullptr, 0, kBetweenAttemptsMs);
      took = connection_s(*address);
    }
    if (!took) {
      return fail(ErrorCode::kUnavailable, "shard " + std::to_string(shard) + " at " + servers[shard] +
                                               " could not be reached: " + took.error().message +
                                               "; is the server running there?");
    }
    slowest_s = std::max(slowest_s, *took / 2);
    if (!goes_on()) break;
  }
  return slowest_s;
}

}  // namespace millrace::training
