#pragma once

#include <sys/socket.h>

#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/descriptor.h"
#include "kernels/base/result.h"
#include "protocol/address/host_lookup.h"
#include "protocol/address/host_port.h"

/// Makes TCP sockets of the addresses of hosts, both families.
namespace millrace::protocol {

/// Holds an address in the form of the kernel.
struct SocketAddress {
  sockaddr_storage bytes{};
  socklen_t length = 0;
  int family() const { return bytes.ss_family; }
  const sockaddr* any() const { return std::bit_cast<const sockaddr*>(&bytes); }
};

SocketAddress socket_address(const HostAddress& host, uint16_t port);

/// Opens a TCP socket that does not block and that programs started by this one do not inherit. Without one errno says
/// why.
Descriptor open_stream(int family);

/// Returns the system's sentence for an error number.
std::string system_message(int error);

struct StreamListeners {
  std::vector<Descriptor> sockets;  ///< do not block
  uint16_t port = 0;
};

/// Listens on every address of the host that is this machine's; port 0: any port that is free on all of them.
///
/// backlog  connections that the kernel holds before accept().
/// Cost     a name: the system's resolver, which may take seconds.
/// Errors   conflict: in use. io: the name is not known, or none of its addresses is this machine's.
Result<StreamListeners> listen_on_host(const HostPort& address, const HostResolver& resolver = look_up_host,
                                       int backlog = 128);

}  // namespace millrace::protocol
