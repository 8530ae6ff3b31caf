#include "protocol/transport/connection_pair.h"

#include <utility>

namespace millrace::protocol {

Status connect_one_of_two(TransportContext& context, Poller& poller, const std::string& address,
                          std::unique_ptr<Connection>& present, std::unique_ptr<Connection>& other) {
  if (present && present->address() != address) {
    poller.remove(*present);
    if (present->state() == ConnectionState::kConnected) present.reset();
    std::swap(present, other);
    if (present && present->address() != address) present.reset();
    if (present) poller.add(*present);
  }
  if (present) return present->reconnect();
  auto made = Connection::connect(context, address);
  if (!made) return std::unexpected(made.error());
  present = std::move(*made);
  poller.add(*present);
  return {};
}

}  // namespace millrace::protocol
