#pragma once

#include <compare>
#include <cstddef>
#include <functional>
#include <string>
#include <tuple>

#include "protocol/keys/key.h"

namespace millrace::protocol {

/// Names one connection that another process opened to this one, and the key that the other process has proved.
///
/// The carrier of the messages makes it (the transport: the routing identity of a ZeroMQ connection; the simulator: any
/// bytes of its own). The carrier gets it back with the messages to be sent there. Opaque: equal means the same
/// connection of the same key, and nothing else may be read from `bytes`. A peer can choose its routing identity: one
/// that takes another's, once that connection is gone, is still another PeerId where their keys differ.
struct PeerId {
  std::string bytes;
  PublicKey key = {};        ///< none where the carrier does not authenticate
  std::string address = {};  ///< of the other end, for logs; not compared
  bool operator==(const PeerId& other) const { return bytes == other.bytes && key == other.key; }
  auto operator<=>(const PeerId& other) const { return std::tie(bytes, key) <=> std::tie(other.bytes, other.key); }
};

}  // namespace millrace::protocol

template <>
struct std::hash<millrace::protocol::PeerId> {
  size_t operator()(const millrace::protocol::PeerId& peer) const noexcept {
    return std::hash<std::string>()(peer.bytes);
  }
};
