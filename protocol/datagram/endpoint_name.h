#pragma once

#include <string_view>

#include "kernels/base/result.h"
#include "protocol/datagram/packet_sink.h"

namespace millrace::protocol {

/// Where "HOST:PORT" is: "192.0.2.1:7700", "[2001:db8::1]:7700", "switch.example:7700". Names are looked up, IPv4 first: that may
/// take seconds, numbers take no time.
///
/// Errors   invalid_argument: no such form. unavailable: the name is not known, with the resolver's word.
/// Threads  any.
Result<Endpoint> resolve_endpoint(std::string_view text);

}  // namespace millrace::protocol
