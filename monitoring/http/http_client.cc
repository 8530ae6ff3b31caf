#include "monitoring/http/http_client.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/base/clock.h"
#include "kernels/base/words.h"
#include "monitoring/http/http_sockets.h"
#include "protocol/address/host_port.h"

namespace millrace::monitoring {
namespace {

constexpr std::string_view kReplyHeadEnd = "\r\n\r\n";

/// Waits until the socket is ready. False: the time is over.
bool wait_until(const Descriptor& socket, short events, TimeNs deadline) {
  for (;;) {
    const TimeNs left = deadline - monotonic_now_ns();
    if (left <= 0) return false;
    pollfd item{socket.number(), events, 0};
    const int ready = ::poll(&item, 1, static_cast<int>(left / kNsPerMs + 1));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
}

bool send_all(const Descriptor& socket, std::string_view bytes, TimeNs deadline) {
  while (!bytes.empty()) {
    if (!wait_until(socket, POLLOUT, deadline)) return false;
    const ssize_t sent = ::send(socket.number(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

enum class ReplyEnd : uint8_t { kWhole, kTooLong, kBroken };

std::string lower_case_of(std::string_view text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return out;
}

/// Bytes of head and body; nothing where the head is not whole, or does not say.
std::optional<size_t> announced_bytes(std::string_view reply) {
  constexpr std::string_view kLength = "\r\ncontent-length:";
  const size_t end = reply.find(kReplyHeadEnd);
  if (end == std::string_view::npos) return std::nullopt;
  const std::string head = lower_case_of(reply.substr(0, end + 2));
  const size_t at = head.find(kLength);
  if (at == std::string::npos) return std::nullopt;
  std::string_view number = std::string_view(head).substr(at + kLength.size());
  number = number.substr(0, number.find('\r'));
  number.remove_prefix(std::min(number.find_first_not_of(' '), number.size()));
  const auto bytes = number_from_text<size_t>(number);
  if (!bytes) return std::nullopt;
  return end + kReplyHeadEnd.size() + std::min(*bytes, 2 * kHttpReplyBytesMax);
}

/// Reads until the peer closes its end, or the whole body that the head announces is there.
ReplyEnd read_reply(const Descriptor& socket, TimeNs deadline, std::string& reply) {
  constexpr size_t kReplyBytesMax = kHttpReplyBytesMax + (64 << 10);  // with a head
  std::array<char, 16 << 10> bytes;
  std::optional<size_t> announced;
  for (;;) {
    if (!announced) announced = announced_bytes(reply);
    if (announced && reply.size() >= *announced) return ReplyEnd::kWhole;
    if (std::max(reply.size(), announced.value_or(0)) > kReplyBytesMax) return ReplyEnd::kTooLong;
    if (!wait_until(socket, POLLIN, deadline)) return ReplyEnd::kBroken;
    const ssize_t got = ::recv(socket.number(), bytes.data(), bytes.size(), 0);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got < 0) return ReplyEnd::kBroken;
    if (got == 0) return announced ? ReplyEnd::kBroken : ReplyEnd::kWhole;
    reply.append(bytes.data(), static_cast<size_t>(got));
  }
}

/// Takes a whole reply apart; nothing where it is no HTTP.
std::optional<HttpReply> parse_reply(std::string_view reply) {
  constexpr std::string_view kReplyStart = "HTTP/1.";
  constexpr size_t kStatusAt = kReplyStart.size() + 2;
  constexpr size_t kStatusDigits = 3;
  const size_t end = reply.find(kReplyHeadEnd);
  if (!reply.starts_with(kReplyStart) || end == std::string_view::npos || end < kStatusAt + kStatusDigits)
    return std::nullopt;
  const auto status = number_from_text<int>(reply.substr(kStatusAt, kStatusDigits));
  if (!status) return std::nullopt;
  return HttpReply{.status = *status, .body = std::string(reply.substr(end + kReplyHeadEnd.size()))};
}

}  // namespace

Result<HttpReply> http_get(std::string_view address, const std::string& path, int timeout_ms) {
  const auto parsed = protocol::parse_host_port(address);
  if (!parsed) return std::unexpected(parsed.error());
  const std::string at(address);
  const auto socket = connect_to_host(*parsed, timeout_ms);
  if (!socket) {
    return fail(ErrorCode::kUnavailable,
                at + " does not answer: does a process listen there? (" + socket.error().message + ")");
  }
  const TimeNs deadline = monotonic_now_ns() + TimeNs{timeout_ms} * kNsPerMs;
  // HTTP/1.0: a server may send no chunks, which this client does not put together.
  const std::string request = "GET " + path + " HTTP/1.0\r\nHost: " + at + "\r\nConnection: close\r\n\r\n";
  std::string bytes;
  const ReplyEnd end = send_all(*socket, request, deadline) ? read_reply(*socket, deadline, bytes) : ReplyEnd::kBroken;
  std::optional<HttpReply> reply = end == ReplyEnd::kWhole ? parse_reply(bytes) : std::nullopt;
  if (end == ReplyEnd::kTooLong || (reply && reply->body.size() > kHttpReplyBytesMax))
    return fail(ErrorCode::kLimitExceeded, at + path + " is longer than 16 MiB: it is no status of Millrace");
  if (reply) return std::move(*reply);
  return fail(ErrorCode::kUnavailable, at + " does not answer as HTTP does: is it the port of --http?");
}

}  // namespace millrace::monitoring
