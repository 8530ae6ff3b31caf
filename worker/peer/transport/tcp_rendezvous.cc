#include "worker/peer/transport/tcp_rendezvous.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <expected>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/hash.h"
#include "protocol/address/host_lookups.h"
#include "worker/peer/transport/tcp_frame.h"
#include "worker/peer/transport/tcp_opening.h"

namespace millrace::peer {
namespace {

using protocol::HostAddress;
using protocol::HostPort;
using protocol::system_message;
using Links = std::vector<std::unique_ptr<TcpLink>>;

constexpr TimeNs kHelloMax = 10 * kNsPerS;  ///< from accept() to a whole hello, with a key after two round trips
constexpr size_t kStrangersMax = 64;
constexpr TimeNs kRetryMin = 10 * kNsPerMs;
constexpr TimeNs kRetryMax = 250 * kNsPerMs;
constexpr TimeNs kConnectMax = 3 * kNsPerS;  ///< of one address, until it accepts
constexpr TimeNs kGiveUpEvery = 100 * kNsPerMs;

Result<HostPort> host_port_of(const std::string& address, protocol::PortZero port_zero) {
  return protocol::parse_host_port(protocol::without_tcp(address), port_zero);
}

/// A frame that arrives over a link.
struct ArrivingFrame {
  TcpFrameBytes bytes = {};
  size_t count = 0;

  bool is_whole() const { return count == bytes.size(); }
  /// Reads up to a whole frame. False: the connection has ended.
  bool read(TcpLink& link) {
    while (!is_whole()) {
      const std::array part{iovec{.iov_base = bytes.data() + count, .iov_len = bytes.size() - count}};
      const LinkResult found = link.read(part);
      count += found.bytes;
      if (found.state == LinkState::kBlocked) return true;
      if (found.state != LinkState::kOpen) return false;
    }
    return true;
  }
};

/// Sends a frame over a link that has sent at most one before: its socket has room.
bool send_frame(TcpLink& link, const TcpFrame& frame) {
  TcpFrameBytes bytes = encode_tcp_frame(frame);
  const std::array part{iovec{.iov_base = bytes.data(), .iov_len = bytes.size()}};
  return link.write(part).bytes == bytes.size() && !link.has_output();
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

/// Returns whether the other side will send nothing after the bytes that are there.
bool has_closed(const Descriptor& socket) {
  pollfd polled{socket.number(), POLLRDHUP, 0};
  return ::poll(&polled, 1, 0) > 0 && (polled.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

/// One rank below this one: attempts to connect to it, one after the other.
class Attempt {
 public:
  Attempt(uint32_t rank, HostPort address, const TcpIdentity& self, const TcpMeeting& meeting,
          protocol::HostLookups& lookups)
      : rank_(rank), address_(std::move(address)), self_(self), lookups_(&lookups), key_(meeting.key) {}

  uint32_t rank() const { return rank_; }
  bool is_done() const { return done_; }
  /// Returns whether it was done before, and its connection has ended since.
  bool has_restarted() const { return restarted_; }
  std::unique_ptr<TcpLink> take_link() { return std::move(link_); }
  /// Begins again: the connection has ended before all ranks were there.
  void restart(TimeNs now) {
    done_ = false;
    restarted_ = true;
    hosts_.clear();
    rest(now, "it ended the connection");
  }
  /// Returns why the last attempt failed; empty: the rank accepts, and has not answered.
  std::string problem() const {
    const std::string at = " at " + protocol::host_port_text(address_.host, address_.port);
    if (stage_ == Stage::kOpening || stage_ == Stage::kAwaiting) return at + " accepts connections and does not answer";
    return at + " cannot be reached" + (problem_.empty() ? "" : ": " + problem_);
  }

  /// Adds its socket. Returns when advance() has something to do without an event of the socket.
  TimeNs poll_for(std::vector<pollfd>& polled) const {
    if (done_) return INT64_MAX;
    if (stage_ == Stage::kConnecting) polled.push_back({socket_.number(), POLLOUT, 0});
    if (stage_ == Stage::kOpening) polled.push_back({socket_.number(), POLLIN, 0});
    if (stage_ == Stage::kAwaiting) polled.push_back({link_->socket().number(), POLLIN, 0});
    return next_;
  }

  /// Errors  job_mismatch, version_mismatch, unauthenticated: the answer is not that of this rank of this group.
  Status advance(TimeNs now) {
    if (done_) return {};
    if (stage_ == Stage::kResting && now >= next_) stage_ = Stage::kLookingUp;
    if (stage_ == Stage::kLookingUp) begin(now);
    if (stage_ == Stage::kConnecting) finish_connecting(now);
    if (stage_ == Stage::kOpening) {
      if (Status opened = await_opening(now); !opened) return opened;
    }
    if (stage_ == Stage::kAwaiting) return await_welcome(now);
    return {};
  }

 private:
  enum class Stage : uint8_t { kResting, kLookingUp, kConnecting, kOpening, kAwaiting };

  void begin(TimeNs now) {
    next_ = INT64_MAX;  // HostLookups has the event
    if (hosts_.empty()) {
      auto found = lookups_->find(address_.host, now);
      if (!found) return;
      if (!*found) return rest(now, found->error().message);
      hosts_ = std::move(**found);
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
    link_.reset();
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
    next_ = INT64_MAX;  // the meeting's time bounds it
    if (!key_) return say_hello(plain_link(std::move(socket_)), now);
    caller_.emplace(*key_);
    opening_ = {};
    if (!caller_->send(socket_)) return rest(now, system_message(errno));
    stage_ = Stage::kOpening;
  }

  Status await_opening(TimeNs now) {
    const bool open = opening_.read(socket_);
    if (opening_.is_whole()) return take_opening(now);
    if (!open) rest(now, "it closed the connection");
    return {};
  }

  Status take_opening(TimeNs now) {
    const auto answer = opening_.frame();
    if (!answer || answer->kind != TcpFrameKind::kOpened) return refused_by(answer);
    const auto ciphers = caller_->take(opening_);
    if (!ciphers) return refused(TcpRefusal::kOtherKey);
    caller_.reset();  // its ephemeral secret ends with the handshake
    say_hello(sealed_link(std::move(socket_), *ciphers), now);
    return {};
  }

  void say_hello(std::unique_ptr<TcpLink> link, TimeNs now) {
    link_ = std::move(link);
    welcome_ = {};
    stage_ = Stage::kAwaiting;
    const TcpFrame hello{
        .kind = TcpFrameKind::kHello, .size = self_.size, .group = self_.group, .from = self_.rank, .to = rank_};
    if (!send_frame(*link_, hello)) rest(now, system_message(errno));
  }

  Status await_welcome(TimeNs now) {
    const bool open = welcome_.read(*link_);
    if (welcome_.is_whole()) return take_welcome();
    if (!open) rest(now, "it closed the connection");
    return {};
  }

  Status take_welcome() {
    const auto answer = decode_tcp_frame(welcome_.bytes);
    if (!answer || answer->kind == TcpFrameKind::kRefusal) return refused_by(answer);
    const TcpFrame expected{
        .kind = TcpFrameKind::kWelcome, .size = self_.size, .group = self_.group, .from = rank_, .to = self_.rank};
    if (*answer != expected) return fail(ErrorCode::kJobMismatch, who() + "is no rank of this group");
    done_ = true;
    return {};
  }

  std::string who() const {
    return "what listens at " + protocol::host_port_text(address_.host, address_.port) + ", the address of rank " +
           std::to_string(rank_) + ", ";
  }

  /// Returns the error of an answer that is not the awaited one.
  Status refused_by(const std::expected<TcpFrame, TcpFrameFault>& answer) const {
    if (!answer && answer.error() == TcpFrameFault::kVersion) return refused(TcpRefusal::kVersion);
    if (answer && answer->kind == TcpFrameKind::kRefusal) return refused(answer->refusal);
    return fail(ErrorCode::kJobMismatch, who() + "is no rank of a group");
  }

  Status refused(TcpRefusal refusal) const {
    const std::string self = "rank " + std::to_string(self_.rank);
    switch (refusal) {
      case TcpRefusal::kVersion:
        return fail(ErrorCode::kVersionMismatch, who() + "is another version: run the same build on all ranks");
      case TcpRefusal::kRank:
        return fail(ErrorCode::kJobMismatch,
                    who() + "has another number, or does not await " + self +
                        ": give all ranks one list of addresses, and each its own place in it");
      case TcpRefusal::kTaken:
        return fail(ErrorCode::kJobMismatch,
                    who() + "is connected to a " + self + " already: two processes have this number");
      case TcpRefusal::kNeedsKey:
        return fail(ErrorCode::kUnauthenticated,
                    who() + "takes ranks with the group's key alone, and " + self + " has none: give it key_file, too");
      case TcpRefusal::kHasNoKey:
        return fail(ErrorCode::kUnauthenticated,
                    who() + "has no key, and " + self + " has one: give all ranks the same key_file, or none");
      case TcpRefusal::kOtherKey:
        return fail(ErrorCode::kUnauthenticated,
                    who() + "has another key than " + self + ": give all ranks of the group the same key_file");
      case TcpRefusal::kGroup:
      case TcpRefusal::kNone: break;
    }
    return fail(ErrorCode::kJobMismatch,
                who() + "belongs to another group, or has another list of addresses: both are equal on all ranks");
  }

  uint32_t rank_;
  HostPort address_;
  TcpIdentity self_;
  protocol::HostLookups* lookups_;
  bool restarted_ = false;
  const std::optional<protocol::SecretKey>& key_;
  Stage stage_ = Stage::kResting;
  bool done_ = false;
  Descriptor socket_;
  std::vector<HostAddress> hosts_;  ///< empty: not looked up
  size_t next_host_ = 0;
  TimeNs next_ = 0;
  TimeNs pause_ = kRetryMin;
  std::string problem_;
  std::optional<TcpCaller> caller_;
  TcpOpening opening_;
  std::unique_ptr<TcpLink> link_;  ///< in place of socket_, once it is known whether it is sealed
  ArrivingFrame welcome_;
};

/// Accepted connections whose hello is not whole yet, and the ranks whose hello was welcome.
class Entrance {
 public:
  Entrance(const TcpIdentity& self, const std::optional<protocol::SecretKey>& key, Links& connected)
      : self_(self), key_(key), connected_(connected) {}

  size_t missing() const {
    return static_cast<size_t>(
        std::count_if(connected_.begin() + self_.rank + 1, connected_.end(), [](const auto& one) { return !one; }));
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
      polled.push_back({(guest.link ? guest.link->socket() : guest.socket).number(), POLLIN, 0});
      next = std::min(next, guest.until);
    }
    return next;
  }

  /// Errors  limit_exceeded: no descriptor or no memory for a connection.
  Status accept_all(const Descriptor& listener, TimeNs now) {
    for (;;) {
      Descriptor socket(::accept4(listener.number(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!socket) return accept_error(errno);
      if (guests_.size() >= missing() + kStrangersMax) close_one();
      guests_.push_back({.socket = std::move(socket), .until = now + kHelloMax});
    }
  }

  void hear_guests(TimeNs now) {
    // Guests must not complete the meeting while a rank's connection has ended: its process may be started again.
    const bool may_complete = missing() > 0 && missing() <= guests_.size();
    for (uint32_t rank = self_.rank + 1; rank < self_.size && may_complete; ++rank) {
      if (connected_[rank] && has_ended(connected_[rank]->socket())) connected_[rank].reset();
    }
    std::erase_if(guests_, [&](Guest& guest) { return !hear(guest) || now >= guest.until; });
  }

  /// Returns whether a connection was refused for its key, or for the lack of one.
  bool has_refused_keys() const { return has_refused_keys_; }

 private:
  struct Guest {
    Descriptor socket;
    TimeNs until = 0;
    TcpOpening opening = {};
    std::unique_ptr<TcpLink> link = {};  ///< in place of the socket, once the first bytes are there
    ArrivingFrame hello = {};
  };

  static Status accept_error(int error) {
    if (error == EMFILE || error == ENFILE) {
      return fail(ErrorCode::kLimitExceeded,
                  "no descriptor for another rank's connection: raise the limit of open files (ulimit -n)");
    }
    if (error == ENOBUFS || error == ENOMEM) return fail(ErrorCode::kLimitExceeded, system_message(error));
    return {};  // there is none, or one that has ended already
  }

  /// Closes the oldest guest that has not proved the key. Where all have: the oldest.
  void close_one() {
    const auto stranger = std::ranges::find_if(guests_, [](const Guest& one) { return !one.link; });
    guests_.erase(stranger == guests_.end() ? guests_.begin() : stranger);
  }

  /// Returns whether the guest has more to say.
  bool hear(Guest& guest) {
    if (!guest.link) {
      const bool open = guest.opening.read(guest.socket);
      if (!guest.opening.is_whole()) return open;
      if (!begin(guest)) return false;
    }
    const bool open = guest.hello.read(*guest.link);
    if (!guest.hello.is_whole()) return open;
    answer(guest, decode_tcp_frame(guest.hello.bytes));
    return false;
  }

  /// Takes the first bytes, and makes the link. Returns whether the hello follows over it.
  bool begin(Guest& guest) {
    const auto first = guest.opening.frame();
    const bool opens = first && first->kind == TcpFrameKind::kOpening;
    if (opens && key_) {
      const auto ciphers = answer_opening(*key_, guest.opening, guest.socket);
      if (ciphers) {
        guest.link = sealed_link(std::move(guest.socket), *ciphers);
        return true;
      }
      if (ciphers.error() == OpeningFault::kNotSent) return false;
    }
    guest.link = plain_link(std::move(guest.socket));
    if (opens) {
      refuse(guest, key_ ? TcpRefusal::kOtherKey : TcpRefusal::kHasNoKey);
    } else if (key_ && first && first->kind == TcpFrameKind::kHello) {
      refuse(guest, TcpRefusal::kNeedsKey);
    } else {
      answer(guest, first);
    }
    return false;
  }

  void answer(Guest& guest, const std::expected<TcpFrame, TcpFrameFault>& hello) {
    if (!hello && hello.error() == TcpFrameFault::kVersion) return refuse(guest, TcpRefusal::kVersion);
    if (!hello || hello->kind != TcpFrameKind::kHello) return;
    if (const TcpRefusal refusal = judge_hello(*hello, self_); refusal != TcpRefusal::kNone) {
      return refuse(guest, refusal);
    }
    std::unique_ptr<TcpLink>& present = connected_.at(hello->from);
    if (present && !has_closed(present->socket())) return refuse(guest, TcpRefusal::kTaken);
    send_at_once(guest.link->socket());
    const TcpFrame welcome{.kind = TcpFrameKind::kWelcome,
                           .size = self_.size,
                           .group = self_.group,
                           .from = self_.rank,
                           .to = hello->from};
    if (send_frame(*guest.link, welcome)) present = std::move(guest.link);
  }

  /// The group's number is not for strangers.
  void refuse(Guest& guest, TcpRefusal refusal) {
    has_refused_keys_ = has_refused_keys_ || refusal >= TcpRefusal::kNeedsKey;
    static_cast<void>(
        send_frame(*guest.link, {.kind = TcpFrameKind::kRefusal, .refusal = refusal, .from = self_.rank}));
  }

  TcpIdentity self_;
  const std::optional<protocol::SecretKey>& key_;
  Links& connected_;
  std::vector<Guest> guests_;  ///< by age
  bool has_refused_keys_ = false;
};

/// Runs until all ranks are connected.
class Meeting {
 public:
  Meeting(TcpListener listener, const TcpMeeting& meeting, const TcpIdentity& self)
      : listener_(std::move(listener)),
        meeting_(meeting),
        lookups_(meeting.resolver),
        connected_(self.size),
        entrance_(self, meeting.key, connected_) {}

  Status begin(const TcpIdentity& self) {
    for (uint32_t rank = 0; rank < self.rank; ++rank) {
      auto address = host_port_of(meeting_.addresses[rank], protocol::PortZero::kRefused);
      if (!address) return std::unexpected(address.error());
      attempts_.emplace_back(rank, std::move(*address), self, meeting_, lookups_);
    }
    return {};
  }

  Result<Links> run() {
    const TimeNs end = meeting_.began.value_or(monotonic_now_ns()) + meeting_.time_max;
    for (;;) {
      const TimeNs now = monotonic_now_ns();
      if (Status status = advance(now); !status) return std::unexpected(status.error());
      if (is_complete()) return std::move(connected_);
      if (now >= end) return std::unexpected(missing());
      if (meeting_.give_up && meeting_.give_up()) {
        return fail(ErrorCode::kUnavailable, "the ranks did not meet: the caller gave up" + hint());
      }
      wait(now, end);
    }
  }

 private:
  Status advance(TimeNs now) {
    for (Attempt& attempt : attempts_) {
      std::unique_ptr<TcpLink>& link = connected_[attempt.rank()];
      if (Status status = attempt.advance(now); !status) return status;
      if (attempt.is_done() && !link) link = attempt.take_link();
    }
    for (const Descriptor& listener : listener_.sockets()) {
      if (Status status = entrance_.accept_all(listener, now); !status) return status;
    }
    entrance_.hear_guests(now);
    // Once all ranks were there, the end of one is the group's error.
    if (now >= next_check_ && !is_complete()) restart_ended(now);
    return {};
  }

  /// The process of a rank whose connection has ended may be started again.
  void restart_ended(TimeNs now) {
    next_check_ = now + kGiveUpEvery;
    for (Attempt& attempt : attempts_) {
      std::unique_ptr<TcpLink>& link = connected_[attempt.rank()];
      if (!link || !has_ended(link->socket())) continue;
      link.reset();
      attempt.restart(now);
    }
  }

  bool is_complete() const {
    return entrance_.missing() == 0 && std::ranges::all_of(attempts_, [](const Attempt& one) { return one.is_done(); });
  }

  /// Returns a reason why ranks may be missing; empty: none is known.
  std::string hint() const {
    if (!entrance_.has_refused_keys()) return {};
    if (!meeting_.key) {
      return ". This rank has no key, and refused processes with one: give all ranks the same key_file, or none";
    }
    return ". This rank refused processes without its key: give all ranks the same key_file";
  }

  Error missing() const {
    const std::string time = " within " + std::to_string(meeting_.time_max / kNsPerMs) + " ms";
    // A rank whose connection has ended may have waited for another one, too, and given up just before this one.
    for (const bool has_restarted : {false, true}) {
      for (const Attempt& attempt : attempts_) {
        if (attempt.is_done() || attempt.has_restarted() != has_restarted) continue;
        return {ErrorCode::kTimeout,
                "no connection to rank " + std::to_string(attempt.rank()) + time + ": the rank" + attempt.problem()};
      }
      if (const auto rank = entrance_.first_missing()) {
        return {ErrorCode::kTimeout,
                "rank " + std::to_string(*rank) + " has not connected" + time + " to " + listener_.address() + hint()};
      }
    }
    return {ErrorCode::kTimeout, "the ranks did not meet" + time};
  }

  void wait(TimeNs now, TimeNs end) {
    std::vector<pollfd> polled;
    TimeNs next = std::min({end, now + kGiveUpEvery, entrance_.poll_for(polled)});
    for (const Attempt& attempt : attempts_) next = std::min(next, attempt.poll_for(polled));
    lookups_.poll_for(polled);
    for (const Descriptor& listener : listener_.sockets()) polled.push_back({listener.number(), POLLIN, 0});
    const int wait_ms = static_cast<int>(std::max<TimeNs>(0, next - now + kNsPerMs - 1) / kNsPerMs);
    static_cast<void>(::poll(polled.data(), polled.size(), wait_ms));
  }

  TcpListener listener_;
  const TcpMeeting& meeting_;
  protocol::HostLookups lookups_;
  Links connected_;
  Entrance entrance_;
  std::vector<Attempt> attempts_;
  TimeNs next_check_ = 0;
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

Result<Links> meet_ranks(TcpListener listener, const TcpMeeting& meeting) {
  const auto group = tcp_group_of(meeting);
  if (!group) return std::unexpected(group.error());
  const TcpIdentity self{
      .rank = meeting.rank, .size = static_cast<uint32_t>(meeting.addresses.size()), .group = *group};
  Meeting running(std::move(listener), meeting, self);
  if (Status begun = running.begin(self); !begun) return std::unexpected(begun.error());
  return running.run();
}

}  // namespace millrace::peer
