#include "server/connections/connection_ledger.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <optional>

namespace millrace::server {
namespace {

/// One for the process, as the C library's functions are that it counts.
struct Counted {
  std::atomic<TimeNs> accepted_at{0};  ///< 0: no accepted connection
  std::atomic<uint64_t> unread{0};
  std::atomic<uint32_t> messages{0};
};
std::array<Counted, kCountedDescriptors> counted;
std::atomic<int> counted_below{0};  ///< no higher descriptor was ever counted

Counted* counted_of(int descriptor) {
  return descriptor >= 0 && descriptor < kCountedDescriptors ? &counted[static_cast<size_t>(descriptor)] : nullptr;
}

std::optional<uint16_t> local_port(int descriptor) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  if (::getsockname(descriptor, std::bit_cast<sockaddr*>(&address), &length) != 0) return std::nullopt;
  sockaddr_in ipv4{};
  sockaddr_in6 ipv6{};
  if (address.ss_family == AF_INET) {
    std::memcpy(&ipv4, &address, sizeof(ipv4));
    return ntohs(ipv4.sin_port);
  }
  if (address.ss_family != AF_INET6) return std::nullopt;
  std::memcpy(&ipv6, &address, sizeof(ipv6));
  return ntohs(ipv6.sin6_port);
}

}  // namespace

void count_connection(int descriptor, TimeNs now) {
  Counted* one = counted_of(descriptor);
  if (one == nullptr) return;
  one->unread.store(0, std::memory_order_relaxed);
  one->messages.store(0, std::memory_order_relaxed);
  one->accepted_at.store(now, std::memory_order_release);
  int below = counted_below.load(std::memory_order_relaxed);
  while (below <= descriptor && !counted_below.compare_exchange_weak(below, descriptor + 1)) {
  }
}

void count_received(int descriptor, size_t bytes) {
  Counted* one = counted_of(descriptor);
  if (one == nullptr || one->accepted_at.load(std::memory_order_relaxed) == 0) return;
  one->unread.fetch_add(bytes, std::memory_order_relaxed);
}

void count_message(int descriptor) {
  Counted* one = counted_of(descriptor);
  if (one == nullptr || one->accepted_at.load(std::memory_order_relaxed) == 0) return;
  one->unread.store(0, std::memory_order_relaxed);
  one->messages.fetch_add(1, std::memory_order_relaxed);
}

std::vector<ConnectionSample> connection_samples() {
  std::vector<ConnectionSample> samples;
  const int below = counted_below.load();
  for (int descriptor = 0; descriptor < below; ++descriptor) {
    const Counted& one = counted[static_cast<size_t>(descriptor)];
    const TimeNs accepted_at = one.accepted_at.load(std::memory_order_acquire);
    if (accepted_at == 0) continue;
    samples.push_back({.descriptor = descriptor,
                       .accepted_at = accepted_at,
                       .unread_bytes = one.unread.load(std::memory_order_relaxed),
                       .messages = one.messages.load(std::memory_order_relaxed)});
  }
  return samples;
}

TimeNs accepted_at(int descriptor) {
  const Counted* one = counted_of(descriptor);
  return one == nullptr ? 0 : one->accepted_at.load(std::memory_order_acquire);
}

bool is_connection(int descriptor, uint16_t port) {
  sockaddr_storage peer{};
  socklen_t length = sizeof(peer);
  return local_port(descriptor) == port && ::getpeername(descriptor, std::bit_cast<sockaddr*>(&peer), &length) == 0;
}

void forget_connection(int descriptor, TimeNs accepted_at) {
  if (Counted* one = counted_of(descriptor)) one->accepted_at.compare_exchange_strong(accepted_at, 0);
}

std::string address_of_connection(int descriptor) {
  sockaddr_storage peer{};
  socklen_t length = sizeof(peer);
  std::array<char, NI_MAXHOST> text{};
  auto* address = std::bit_cast<sockaddr*>(&peer);
  if (::getpeername(descriptor, address, &length) != 0) return {};
  if (::getnameinfo(address, length, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0) return {};
  return text.data();
}

bool end_connection(int descriptor, TimeNs accepted_at, uint16_t port) {
  Counted* one = counted_of(descriptor);
  // Judged once; and the number may be another connection's by now.
  if (one == nullptr || !one->accepted_at.compare_exchange_strong(accepted_at, 0)) return false;
  // Or another file's: only a connection to our port is ended.
  return is_connection(descriptor, port) && ::shutdown(descriptor, SHUT_RDWR) == 0;
}

}  // namespace millrace::server
