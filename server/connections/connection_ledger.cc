#include "server/connections/connection_ledger.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <mutex>
#include <optional>
#include <utility>

#include "server/connections/frame_count.h"

namespace millrace::server {
namespace {

/// The bytes of a stranger. ZeroMQ's thread alone has it.
struct Stream {
  TimeNs accepted_at = 0;  ///< of the connection that this is about
  FrameCount frames = {};
};

/// One for the process, as the C library's functions are that it counts.
struct Counted {
  std::atomic<TimeNs> accepted_at{0};  ///< 0: no accepted connection
  std::atomic<uint64_t> unread{0};
  std::atomic<uint32_t> messages{0};
  std::atomic<TimeNs> admitted{0};  ///< `accepted_at` of the connection that was admitted last
  std::atomic<uint16_t> port{0};    ///< of this machine

  std::atomic<uint64_t> held{0};        ///< bytes of a stranger; `all_held` is the sum
  std::atomic<bool> hides_ends{false};  ///< the loop ends its messages, not hold()
  Stream stream;
};
std::array<Counted, kCountedDescriptors> counted;
/// Whether this thread accepts connections, as ZeroMQ's does. The number of a connection that ZeroMQ has closed may be
/// another thread's by now, such as that of HTTP, whose bytes do not count.
thread_local bool accepts_connections = false;
std::atomic<int> counted_below{0};  ///< no higher descriptor was ever counted
std::atomic<uint64_t> all_held{0};
std::atomic<uint16_t> limited_port{0};
std::atomic<uint64_t> each_held_max{0};
std::atomic<uint64_t> all_held_max{0};

/// Connections that recv() has ended, for the loop. No allocation: an exception must not leave recv().
struct CutRecords {
  std::mutex mutex;
  std::array<Cut, 1'024> known;
  size_t count = 0;
  uint64_t others = 0;
};
CutRecords cut_records;

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

void write_address(int descriptor, Cut::Address& text) {
  sockaddr_storage peer{};
  socklen_t length = sizeof(peer);
  auto* address = std::bit_cast<sockaddr*>(&peer);
  if (::getpeername(descriptor, address, &length) != 0) return;
  if (::getnameinfo(address, length, text.data(), static_cast<socklen_t>(text.size()), nullptr, 0, NI_NUMERICHOST) != 0)
    text[0] = '\0';
}

void release(Counted& one) {
  all_held.fetch_sub(one.held.exchange(0, std::memory_order_relaxed), std::memory_order_relaxed);
}

/// Returns some of the held bytes; all, where they are fewer.
void release_some(Counted& one, uint64_t bytes) {
  uint64_t held = one.held.load(std::memory_order_relaxed);
  while (!one.held.compare_exchange_weak(held, held - std::min(held, bytes), std::memory_order_relaxed)) {
  }
  all_held.fetch_sub(std::min(held, bytes), std::memory_order_relaxed);
}

/// Returns what hold() has counted for a hidden frame.
uint64_t held_by_hidden(uint64_t frame_bytes) {
  constexpr uint64_t kShortMax = 255;
  constexpr uint64_t kShortHead = 2;  // flags and length
  constexpr uint64_t kLongHead = 9;
  const uint64_t hidden = frame_bytes + kHidingBytes;
  return kHiddenFrameBytes + hidden + (hidden <= kShortMax ? kShortHead : kLongHead);
}

bool is_admitted(const Counted& one) {
  return one.admitted.load(std::memory_order_relaxed) == one.accepted_at.load(std::memory_order_relaxed);
}

/// Returns whether the limits of strangers apply, or may apply as soon as the listener's port is known.
bool is_stranger(const Counted& one) {
  if (is_admitted(one)) return false;
  const uint16_t port = limited_port.load(std::memory_order_relaxed);
  return port == 0 || port == one.port.load(std::memory_order_relaxed);
}

/// Ends the counts of a connection that is to end. False: it is none of the listener any more.
bool cut(int descriptor, Counted& one, std::string_view why) {
  TimeNs accepted_at = one.accepted_at.load(std::memory_order_acquire);
  const bool is_ours = one.accepted_at.compare_exchange_strong(accepted_at, 0);
  release(one);
  if (!is_ours) return true;  // the loop ends it just now
  if (!is_connection(descriptor, limited_port.load(std::memory_order_relaxed))) return false;
  const std::scoped_lock lock(cut_records.mutex);
  if (cut_records.count == cut_records.known.size()) {
    ++cut_records.others;
    return true;
  }
  Cut& record = cut_records.known[cut_records.count++];
  record = {.descriptor = descriptor, .accepted_at = accepted_at, .why = why};
  write_address(descriptor, record.address);
  return true;
}

/// Counts the bytes that a stranger holds from now on. False: it is refused or over a limit, and its counts have ended.
bool hold(int descriptor, Counted& one, std::span<const std::byte> bytes, size_t room) {
  Stream& stream = one.stream;
  if (const TimeNs at = one.accepted_at.load(std::memory_order_relaxed); stream.accepted_at != at)
    stream = {.accepted_at = at};
  const FrameCount::Unfinished unfinished = stream.frames.count(bytes);
  // The listener accepts before its port is known here. A connection that is refused meanwhile ends with a later read.
  if (limited_port.load(std::memory_order_relaxed) == 0) return true;
  if (unfinished.is_refused) return !cut(descriptor, one, "bad_handshake");
  if (!unfinished.continues) release(one);
  if (unfinished.bytes == 0) return true;
  if (unfinished.hides_ends) one.hides_ends.store(true, std::memory_order_relaxed);
  const uint64_t of_read = room <= kSharedReadBytes && !unfinished.hides_ends ? kReadBytes : 0;
  const uint64_t of_frame = unfinished.hides_ends ? kHiddenFrameBytes : kFrameBytes;
  const uint64_t more = of_read + unfinished.bytes + unfinished.frames * of_frame;
  const uint64_t held = one.held.fetch_add(more, std::memory_order_relaxed) + more;
  const uint64_t all = all_held.fetch_add(more, std::memory_order_relaxed) + more;
  if (held > each_held_max.load(std::memory_order_relaxed)) return !cut(descriptor, one, "unfinished_message");
  if (held <= kStrangerShare || all <= all_held_max.load(std::memory_order_relaxed)) return true;
  return !cut(descriptor, one, "unfinished_messages");
}

}  // namespace

void limit_strangers(const StrangerLimits& limits) {
  each_held_max.store(limits.each_max);
  all_held_max.store(limits.total_max);
  limited_port.store(limits.port);
}

uint64_t strangers_held() { return all_held.load(); }

void count_connection(int descriptor, TimeNs now) {
  accepts_connections = true;
  Counted* one = counted_of(descriptor);
  if (one == nullptr) return;
  one->accepted_at.store(0);
  release(*one);
  one->unread.store(0, std::memory_order_relaxed);
  one->messages.store(0, std::memory_order_relaxed);
  one->hides_ends.store(false, std::memory_order_relaxed);
  one->port.store(local_port(descriptor).value_or(0), std::memory_order_relaxed);
  one->accepted_at.store(now, std::memory_order_release);
  int below = counted_below.load(std::memory_order_relaxed);
  while (below <= descriptor && !counted_below.compare_exchange_weak(below, descriptor + 1)) {
  }
}

bool count_received(int descriptor, std::span<const std::byte> bytes, size_t room) {
  if (!accepts_connections) return true;
  Counted* one = counted_of(descriptor);
  if (one == nullptr || one->accepted_at.load(std::memory_order_relaxed) == 0) return true;
  one->unread.fetch_add(bytes.size(), std::memory_order_relaxed);
  return !is_stranger(*one) || hold(descriptor, *one, bytes, room);
}

void count_closed(int descriptor) {
  if (!accepts_connections) return;
  Counted* one = counted_of(descriptor);
  if (one == nullptr || one->accepted_at.load(std::memory_order_relaxed) == 0) return;
  release(*one);
}

void count_message(int descriptor, std::span<const uint64_t> frames) {
  Counted* one = counted_of(descriptor);
  if (one == nullptr || one->accepted_at.load(std::memory_order_relaxed) == 0) return;
  one->unread.store(0, std::memory_order_relaxed);
  one->messages.fetch_add(1, std::memory_order_relaxed);
  if (!one->hides_ends.load(std::memory_order_relaxed)) return;
  uint64_t held = 0;
  for (const uint64_t frame_bytes : frames) held += held_by_hidden(frame_bytes);
  release_some(*one, held);
}

void admit_connection(int descriptor, TimeNs accepted_at) {
  Counted* one = counted_of(descriptor);
  if (one == nullptr || one->accepted_at.load(std::memory_order_acquire) != accepted_at) return;
  one->admitted.store(accepted_at, std::memory_order_relaxed);
  release(*one);
}

std::vector<ConnectionSample> connection_samples() {
  std::vector<ConnectionSample> samples;
  const int below = counted_below.load();
  for (int descriptor = 0; descriptor < below; ++descriptor) {
    Counted& one = counted[static_cast<size_t>(descriptor)];
    const TimeNs accepted_at = one.accepted_at.load(std::memory_order_acquire);
    // Also bytes of a recv() that overlaps the end or the admission of the connection.
    if (accepted_at == 0 || is_admitted(one)) release(one);
    if (accepted_at == 0) continue;
    samples.push_back(
        {.descriptor = descriptor,
         .accepted_at = accepted_at,
         .unread_bytes = std::max(one.unread.load(std::memory_order_relaxed), one.held.load(std::memory_order_relaxed)),
         .messages = one.messages.load(std::memory_order_relaxed),
         .was_admitted = is_admitted(one)});
  }
  return samples;
}

TimeNs accepted_at(int descriptor) {
  const Counted* one = counted_of(descriptor);
  return one == nullptr ? 0 : one->accepted_at.load(std::memory_order_acquire);
}

uint64_t unread_bytes(int descriptor) {
  const Counted* one = counted_of(descriptor);
  return one == nullptr ? 0 : one->unread.load(std::memory_order_relaxed);
}

bool is_connection(int descriptor, uint16_t port) {
  sockaddr_storage peer{};
  socklen_t length = sizeof(peer);
  return local_port(descriptor) == port && ::getpeername(descriptor, std::bit_cast<sockaddr*>(&peer), &length) == 0;
}

bool has_ended(int descriptor, TimeNs begun_at, uint16_t port) {
  if (accepted_at(descriptor) != begun_at || !is_connection(descriptor, port)) return true;
  tcp_info info{};
  socklen_t length = sizeof(info);
  return ::getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 && info.tcpi_state != TCP_ESTABLISHED;
}

void forget_connection(int descriptor, TimeNs accepted_at) {
  Counted* one = counted_of(descriptor);
  if (one != nullptr && one->accepted_at.compare_exchange_strong(accepted_at, 0)) release(*one);
}

std::string address_of_connection(int descriptor) {
  Cut::Address text{};
  write_address(descriptor, text);
  return text.data();
}

bool end_connection(int descriptor, TimeNs accepted_at, uint16_t port) {
  Counted* one = counted_of(descriptor);
  // Judged once; and the number may be another connection's by now.
  if (one == nullptr || !one->accepted_at.compare_exchange_strong(accepted_at, 0)) return false;
  release(*one);
  // Or another file's: only a connection to our port is ended.
  return is_connection(descriptor, port) && ::shutdown(descriptor, SHUT_RDWR) == 0;
}

Cuts take_cuts() {
  Cuts cuts;
  const std::scoped_lock lock(cut_records.mutex);
  cuts.known.assign(cut_records.known.begin(), cut_records.known.begin() + static_cast<ptrdiff_t>(cut_records.count));
  cuts.others = std::exchange(cut_records.others, 0);
  cut_records.count = 0;
  return cuts;
}

}  // namespace millrace::server
