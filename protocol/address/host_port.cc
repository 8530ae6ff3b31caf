#include "protocol/address/host_port.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "kernels/base/plain_text.h"
#include "kernels/base/words.h"

namespace millrace::protocol {
namespace {

constexpr std::string_view kTcp = "tcp://";
constexpr std::string_view kHostPortForm = "HOST:PORT, as 127.0.0.1:9100 or [::1]:9100";
constexpr std::string_view kTcpForm = "tcp://HOST:PORT, as tcp://127.0.0.1:7600 or tcp://[::1]:7600";
constexpr std::string_view kServersForm = "HOST:PORT,HOST:PORT, as node1:7600,node2:7600";
constexpr size_t kHostBytesMax = 253;  // of a name of the DNS

/// Returns the number, which may have a scope ("fe80::1%eth0"). Empty: the host is no number of IPv6.
std::optional<in6_addr> ipv6_of_number(std::string_view host) {
  in6_addr ipv6{};
  if (::inet_pton(AF_INET6, std::string(host.substr(0, host.find('%'))).c_str(), &ipv6) != 1) return std::nullopt;
  return ipv6;
}

/// Returns the address of a number, in any spelling that getaddrinfo(3) takes for one. IPv4 is mapped to IPv6. Empty:
/// the host is a name.
std::optional<in6_addr> address_of_number(std::string_view host) {
  if (!is_plain_text(host) || host.contains(' ')) return std::nullopt;  // inet_aton() would end there
  if (const std::optional<in6_addr> number = ipv6_of_number(host)) return number;
  in_addr ipv4{};
  if (::inet_aton(std::string(host).c_str(), &ipv4) == 0) return std::nullopt;
  in6_addr ipv6{};
  ipv6.s6_addr[10] = ipv6.s6_addr[11] = 0xff;
  std::memcpy(&ipv6.s6_addr[12], &ipv4, sizeof ipv4);
  return ipv6;
}

/// Returns the fault of a host, brackets included; empty: none.
std::string_view fault_of_host(std::string_view host) {
  if (host.empty()) return "the host is missing";
  if (host.size() > kHostBytesMax) return "the host is longer than 253 bytes";
  if (!is_plain_text(host) || host.find_first_of(" /") != std::string_view::npos)
    return "the host has a space, a '/' or a control character";
  if (host.starts_with('[')) {
    if (!host.ends_with(']')) return "the bracket is not closed";
    const std::string_view inside = host.substr(1, host.size() - 2);
    const bool is_number = ipv6_of_number(inside).has_value() && inside.find_first_of("[]") == std::string_view::npos;
    return is_number ? "" : "the brackets hold no IPv6 number";
  }
  if (host.find_first_of("[]") != std::string_view::npos) return "a bracket is out of place";
  return host.find(':') == std::string_view::npos ? "" : "an IPv6 number needs brackets";
}

Result<HostPort> parse_as(std::string_view text, std::string_view address, std::string_view form, PortZero port_zero) {
  auto parsed = split_host_port(address, port_zero);
  if (!parsed) return std::unexpected(not_an_address(text, form, parsed.error()));
  return *std::move(parsed);
}

}  // namespace

std::expected<HostPort, std::string_view> split_host_port(std::string_view text, PortZero port_zero) {
  const size_t colon = text.rfind(':');
  const bool has_port = colon != std::string_view::npos && !text.ends_with(']');
  std::string_view host = text.substr(0, has_port ? colon : text.size());
  if (const std::string_view fault = fault_of_host(host); !fault.empty()) return std::unexpected(fault);
  if (!has_port) return std::unexpected("the port is missing");
  const std::optional<uint16_t> port = number_from_text<uint16_t>(text.substr(colon + 1));
  if (!port) return std::unexpected("the port is no number from 0 to 65535");
  if (*port == 0 && port_zero == PortZero::kRefused) return std::unexpected("port 0 cannot be reached");
  if (host.starts_with('[')) host = host.substr(1, host.size() - 2);
  return HostPort{std::string(host), *port};
}

Error not_an_address(std::string_view text, std::string_view form, std::string_view fault) {
  constexpr size_t kTextBytesMax = 100;
  std::string shown = plain_text_of(text, kTextBytesMax);
  if (text.size() > kTextBytesMax) shown += "…";
  return {ErrorCode::kInvalidArgument,
          "'" + shown + "' is not an address: give " + std::string(form) + "; " + std::string(fault)};
}

Result<HostPort> parse_host_port(std::string_view text, PortZero port_zero) {
  return parse_as(text, text, kHostPortForm, port_zero);
}

Result<HostPort> parse_tcp_address(std::string_view text, PortZero port_zero) {
  if (!text.starts_with(kTcp)) return std::unexpected(not_an_address(text, kTcpForm, "the tcp:// is missing"));
  return parse_as(text, without_tcp(text), kTcpForm, port_zero);
}

Result<std::vector<std::string>> parse_server_addresses(std::string_view text) {
  const std::vector<std::string_view> texts = split(text, ',');
  return parse_server_addresses(std::vector<std::string>(texts.begin(), texts.end()));
}

Result<std::vector<std::string>> parse_server_addresses(std::span<const std::string> texts) {
  std::vector<std::string> addresses;
  for (const std::string_view each : texts) {
    const Result<HostPort> parsed = parse_as(each, without_tcp(each), kServersForm, PortZero::kRefused);
    if (!parsed) return std::unexpected(parsed.error());
    std::string address = tcp_address(parsed->host, parsed->port);
    if (std::ranges::find(addresses, address) != addresses.end())
      return fail(ErrorCode::kInvalidArgument, address + " is given twice: each server has an address of its own");
    addresses.push_back(std::move(address));
  }
  return addresses;
}

std::string_view without_tcp(std::string_view address) {
  if (address.starts_with(kTcp)) address.remove_prefix(kTcp.size());
  return address;
}

std::string host_port_text(std::string_view host, uint16_t port) {
  const bool is_ipv6 = host.find(':') != std::string_view::npos;
  return (is_ipv6 ? "[" : "") + std::string(host) + (is_ipv6 ? "]:" : ":") + std::to_string(port);
}

std::string tcp_address(std::string_view host, uint16_t port) { return std::string(kTcp) + host_port_text(host, port); }

bool is_numeric_host(std::string_view host) { return address_of_number(host).has_value(); }

bool is_loopback_host(std::string_view host) {
  if (host == "localhost") return true;
  const std::optional<in6_addr> address = address_of_number(host);
  if (!address) return false;
  if (IN6_IS_ADDR_V4MAPPED(&*address)) return address->s6_addr[12] == IN_LOOPBACKNET;
  return IN6_IS_ADDR_LOOPBACK(&*address) != 0;
}

bool is_for_own_host(std::string_view http, std::string_view address) {
  const auto http_at = parse_host_port(http);
  const auto at = parse_host_port(without_tcp(address));
  return http_at && at && is_loopback_host(http_at->host) && !is_loopback_host(at->host);
}

bool is_every_host(std::string_view host) {
  if (host == "*") return true;
  const std::optional<in6_addr> address = address_of_number(host);
  if (!address) return false;
  if (IN6_IS_ADDR_V4MAPPED(&*address)) return address->s6_addr32[3] == 0;
  return IN6_IS_ADDR_UNSPECIFIED(&*address) != 0;
}

}  // namespace millrace::protocol
