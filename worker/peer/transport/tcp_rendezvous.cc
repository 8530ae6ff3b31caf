#include "worker/peer/transport/tcp_rendezvous.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "kernels/base/hash.h"
#include "worker/peer/transport/tcp_frame.h"

namespace millrace::peer {
namespace {

using protocol::HostAddress;
using protocol::HostPort;
using protocol::system_message;

constexpr TimeNs kHelloMax = 5 * kNsPerS;  ///< from accept() to a whole hello
constexpr size_t kStrangersMax = 64;
constexpr TimeNs kRetryMin = 10 * kNsPerMs;
constexpr TimeNs kRetryMax = 250 * kNsPerMs;
constexpr TimeNs kConnectMax = 3 * kNsPerS;  ///< of one address, until it accepts
constexpr TimeNs kGiveUpEvery = 100 * kNsPerMs;

Result<HostPort> host_port_of(const std::string& address, protocol::PortZero port_zero) {
  return protocol::parse_host_port(protocol::without_tcp(address), port_zero);
}

/// Reads up to a whole frame. False: the connection has ended.
bool read_frame(const Descriptor& socket, TcpFrameBytes& bytes, size_t& count) {
  while (count < bytes.size()) {
    const ssize_t found = ::recv(socket.number(), bytes.data() + count, bytes.size() - count, 0);
    if (found > 0) {
      count += static_cast<size_t>(found);
    } else if (found == 0) {
      return false;
    } else if (errno != EINTR) {
      return errno == EAGAIN || errno == EWOULDBLOCK;
    }
  }
  return true;
}

/// Sends a frame to a socket that has sent at most one before: it has room.
bool send_frame(const Descriptor& socket, const TcpFrame& frame) {
  const TcpFrameBytes bytes = encode_tcp_frame(frame);
  return ::send(socket.number(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}

void send_at_once(const Descriptor& socket) {
  const int on = 1;
  ::setsockopt(socket.number(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

/// Returns whether a connection to a free port of this machine has met itself, as TCP allows.
bool is_its_own_peer(const Descriptor& socket) {
  sockaddr_storage here{}, there{};
  socklen_t here_length = sizeof here, there_length = sizeof there;
  return ::getsockname(socket.number(), std::bit_cast<sockaddr*>(&here), &here_length) == 0 &&
         ::getpeername(socket.number(), std::bit_cast<sockaddr*>(&there), &there_length) == 0 &&
         here_length == there_length && std::memcmp(&here, &there, here_length) == 0;
}

/// Returns whether the other side has ended a connection, or broken it.
bool has_ended(const Descriptor& socket) {
  uint8_t byte = 0;
  const ssize_t found = ::recv(socket.number(), &byte, sizeof byte, MSG_PEEK | MSG_DONTWAIT);
  return found == 0 || (found < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

/// One rank below this one: attempts to connect to it, one after the other.
class Attempt {
 public:
  Attempt(uint32_t rank, HostPort address, const TcpIdentity& self, const protocol::HostResolver& resolver)
      : rank_(rank), address_(std::move(address)), self_(self), resolver_(resolver) {}

  uint32_t rank() const { return rank_; }
  bool is_done() const { return done_; }
  Descriptor take_socket() { return std::move(socket_); }
  /// Returns why the last attempt failed; empty: the rank accepts, and has not answered.
  std::string problem() const {
    const std::string at = " at " + protocol::host_port_text(address_.host, address_.port);
    if (stage_ == Stage::kAwaiting) return at + " accepts connections and does not answer";
    return at + " cannot be reached" + (problem_.empty() ? "" : ": " + problem_);
  }

  /// Adds its socket. Returns when advance() has something to do without an event of the socket.
  TimeNs poll_for(std::vector<pollfd>& polled) const {
    if (done_) return INT64_MAX;
    if (stage_ == Stage::kConnecting) polled.push_back({socket_.number(), POLLOUT, 0});
    if (stage_ == Stage::kAwaiting) polled.push_back({socket_.number(), POLLIN, 0});
    return next_;
  }

  /// Errors  job_mismatch, version_mismatch: the answer is not that of this rank of this group.
  Status advance(TimeNs now) {
    if (done_) return {};
    if (stage_ == Stage::kResting && now >= next_) begin(now);
    if (stage_ == Stage::kConnecting) finish_connecting(now);
    if (stage_ == Stage::kAwaiting) return await_welcome(now);
    return {};
  }

 private:
  enum class Stage : uint8_t { kResting, kConnecting, kAwaiting };

  void begin(TimeNs now) {
    if (hosts_.empty()) {
      auto found = resolver_(address_.host);
      if (!found) return rest(now, found.error().message);
      hosts_ = std::move(*found);
      next_host_ = 0;
    }
    const protocol::SocketAddress at = protocol::socket_address(hosts_[next_host_], address_.port);
    socket_ = protocol::open_stream(at.family());
    if (!socket_) return rest(now, system_message(errno));
    if (::connect(socket_.number(), at.any(), at.length) != 0 && errno != EINPROGRESS) {
      return rest(now, system_message(errno));
    }
    stage_ = Stage::kConnecting;
    next_ = now + kConnectMax;
  }

  /// Waits before the next attempt, on the host's next address. After the last one the host is looked up again.
  void rest(TimeNs now, std::string problem) {
    problem_ = std::move(problem);
    socket_.close();
    stage_ = Stage::kResting;
    if (++next_host_ < hosts_.size()) {
      next_ = now;
      return;
    }
    hosts_.clear();
    next_ = now + pause_;
    pause_ = std::min(2 * pause_, kRetryMax);
  }

  void finish_connecting(TimeNs now) {
    pollfd writable{socket_.number(), POLLOUT, 0};
    if (::poll(&writable, 1, 0) <= 0) {
      if (now >= next_) rest(now, system_message(ETIMEDOUT));
      return;
    }
    int error = 0;
    socklen_t length = sizeof error;
    if (::getsockopt(socket_.number(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
    if (error != 0) return rest(now, system_message(error));
    if (is_its_own_peer(socket_)) return rest(now, system_message(ECONNREFUSED));
    send_at_once(socket_);
    if (!send_frame(socket_, {.kind = TcpFrameKind::kHello,
                              .size = self_.size,
                              .group = self_.group,
                              .from = self_.rank,
                              .to = rank_})) {
      return rest(now, system_message(errno));
    }
    stage_ = Stage::kAwaiting;
    bytes_ = 0;
    next_ = INT64_MAX;  // the meeting's time bounds it
  }

  Status await_welcome(TimeNs now) {
    const bool open = read_frame(socket_, frame_, bytes_);
    if (bytes_ == frame_.size()) return take_answer();
    if (!open) rest(now, "it closed the connection");
    return {};
  }

  Status take_answer() {
    const std::string who = "what listens at " + protocol::host_port_text(address_.host, address_.port) +
                            ", the address of rank " + std::to_string(rank_) + ", ";
    const auto answer = decode_tcp_frame(frame_);
    if (!answer && answer.error() == TcpFrameFault::kVersion) {
      return fail(ErrorCode::kVersionMismatch, who + "is another version: run the same build on all ranks");
    }
    if (!answer) return fail(ErrorCode::kJobMismatch, who + "is no rank of a group");
    if (answer->kind == TcpFrameKind::kRefusal) return refused(who, answer->refusal);
    const TcpFrame expected{
        .kind = TcpFrameKind::kWelcome, .size = self_.size, .group = self_.group, .from = rank_, .to = self_.rank};
    if (*answer != expected) return fail(ErrorCode::kJobMismatch, who + "is no rank of this group");
    done_ = true;
    return {};
  }

  Status refused(const std::string& who, TcpRefusal refusal) const {
    const std::string self = "rank " + std::to_string(self_.rank);
    switch (refusal) {
      case TcpRefusal::kVersion:
        return fail(ErrorCode::kVersionMismatch, who + "is another version: run the same build on all ranks");
      case TcpRefusal::kRank:
        return fail(ErrorCode::kJobMismatch,
                    who + "has another number, or does not await " + self +
                        ": give all ranks one list of addresses, and each its own place in it");
      case TcpRefusal::kTaken:
        return fail(ErrorCode::kJobMismatch,
                    who + "is connected to a " + self + " already: two processes have this number");
      case TcpRefusal::kGroup:
      case TcpRefusal::kNone: break;
    }
    return fail(ErrorCode::kJobMismatch,
                who + "belongs to another group, or has another list of addresses: both are equal on all ranks");
  }

  uint32_t rank_;
  HostPort address_;
  TcpIdentity self_;
  const protocol::HostResolver& resolver_;
  Stage stage_ = Stage::kResting;
  bool done_ = false;
  Descriptor socket_;
  std::vector<HostAddress> hosts_;  ///< empty: not looked up
  size_t next_host_ = 0;
  TimeNs next_ = 0;
  TimeNs pause_ = kRetryMin;
  std::string problem_;
  TcpFrameBytes frame_ = {};
  size_t bytes_ = 0;
};

/// Accepted connections whose hello is not whole yet, and the ranks whose hello was welcome.
class Entrance {
 public:
  Entrance(const TcpIdentity& self, std::vector<Descriptor>& connected) : self_(self), connected_(connected) {}

  size_t missing() const {
    return static_cast<size_t>(std::count_if(connected_.begin() + self_.rank + 1, connected_.end(),
                                             [](const Descriptor& one) { return !one; }));
  }
  std::optional<uint32_t> first_missing() const {
    for (uint32_t rank = self_.rank + 1; rank < self_.size; ++rank) {
      if (!connected_[rank]) return rank;
    }
    return std::nullopt;
  }

  TimeNs poll_for(std::vector<pollfd>& polled) const {
    TimeNs next = INT64_MAX;
    for (const Guest& guest : guests_) {
      polled.push_back({guest.socket.number(), POLLIN, 0});
      next = std::min(next, guest.until);
    }
    return next;
  }

  /// Errors  limit_exceeded: no descriptor or no memory for a connection.
  Status accept_all(const Descriptor& listener, TimeNs now) {
    for (;;) {
      Descriptor socket(::accept4(listener.number(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!socket) return accept_error(errno);
      if (guests_.size() >= missing() + kStrangersMax) guests_.erase(guests_.begin());
      guests_.push_back({.socket = std::move(socket), .until = now + kHelloMax});
    }
  }

  void hear_guests(TimeNs now) {
    std::erase_if(guests_, [&](Guest& guest) {
      const bool open = read_frame(guest.socket, guest.frame, guest.bytes);
      if (guest.bytes < guest.frame.size()) return !open || now >= guest.until;
      answer(guest);
      return true;
    });
  }

 private:
  struct Guest {
    Descriptor socket;
    TimeNs until = 0;
    TcpFrameBytes frame = {};
    size_t bytes = 0;
  };

  static Status accept_error(int error) {
    if (error == EMFILE || error == ENFILE) {
      return fail(ErrorCode::kLimitExceeded,
                  "no descriptor for another rank's connection: raise the limit of open files (ulimit -n)");
    }
    if (error == ENOBUFS || error == ENOMEM) return fail(ErrorCode::kLimitExceeded, system_message(error));
    return {};  // there is none, or one that has ended already
  }

  void answer(Guest& guest) {
    const auto hello = decode_tcp_frame(guest.frame);
    if (!hello && hello.error() == TcpFrameFault::kVersion) return refuse(guest, TcpRefusal::kVersion);
    if (!hello || hello->kind != TcpFrameKind::kHello) return;
    TcpRefusal refusal = judge_hello(*hello, self_);
    const Descriptor& present = connected_.at(refusal == TcpRefusal::kNone ? hello->from : self_.rank);
    if (present && !has_ended(present)) refusal = TcpRefusal::kTaken;
    if (refusal != TcpRefusal::kNone) return refuse(guest, refusal);
    send_at_once(guest.socket);
    const TcpFrame welcome{.kind = TcpFrameKind::kWelcome,
                           .size = self_.size,
                           .group = self_.group,
                           .from = self_.rank,
                           .to = hello->from};
    if (send_frame(guest.socket, welcome)) connected_[hello->from] = std::move(guest.socket);
  }

  /// The group's number is not for strangers.
  void refuse(const Guest& guest, TcpRefusal refusal) const {
    static_cast<void>(
        send_frame(guest.socket, {.kind = TcpFrameKind::kRefusal, .refusal = refusal, .from = self_.rank}));
  }

  TcpIdentity self_;
  std::vector<Descriptor>& connected_;
  std::vector<Guest> guests_;  ///< by age
};

/// Runs until all ranks are connected.
class Meeting {
 public:
  Meeting(TcpListener listener, const TcpMeeting& meeting, const TcpIdentity& self)
      : listener_(std::move(listener)), meeting_(meeting), connected_(self.size), entrance_(self, connected_) {}

  Status begin(const TcpIdentity& self) {
    for (uint32_t rank = 0; rank < self.rank; ++rank) {
      auto address = host_port_of(meeting_.addresses[rank], protocol::PortZero::kRefused);
      if (!address) return std::unexpected(address.error());
      attempts_.emplace_back(rank, std::move(*address), self, meeting_.resolver);
    }
    return {};
  }

  Result<std::vector<Descriptor>> run() {
    const TimeNs end = monotonic_now_ns() + meeting_.time_max;
    for (;;) {
      const TimeNs now = monotonic_now_ns();
      if (Status status = advance(now); !status) return std::unexpected(status.error());
      if (is_complete()) return std::move(connected_);
      if (now >= end) return std::unexpected(missing());
      if (meeting_.give_up && meeting_.give_up()) {
        return fail(ErrorCode::kUnavailable, "the ranks did not meet: the caller gave up");
      }
      wait(now, end);
    }
  }

 private:
  Status advance(TimeNs now) {
    for (Attempt& attempt : attempts_) {
      if (Status status = attempt.advance(now); !status) return status;
      if (attempt.is_done() && !connected_[attempt.rank()]) connected_[attempt.rank()] = attempt.take_socket();
    }
    for (const Descriptor& listener : listener_.sockets()) {
      if (Status status = entrance_.accept_all(listener, now); !status) return status;
    }
    entrance_.hear_guests(now);
    return {};
  }

  bool is_complete() const {
    return entrance_.missing() == 0 && std::ranges::all_of(attempts_, [](const Attempt& one) { return one.is_done(); });
  }

  Error missing() const {
    const std::string time = " within " + std::to_string(meeting_.time_max / kNsPerMs) + " ms";
    for (const Attempt& attempt : attempts_) {
      if (attempt.is_done()) continue;
      return {ErrorCode::kTimeout,
              "no connection to rank " + std::to_string(attempt.rank()) + time + ": the rank" + attempt.problem()};
    }
    return {ErrorCode::kTimeout, "rank " + std::to_string(*entrance_.first_missing()) + " has not connected" + time +
                                     " to " + listener_.address()};
  }

  void wait(TimeNs now, TimeNs end) {
    std::vector<pollfd> polled;
    TimeNs next = std::min(end, now + kGiveUpEvery);
    for (const Attempt& attempt : attempts_) next = std::min(next, attempt.poll_for(polled));
    next = std::min(next, entrance_.poll_for(polled));
    for (const Descriptor& listener : listener_.sockets()) polled.push_back({listener.number(), POLLIN, 0});
    const int wait_ms = static_cast<int>(std::max<TimeNs>(0, next - now + kNsPerMs - 1) / kNsPerMs);
    static_cast<void>(::poll(polled.data(), polled.size(), wait_ms));
  }

  TcpListener listener_;
  const TcpMeeting& meeting_;
  std::vector<Descriptor> connected_;
  Entrance entrance_;
  std::vector<Attempt> attempts_;
};

}  // namespace

Result<TcpListener> TcpListener::open(const std::string& address, const protocol::HostResolver& resolver) {
  auto parsed = host_port_of(address, protocol::PortZero::kAllowed);
  if (!parsed) return std::unexpected(parsed.error());
  constexpr int kBacklog = 1024;
  auto listeners = protocol::listen_on_host(*parsed, resolver, kBacklog);
  if (!listeners) {
    return fail(listeners.error().code, "cannot listen at " + address + ": " + listeners.error().message);
  }
  TcpListener listener;
  listener.address_ = protocol::host_port_text(parsed->host, listeners->port);
  listener.listeners_ = std::move(*listeners);
  return listener;
}

Result<uint64_t> tcp_group_of(const TcpMeeting& meeting) {
  const size_t size = meeting.addresses.size();
  if (meeting.rank >= size || size > kTcpRanksMax) {
    return fail(ErrorCode::kInvalidArgument, "rank " + std::to_string(meeting.rank) + " of " + std::to_string(size) +
                                                 " addresses: each rank has one, and there are at most " +
                                                 std::to_string(kTcpRanksMax));
  }
  uint64_t group = hash64(std::string_view(meeting.group));
  std::set<std::string> seen;
  for (const std::string& address : meeting.addresses) {
    const auto parsed = host_port_of(address, protocol::PortZero::kRefused);
    if (!parsed) return std::unexpected(parsed.error());
    const std::string text = protocol::host_port_text(parsed->host, parsed->port);
    if (!seen.insert(text).second) {
      return fail(ErrorCode::kInvalidArgument, "two ranks have the address " + text);
    }
    group = hash64(std::string_view(text), group);
  }
  return group;
}

Result<std::vector<Descriptor>> meet_ranks(TcpListener listener, const TcpMeeting& meeting) {
  const auto group = tcp_group_of(meeting);
  if (!group) return std::unexpected(group.error());
  const TcpIdentity self{
      .rank = meeting.rank, .size = static_cast<uint32_t>(meeting.addresses.size()), .group = *group};
  Meeting running(std::move(listener), meeting, self);
  if (Status begun = running.begin(self); !begun) return std::unexpected(begun.error());
  return running.run();
}

}  // namespace millrace::peer
