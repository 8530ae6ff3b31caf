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

/// Waits until the channel can go on. False: the time is over, or the connection.
bool wait_for(const Descriptor& socket, ByteChannel::Outcome outcome, TimeNs deadline) {
  if (outcome == ByteChannel::Outcome::kWaitToRead) return wait_until(socket, POLLIN, deadline);
  return outcome == ByteChannel::Outcome::kWaitToWrite && wait_until(socket, POLLOUT, deadline);
}

bool send_all(const Descriptor& socket, ByteChannel& channel, std::string_view bytes, TimeNs deadline) {
  while (!bytes.empty()) {
    const ByteChannel::Moved sent = channel.write(bytes);
    if (sent.outcome == ByteChannel::Outcome::kMoved) {
      bytes.remove_prefix(sent.bytes);
    } else if (!wait_for(socket, sent.outcome, deadline)) {
      return false;
    }
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
ReplyEnd read_reply(const Descriptor& socket, ByteChannel& channel, TimeNs deadline, std::string& reply) {
  constexpr size_t kReplyBytesMax = kHttpReplyBytesMax + (64 << 10);  // with a head
  std::array<char, 16 << 10> bytes;
  std::optional<size_t> announced;
  for (;;) {
    if (!announced) announced = announced_bytes(reply);
    if (announced && reply.size() >= *announced) return ReplyEnd::kWhole;
    if (std::max(reply.size(), announced.value_or(0)) > kReplyBytesMax) return ReplyEnd::kTooLong;
    const ByteChannel::Moved got = channel.read(bytes);
    if (got.outcome == ByteChannel::Outcome::kEnd) return announced ? ReplyEnd::kBroken : ReplyEnd::kWhole;
    if (got.outcome == ByteChannel::Outcome::kMoved) {
      if (monotonic_now_ns() > deadline) return ReplyEnd::kBroken;  // single bytes buy no time
      reply.append(bytes.data(), got.bytes);
    } else if (!wait_for(socket, got.outcome, deadline)) {
      return ReplyEnd::kBroken;
    }
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

/// The part of a request that its method decides.
struct RequestWords {
  std::string_view method;
  std::string headers = {};  ///< each with its line end
  std::string_view body = {};
};

Result<HttpReply> ask_port(std::string_view address, const std::string& path, const RequestWords& words, int timeout_ms,
                           const HttpCaller* caller) {
  const auto parsed = protocol::parse_host_port(address);
  if (!parsed) return std::unexpected(parsed.error());
  const std::string at(address);
  const bool has_token = caller != nullptr && !caller->token().empty();
  if (has_token && !caller->uses_tls() && !(protocol::is_loopback_host(parsed->host) && caller->is_named(address))) {
    return fail(ErrorCode::kInvalidArgument,
                at + ": the token is sent unencrypted to a named loopback address alone; give --http-ca, and the port "
                     "there --http-tls");
  }
  const auto socket = connect_to_host(*parsed, timeout_ms);
  if (!socket) {
    return fail(ErrorCode::kUnavailable,
                at + " does not answer: does a process listen there? (" + socket.error().message + ")");
  }
  const TimeNs deadline = monotonic_now_ns() + TimeNs{timeout_ms} * kNsPerMs;
  // HTTP/1.0: a server may send no chunks, which this client does not put together.
  std::string request = std::string(words.method) + " " + path + " HTTP/1.0\r\nHost: " + at + "\r\n";
  request += "Connection: close\r\n" + words.headers;
  if (has_token) request += "Authorization: Bearer " + caller->token() + "\r\n";
  request += "\r\n" + std::string(words.body);
  const auto channel = caller != nullptr ? caller->open(*socket, parsed->host) : open_plain_channel(*socket);
  if (!channel) return fail(ErrorCode::kUnavailable, at + ": no certificate can prove this name");
  std::string bytes;
  const ReplyEnd end = send_all(*socket, *channel, request, deadline) ? read_reply(*socket, *channel, deadline, bytes)
                                                                      : ReplyEnd::kBroken;
  std::optional<HttpReply> reply = end == ReplyEnd::kWhole ? parse_reply(bytes) : std::nullopt;
  if (end == ReplyEnd::kTooLong || (reply && reply->body.size() > kHttpReplyBytesMax))
    return fail(ErrorCode::kLimitExceeded, at + path + " is longer than 16 MiB: it is no status of Millrace");
  if (reply) return std::move(*reply);
  if (caller != nullptr && caller->uses_tls()) {
    const std::string problem = channel->problem().empty() ? "" : " (" + channel->problem() + ")";
    return fail(ErrorCode::kUnavailable,
                at + " does not answer as HTTPS does" + problem +
                    ": is it the port of --http, with --http-tls? Its certificate must name this host, and --http-ca "
                    "have its authority");
  }
  return fail(ErrorCode::kUnavailable, at + " does not answer as HTTP does: is it the port of --http? If it has "
                                            "--http-tls, give --http-ca");
}

}  // namespace

Result<HttpReply> http_get(std::string_view address, const std::string& path, int timeout_ms,
                           const HttpCaller* caller) {
  return ask_port(address, path, {.method = "GET"}, timeout_ms, caller);
}

Result<HttpReply> http_post(std::string_view address, const std::string& path, std::string_view body, int timeout_ms,
                            const HttpCaller* caller) {
  const std::string length = "Content-Length: " + std::to_string(body.size()) + "\r\n";
  return ask_port(address, path, {.method = "POST", .headers = length, .body = body}, timeout_ms, caller);
}

}  // namespace millrace::monitoring
