#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "kernels/base/descriptor.h"
#include "kernels/base/result.h"
#include "protocol/address/host_lookup.h"
#include "protocol/address/host_port.h"

/// The sockets of HTTP: every address of a host, both families.
namespace millrace::monitoring {

struct HttpListeners {
  std::vector<Descriptor> sockets;  ///< do not block
  uint16_t port = 0;
};

/// Listens on every address of the host that is this machine's; port 0: any port that is free on all of them.
///
/// Cost    a name: the system's resolver, which may take seconds.
/// Errors  conflict: in use. io: the name is not known, or none of its addresses is this machine's.
Result<HttpListeners> listen_on_host(const protocol::HostPort& address,
                                     const protocol::HostResolver& resolver = protocol::look_up_host);

/// Connects to the first address of the host that accepts, in the resolver's order. Each has its share of the time.
///
/// Cost    a name: the system's resolver besides, which may take seconds.
/// Errors  unavailable: the name is not known, or none accepts within timeout_ms.
Result<Descriptor> connect_to_host(const protocol::HostPort& address, int timeout_ms,
                                   const protocol::HostResolver& resolver = protocol::look_up_host);

}  // namespace millrace::monitoring
