#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/result.h"
#include "protocol/address/host_lookup.h"
#include "protocol/address/host_port.h"
#include "protocol/datagram/packet_sink.h"

namespace millrace::protocol {

using Ipv4Address = std::array<uint8_t, 4>;

/// Reads "192.0.2.1:7700" or "[2001:db8::1]:7700"; names are not looked up.
/// Errors   invalid_argument, as parse_host_port(); the host is a name.
Result<Endpoint> parse_endpoint(std::string_view text, PortZero port_zero = PortZero::kAllowed);

/// Returns every endpoint of "HOST:PORT", IPv4 first: "192.0.2.1:7700", "[2001:db8::1]:7700", "switch.example:7700".
///
/// Cost     a number: nothing. A name: `resolver`, which may take seconds.
/// Errors   invalid_argument: as parse_host_port(). unavailable: the name is not known, with the resolver's words.
/// Threads  any.
Result<std::vector<Endpoint>> resolve_endpoints(std::string_view text, const HostResolver& resolver = look_up_host);

/// Returns the endpoints of a host's addresses, IPv4 first.
std::vector<Endpoint> endpoints_of(const std::vector<HostAddress>& addresses, uint16_t port);

/// Returns the text that parse_endpoint() reads as this endpoint.
std::string endpoint_text(const Endpoint& endpoint);

/// Converts an IPv4 address to the 16 bytes of an endpoint, and back; ipv4_of() is empty for an IPv6 endpoint.
std::array<uint8_t, 16> mapped_address(const Ipv4Address& ip);
std::optional<Ipv4Address> ipv4_of(const Endpoint& endpoint);

}  // namespace millrace::protocol
