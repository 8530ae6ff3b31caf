#include "kernels/base/host_port.h"

#include "kernels/base/words.h"

namespace millrace {

std::optional<HostPort> split_host_port(std::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  const std::optional<uint16_t> port = number_from_text<uint16_t>(text.substr(colon + 1));
  std::string_view host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find_first_of(":[]") != std::string_view::npos) {
    return std::nullopt;
  }
  if (!port || host.empty() || host.find_first_of(" \t\r\n\v\f/") != std::string_view::npos) return std::nullopt;
  return HostPort{std::string(host), *port};
}

std::string host_port_text(const HostPort& address) {
  const bool is_ipv6 = address.host.find(':') != std::string::npos;
  return (is_ipv6 ? "[" : "") + address.host + (is_ipv6 ? "]:" : ":") + std::to_string(address.port);
}

}  // namespace millrace
