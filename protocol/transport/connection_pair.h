#pragma once

#include <memory>
#include <string>

#include "protocol/transport/transport.h"

namespace millrace::protocol {

/// Starts an attempt to connect to a process that has one of two addresses, which the owner tries in turn. The other
/// address has no socket open meanwhile: a process that accepted its connection sees the end. An attempt takes the
/// next address of a name, and continues a lookup that an earlier attempt began.
///
/// poller   has `present`, and not `other`.
/// address  of this attempt.
/// present  of the attempt before, or empty; then of this one. Empty after an error at another address than before.
/// other    of the other address, closed; or empty.
/// Errors   as Connection::connect().
Status connect_one_of_two(TransportContext& context, Poller& poller, const std::string& address,
                          std::unique_ptr<Connection>& present, std::unique_ptr<Connection>& other);

}  // namespace millrace::protocol
