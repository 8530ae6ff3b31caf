#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace millrace::protocol {

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
