#pragma once

#include <compare>
#include <cstddef>
#include <functional>
#include <string>

namespace millrace::protocol {

/// Names one connection that another process opened to this one.
///
/// The carrier of the messages makes it (the transport: the routing identity of a ZeroMQ connection; the simulator: any
/// bytes of its own). The carrier gets it back with the messages to be sent there. Opaque: equal means the same
/// connection, and nothing else may be read from it. It does not identify the peer: Hello does.
struct PeerId {
  std::string bytes;
  auto operator<=>(const PeerId&) const = default;
};

}  // namespace millrace::protocol

template <>
struct std::hash<millrace::protocol::PeerId> {
  size_t operator()(const millrace::protocol::PeerId& peer) const noexcept {
    return std::hash<std::string>()(peer.bytes);
  }
};
