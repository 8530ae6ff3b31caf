#pragma once

#include <memory>
#include <string>

#include "protocol/transport/transport.h"

namespace millrace::protocol {

/// Starts an attempt to connect to a process that has one of two addresses, which the owner tries in turn. Each address
/// keeps its connection between the attempts. So an attempt takes the next address of a name and continues its lookup.
///
/// poller   has `present`, and not `other`.
/// address  of this attempt.
/// present  of the attempt before, or empty; then of this one. Empty after an error: none could be made.
/// other    of the other address, or empty. A connection that reached a process is dropped: that process must see the
///          end.
/// Errors   as Connection::connect().
Status connect_one_of_two(TransportContext& context, Poller& poller, const std::string& address,
                          std::unique_ptr<Connection>& present, std::unique_ptr<Connection>& other);

}  // namespace millrace::protocol
