#pragma once

#include <cstdint>
#include <optional>

namespace millrace::protocol {

/// Counts the bytes of one TCP connection, as the system does: those of a message that has not ended, too. Another
/// thread may close the socket at any time: its number may then be another one's, and the count ends.
class TcpCounter {
 public:
  struct Counts {
    uint64_t acknowledged = 0;  ///< sent, and taken by the other end's system
    uint64_t received = 0;
  };

  TcpCounter() = default;  ///< of no socket
  explicit TcpCounter(int descriptor);
  /// Returns the bytes since the connection was made. Empty: the socket is closed, or the system does not count.
  std::optional<Counts> read() const;

 private:
  int descriptor_ = -1;
  uint64_t cookie_ = 0;  ///< the system's number of the socket, which no other one gets
};

}  // namespace millrace::protocol
