#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "kernels/base/result.h"
#include "protocol/datagram/packet_sink.h"
#include "switch_agg/ethernet_frames.h"

namespace millrace::switch_agg {

/// Reads "192.0.2.1:7700" or "[2001:db8::1]:7700"; names are not looked up.
/// Errors   invalid_argument, with what is expected.
Result<protocol::Endpoint> parse_endpoint(std::string_view text);

/// The reverse.
std::string endpoint_text(const protocol::Endpoint& endpoint);

/// An IPv4 address in an endpoint's 16 bytes, and out of them where it is one.
std::array<uint8_t, 16> mapped_address(const Ipv4Address& ip);
std::optional<Ipv4Address> ipv4_of(const protocol::Endpoint& endpoint);

}  // namespace millrace::switch_agg
