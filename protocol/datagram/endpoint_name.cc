#include "protocol/datagram/endpoint_name.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <string>

#include "kernels/base/words.h"

namespace millrace::protocol {
namespace {

/// ::ffff:0:0/96
constexpr std::array<uint8_t, 12> kNameMappedPrefix = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};

std::optional<Endpoint> endpoint_of(const addrinfo& found, uint16_t port) {
  Endpoint endpoint;
  endpoint.port = port;
  if (found.ai_family == AF_INET) {
    sockaddr_in address;
    std::memcpy(&address, found.ai_addr, sizeof address);
    std::ranges::copy(kNameMappedPrefix, endpoint.address.begin());
    std::memcpy(endpoint.address.data() + kNameMappedPrefix.size(), &address.sin_addr, sizeof address.sin_addr);
    return endpoint;
  }
  if (found.ai_family != AF_INET6) return std::nullopt;
  sockaddr_in6 address;
  std::memcpy(&address, found.ai_addr, sizeof address);
  std::memcpy(endpoint.address.data(), &address.sin6_addr, endpoint.address.size());
  return endpoint;
}

}  // namespace

Result<Endpoint> resolve_endpoint(std::string_view text) {
  const size_t colon = text.rfind(':');
  const std::string quoted = "'" + std::string(text) + "'";
  uint16_t port = 0;
  std::string host(text.substr(0, colon == std::string_view::npos ? 0 : colon));
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  if (colon == std::string_view::npos || !assign_number(text.substr(colon + 1), port) || port == 0 || host.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                quoted + " is not an address: give a host and a port, as 192.0.2.1:7700 or [2001:db8::1]:7700");
  }
  addrinfo wanted{};
  wanted.ai_family = AF_UNSPEC;
  wanted.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const int failed = ::getaddrinfo(host.c_str(), nullptr, &wanted, &found);
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(found, ::freeaddrinfo);
  if (failed != 0) return fail(ErrorCode::kUnavailable, quoted + " cannot be found: " + ::gai_strerror(failed));
  for (const int family : {AF_INET, AF_INET6}) {
    for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
      if (each->ai_family != family) continue;
      if (const auto endpoint = endpoint_of(*each, port)) return *endpoint;
    }
  }
  return fail(ErrorCode::kUnavailable, quoted + " has no IPv4 or IPv6 address");
}

}  // namespace millrace::protocol
