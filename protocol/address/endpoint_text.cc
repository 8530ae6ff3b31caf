#include "protocol/address/endpoint_text.h"

#include <arpa/inet.h>

#include <algorithm>

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

Result<Endpoint> parse_endpoint(std::string_view text, PortZero port_zero) {
  constexpr std::string_view kForm = "a number and a port, as 192.0.2.1:7700 or [2001:db8::1]:7700";
  const auto parsed = split_host_port(text, port_zero);
  if (!parsed) return std::unexpected(not_an_address(text, kForm, parsed.error()));
  Endpoint endpoint{{}, parsed->port};
  if (inet_pton(AF_INET6, parsed->host.c_str(), endpoint.address.data()) == 1) return endpoint;
  Ipv4Address ip;
  if (inet_pton(AF_INET, parsed->host.c_str(), ip.data()) != 1)
    return std::unexpected(not_an_address(text, kForm, "the host is no number"));
  endpoint.address = mapped_address(ip);
  return endpoint;
}

std::vector<Endpoint> endpoints_of(const std::vector<HostAddress>& addresses, uint16_t port) {
  std::vector<Endpoint> endpoints;
  for (const bool ipv6 : {false, true}) {
    for (const HostAddress& each : addresses) {
      if (each.is_ipv6() == ipv6) endpoints.push_back({each.bytes, port});
    }
  }
  return endpoints;
}

Result<std::vector<Endpoint>> resolve_endpoints(std::string_view text, const HostResolver& resolver) {
  const Result<HostPort> at = parse_host_port(text, PortZero::kRefused);
  if (!at) return std::unexpected(at.error());
  const auto found = resolver(at->host);
  if (!found) return std::unexpected(found.error());
  return endpoints_of(*found, at->port);
}

std::string endpoint_text(const Endpoint& endpoint) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (const std::optional<Ipv4Address> ip = ipv4_of(endpoint)) {
    inet_ntop(AF_INET, ip->data(), text.data(), text.size());
  } else {
    inet_ntop(AF_INET6, endpoint.address.data(), text.data(), text.size());
  }
  return host_port_text(text.data(), endpoint.port);
}

}  // namespace millrace::protocol
