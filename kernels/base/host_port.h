#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace millrace {

struct HostPort {
  std::string host;  ///< a name, or a number without brackets
  uint16_t port = 0;
};

/// Splits "HOST:PORT" or "[HOST]:PORT"; nothing where the text is neither. An IPv6 number needs its brackets.
std::optional<HostPort> split_host_port(std::string_view text);

/// Returns "HOST:PORT", with brackets around an IPv6 number.
std::string host_port_text(const HostPort& address);

}  // namespace millrace
