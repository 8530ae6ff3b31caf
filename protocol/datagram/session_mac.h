#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>

#include "kernels/base/buffer.h"
#include "protocol/datagram/key.h"

namespace millrace::protocol {

/// Computes the MAC of a session's datagrams, under a key of its own: AES-256-GMAC, with 4 bytes 0 and the sequence
/// number as the nonce. Internal to this folder; others use DatagramKey. CMake chooses the library that computes it
/// (session_mac_*.cc).
class SessionMac {
 public:
  using Key = std::array<uint8_t, 32>;

  SessionMac();
  SessionMac(const SessionMac&) = delete;
  SessionMac& operator=(const SessionMac&) = delete;
  ~SessionMac();

  /// Sets the key. No allocation.
  void set_key(const Key& key);
  Mac of(ByteSpan bytes, uint64_t sequence) const;
  /// Returns "libipsec-mb" or "OpenSSL".
  static std::string_view library();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace millrace::protocol
