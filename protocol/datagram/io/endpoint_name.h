#pragma once

#include <string_view>
#include <vector>

#include "kernels/base/result.h"
#include "protocol/address/host_lookup.h"
#include "protocol/datagram/packet_sink.h"

namespace millrace::protocol {

/// Returns every endpoint of "HOST:PORT", IPv4 first: "192.0.2.1:7700", "[2001:db8::1]:7700", "switch.example:7700".
///
/// Cost     a number: nothing. A name: `resolver`, which may take seconds.
/// Errors   invalid_argument: no such form. unavailable: the name is not known, with the resolver's words.
/// Threads  any.
Result<std::vector<Endpoint>> resolve_endpoints(std::string_view text, const HostResolver& resolver = look_up_host);

/// Does the same for a numeric address alone. Errors  invalid_argument: no such form, or a name.
Result<Endpoint> numeric_endpoint(std::string_view text);

/// Returns the endpoints of a host's addresses, IPv4 first.
std::vector<Endpoint> endpoints_of(const std::vector<HostAddress>& addresses, uint16_t port);

}  // namespace millrace::protocol
