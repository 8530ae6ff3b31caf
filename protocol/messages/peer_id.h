#pragma once

#include <compare>
#include <cstddef>
#include <functional>
#include <string>

namespace millrace::protocol {

/// Names one connection that others opened to this process. Whoever carries the messages makes it (the transport: the
/// routing identity of a ZeroMQ connection; the simulator: any bytes of its own) and gets it back with what is to be
/// sent there. Opaque: equal means the same connection, nothing else may be read from it. Says nothing about who is
/// there: that is what Hello is for.
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
