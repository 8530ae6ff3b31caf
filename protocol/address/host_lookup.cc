#include "protocol/address/host_lookup.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "kernels/base/descriptor.h"
#include "protocol/address/host_port.h"
#include "protocol/datagram/packet_sink.h"

namespace millrace::protocol {
namespace {

using FoundHosts = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

std::optional<HostAddress> host_address_of(const addrinfo& found) {
  HostAddress address;
  if (found.ai_family == AF_INET) {
    sockaddr_in ipv4;
    std::memcpy(&ipv4, found.ai_addr, sizeof ipv4);
    std::ranges::copy(Endpoint::kIpv4Prefix, address.bytes.begin());
    std::memcpy(address.bytes.data() + Endpoint::kIpv4Prefix.size(), &ipv4.sin_addr, sizeof ipv4.sin_addr);
  } else if (found.ai_family == AF_INET6) {
    sockaddr_in6 ipv6;
    std::memcpy(&ipv6, found.ai_addr, sizeof ipv6);
    std::memcpy(address.bytes.data(), &ipv6.sin6_addr, address.bytes.size());
    address.scope = ipv6.sin6_scope_id;
  } else {
    return std::nullopt;
  }
  std::array<char, NI_MAXHOST> text{};
  if (::getnameinfo(found.ai_addr, found.ai_addrlen, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0)
    return std::nullopt;
  address.text = text.data();
  return address;
}

bool machine_has_ipv6() {
  const Descriptor socket(::socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  return socket || errno != EAFNOSUPPORT;
}

std::string resolver_error(int failed) {
  return failed == EAI_SYSTEM ? std::generic_category().message(errno) : ::gai_strerror(failed);
}

}  // namespace

std::string loopback_of_name(const std::string& host, const HostResolver& resolver) {
  if (is_numeric_host(host) || is_every_host(host) || host.starts_with("localhost") || host.starts_with("ip6-"))
    return "";
  const auto addresses = resolver(host);
  const auto is_here = [](const HostAddress& address) { return is_loopback_host(address.text); };
  if (!addresses || addresses->empty() || !std::ranges::all_of(*addresses, is_here)) return "";
  return addresses->front().text;
}

Result<std::vector<HostAddress>> look_up_host(const std::string& host) {
  addrinfo wanted{};
  wanted.ai_family = AF_UNSPEC;
  wanted.ai_socktype = SOCK_STREAM;
  if (is_numeric_host(host)) wanted.ai_flags = AI_NUMERICHOST;
  addrinfo* first = nullptr;
  const int failed = ::getaddrinfo(host.c_str(), nullptr, &wanted, &first);
  const FoundHosts owned(first, ::freeaddrinfo);
  if (failed != 0) {
    return fail(ErrorCode::kUnavailable, "the host '" + host + "' cannot be found: " + resolver_error(failed) +
                                             "; write its name as DNS or /etc/hosts has it, or give its number");
  }
  std::vector<HostAddress> addresses;
  for (const addrinfo* each = first; each != nullptr; each = each->ai_next) {
    std::optional<HostAddress> address = host_address_of(*each);
    if (address && std::ranges::find(addresses, *address) == addresses.end()) addresses.push_back(std::move(*address));
  }
  const bool has_ipv4 = std::ranges::any_of(addresses, [](const HostAddress& one) { return !one.is_ipv6(); });
  if (has_ipv4 && !machine_has_ipv6()) std::erase_if(addresses, [](const HostAddress& one) { return one.is_ipv6(); });
  if (!addresses.empty()) return addresses;
  return fail(ErrorCode::kUnavailable, "the host '" + host + "' has no IPv4 or IPv6 address");
}

struct HostLookup::State {
  explicit State(Descriptor ready_descriptor) : ready(std::move(ready_descriptor)) {}

  const Descriptor ready;  ///< an eventfd
  std::mutex mutex;
  std::optional<Result<std::vector<HostAddress>>> answer;
};

HostLookup::HostLookup(std::shared_ptr<State> state) : state_(std::move(state)) {}
HostLookup::~HostLookup() = default;

Result<std::unique_ptr<HostLookup>> HostLookup::start(HostResolver resolver, std::string host) {
  Descriptor ready(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!ready) {
    return fail(ErrorCode::kIo, "cannot look up the host '" + host + "': " + std::generic_category().message(errno));
  }
  auto state = std::make_shared<State>(std::move(ready));
  std::unique_ptr<HostLookup> lookup(new HostLookup(state));
  try {
    std::thread([state, resolve = std::move(resolver), host] {
      Result<std::vector<HostAddress>> found = fail(ErrorCode::kUnavailable, "");
      try {
        found = resolve(host);
      } catch (const std::exception& problem) {
        found = fail(ErrorCode::kUnavailable, "cannot look up the host '" + host + "': " + problem.what());
      }
      const std::lock_guard lock(state->mutex);
      state->answer = std::move(found);
      const uint64_t one = 1;
      [[maybe_unused]] const ssize_t written = ::write(state->ready.number(), &one, sizeof one);
    }).detach();
  } catch (const std::system_error& problem) {
    return fail(ErrorCode::kIo, "cannot look up the host '" + host + "': no thread for it: " + problem.what());
  }
  return lookup;
}

int HostLookup::descriptor() const { return state_->ready.number(); }

std::optional<Result<std::vector<HostAddress>>> HostLookup::take() {
  const std::lock_guard lock(state_->mutex);
  return std::exchange(state_->answer, std::nullopt);
}

}  // namespace millrace::protocol
