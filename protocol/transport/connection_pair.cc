#include "protocol/transport/connection_pair.h"

#include <utility>

namespace millrace::protocol {

Status connect_one_of_two(TransportContext& context, Poller& poller, const std::string& address,
                          std::unique_ptr<Connection>& present, std::unique_ptr<Connection>& other) {
  if (present && present->address() == address) return present->reconnect();
  if (present) {
    poller.remove(*present);
    present->close();
    std::swap(present, other);
    if (present && present->address() != address) present.reset();
  }
  if (present) {
    if (Status opened = present->reconnect(); !opened) {
      present.reset();
      return opened;
    }
  } else {
    auto made = Connection::connect(context, address);
    if (!made) return std::unexpected(made.error());
    present = std::move(*made);
  }
  poller.add(*present);
  return {};
}

}  // namespace millrace::protocol
