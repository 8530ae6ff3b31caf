#include "protocol/datagram/endpoint_text.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "kernels/base/words.h"

namespace millrace::protocol {
namespace {

constexpr const std::array<uint8_t, 12>& kMapped = Endpoint::kIpv4Prefix;

}  // namespace

std::array<uint8_t, 16> mapped_address(const Ipv4Address& ip) {
  std::array<uint8_t, 16> address;
  std::ranges::copy(kMapped, address.begin());
  std::ranges::copy(ip, address.begin() + kMapped.size());
  return address;
}

std::optional<Ipv4Address> ipv4_of(const Endpoint& endpoint) {
  if (!endpoint.is_ipv4()) return std::nullopt;
  Ipv4Address ip;
  std::copy_n(endpoint.address.begin() + kMapped.size(), ip.size(), ip.begin());
  return ip;
}

Result<Endpoint> parse_endpoint(std::string_view text) {
  const auto refuse = [&] {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("'{}' is not an address: give a number and a port, as 192.0.2.1:7700 or [2001:db8::1]:7700", text));
  };
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return refuse();
  const std::optional<uint16_t> port = number_from_text<uint16_t>(text.substr(colon + 1));
  if (!port) return refuse();
  const std::string host(text.substr(0, colon));
  Endpoint endpoint{{}, *port};
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    const std::string inside = host.substr(1, host.size() - 2);
    if (inet_pton(AF_INET6, inside.c_str(), endpoint.address.data()) != 1) return refuse();
    return endpoint;
  }
  Ipv4Address ip;
  if (inet_pton(AF_INET, host.c_str(), ip.data()) != 1) return refuse();
  endpoint.address = mapped_address(ip);
  return endpoint;
}

std::string endpoint_text(const Endpoint& endpoint) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (const std::optional<Ipv4Address> ip = ipv4_of(endpoint)) {
    inet_ntop(AF_INET, ip->data(), text.data(), text.size());
    return fmt::format("{}:{}", text.data(), endpoint.port);
  }
  inet_ntop(AF_INET6, endpoint.address.data(), text.data(), text.size());
  return fmt::format("[{}]:{}", text.data(), endpoint.port);
}

}  // namespace millrace::protocol
