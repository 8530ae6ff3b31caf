#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/host_port.h"

namespace millrace::protocol {

/// Splits "tcp://HOST:PORT" or "tcp://[HOST]:PORT"; nothing where the text is neither.
std::optional<HostPort> split_tcp_address(std::string_view text);
/// Returns "tcp://192.0.2.1:7600", "tcp://[2001:db8::1]:7600".
std::string tcp_address(std::string_view host, uint16_t port);

/// Chooses the address of a name for each attempt to connect: each in turn, beginning with the one that worked last.
/// Pure.
class AddressRotation {
 public:
  /// Takes the addresses of a lookup.
  void take(std::vector<std::string> addresses);
  /// Returns the next address; nothing after the last: the name has to be looked up again.
  std::optional<std::string> next();
  /// Records that the address of the last next() led to the peer.
  void worked() { worked_ = last_; }
  size_t count() const { return addresses_.size(); }

 private:
  std::vector<std::string> addresses_;
  size_t next_ = 0;
  std::string last_;
  std::string worked_;
};

}  // namespace millrace::protocol
