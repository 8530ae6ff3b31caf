#pragma once

#include <array>
#include <cstdint>

#include "kernels/base/buffer.h"
#include "protocol/datagram/key.h"

namespace millrace::protocol {

/// The MAC of a session's datagrams, under a key of its own. This folder's own; others use DatagramKey.
class SessionMac {
 public:
  using Key = std::array<uint8_t, 32>;

  SessionMac();
  SessionMac(const SessionMac&) = delete;
  SessionMac& operator=(const SessionMac&) = delete;
  ~SessionMac();

  /// No allocation.
  void set_key(const Key& key);
  Mac of(ByteSpan bytes, uint64_t sequence) const;

 private:
  Key key_{};
};

}  // namespace millrace::protocol
