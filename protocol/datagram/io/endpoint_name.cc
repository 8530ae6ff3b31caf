#include "protocol/datagram/io/endpoint_name.h"

#include <algorithm>
#include <string>

#include "kernels/base/host_port.h"

namespace millrace::protocol {

std::vector<Endpoint> endpoints_of(const std::vector<HostAddress>& addresses, uint16_t port) {
  std::vector<Endpoint> endpoints;
  for (const bool ipv6 : {false, true}) {
    for (const HostAddress& each : addresses) {
      if (each.is_ipv6() == ipv6) endpoints.push_back({each.bytes, port});
    }
  }
  return endpoints;
}

Result<std::vector<Endpoint>> resolve_endpoints(std::string_view text, const HostResolver& resolver) {
  const std::optional<HostPort> at = split_host_port(text);
  if (!at || at->port == 0) {
    return fail(ErrorCode::kInvalidArgument,
                "'" + std::string(text) +
                    "' is not an address: give a host and a port, as 192.0.2.1:7700 or [2001:db8::1]:7700");
  }
  const auto found = resolver(at->host);
  if (!found) return std::unexpected(found.error());
  return endpoints_of(*found, at->port);
}

Result<Endpoint> numeric_endpoint(std::string_view text) {
  const std::optional<HostPort> at = split_host_port(text);
  if (at && !is_numeric_host(at->host)) {
    return fail(ErrorCode::kInvalidArgument, "'" + std::string(text) + "' is a name: its number is expected here");
  }
  const auto endpoints = resolve_endpoints(text);
  if (!endpoints) return std::unexpected(endpoints.error());
  return endpoints->front();
}

}  // namespace millrace::protocol
