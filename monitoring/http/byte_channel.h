#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "kernels/base/descriptor.h"

namespace millrace::monitoring {

/// Moves the bytes of one connection over its non-blocking socket: as they are, or by TLS (secure/tls.h).
class ByteChannel {
 public:
  enum class Outcome : uint8_t {
    kMoved,       ///< `bytes` of them, at least 1
    kWaitToRead,  ///< nothing yet: call again once the socket is readable
    kWaitToWrite,
    kEnd,     ///< the peer closed its end
    kBroken,  ///< problem() has the reason
  };
  struct Moved {
    Outcome outcome = Outcome::kMoved;
    size_t bytes = 0;
  };

  virtual ~ByteChannel() = default;
  /// Reads. With room for 16 KiB no byte that the socket has delivered stays in the channel.
  virtual Moved read(std::span<char> into) = 0;
  /// Writes. After kWaitToRead or kWaitToWrite the next call has the same bytes, at any address.
  virtual Moved write(std::string_view bytes) = 0;
  /// Closes this end; the peer's bytes can still be read.
  virtual void end_writing() = 0;
  /// Returns whether the peer can take bytes: the handshake, if any, is over.
  virtual bool is_open() const = 0;
  /// Returns why the channel is broken, as far as it knows; empty: the socket failed.
  virtual std::string problem() const = 0;
};

/// Returns a channel without protection. REQUIRES: the socket outlives it.
std::unique_ptr<ByteChannel> open_plain_channel(const Descriptor& socket);

}  // namespace millrace::monitoring
