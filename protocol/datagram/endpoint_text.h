#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/base/result.h"
#include "protocol/datagram/packet_sink.h"

namespace millrace::protocol {

using Ipv4Address = std::array<uint8_t, 4>;

/// Reads "192.0.2.1:7700" or "[2001:db8::1]:7700"; names are not looked up.
/// Errors   invalid_argument, with the expected form.
Result<Endpoint> parse_endpoint(std::string_view text);

/// Returns the text that parse_endpoint() reads as this endpoint.
std::string endpoint_text(const Endpoint& endpoint);

/// Converts an IPv4 address to the 16 bytes of an endpoint, and back; ipv4_of() is empty for an IPv6 endpoint.
std::array<uint8_t, 16> mapped_address(const Ipv4Address& ip);
std::optional<Ipv4Address> ipv4_of(const Endpoint& endpoint);

}  // namespace millrace::protocol
