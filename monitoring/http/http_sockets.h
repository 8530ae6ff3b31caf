#pragma once

#include <optional>

#include "kernels/base/clock.h"
#include "kernels/base/descriptor.h"
#include "kernels/base/result.h"
#include "protocol/address/host_lookup.h"
#include "protocol/address/host_port.h"

/// The sockets of HTTP clients: every address of a host, both families. protocol/address/stream_sockets.h listens.
namespace millrace::monitoring {

/// Connects to the first address of the host that accepts, in the resolver's order. Each has its share of the time.
///
/// Cost    a name: the system's resolver besides, which may take seconds.
/// Errors  unavailable: the name is not known, or none accepts within timeout_ms.
Result<Descriptor> connect_to_host(const protocol::HostPort& address, int timeout_ms,
                                   const protocol::HostResolver& resolver = protocol::look_up_host);

/// Returns the round trip of the handshake of a TCP connection that was just made. Nothing: the kernel has not measured
/// it.
std::optional<TimeNs> handshake_round_trip(const Descriptor& stream);

}  // namespace millrace::monitoring
