#include "worker/peer/transport/tcp_rendezvous.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <expected>
#include <memory>
#include <optional>
#include <set>
#include <span>
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

/// A rank as another one meets it.
struct Met {
  std::unique_ptr<TcpLink> link = {};  ///< null: the rank is missing
  ArrivingFrame last = {};             ///< of the link: `ready`, or `met`
  bool has_ended = false;              ///< the link that was there
};

constexpr TimeNs kHelloMax = 10 * kNsPerS;  ///< from accept() to a whole hello, with a key after two round trips
constexpr size_t kStrangersMax = 64;
constexpr TimeNs kRetryMin = 10 * kNsPerMs;
constexpr TimeNs kRetryMax = 250 * kNsPerMs;
constexpr TimeNs kConnectMax = 3 * kNsPerS;  ///< of one address, until it accepts
constexpr TimeNs kGiveUpEvery = 100 * kNsPerMs;

Result<HostPort> host_port_of(const std::string& address, protocol::PortZero port_zero) {
  return protocol::parse_host_port(protocol::without_tcp(address), port_zero);
}

/// One rank below this one: attempts to connect to it, one after the other.
class Attempt {
 public:
  Attempt(uint32_t rank, HostPort address, const TcpIdentity& self, const TcpMeeting& meeting,
          protocol::HostLookups& lookups)
      : rank_(rank), address_(std::move(address)), self_(self), lookups_(&lookups), key_(meeting.key) {}

  uint32_t rank() const { return rank_; }
  bool is_done() const { return done_; }
  std::unique_ptr<TcpLink> take_link() { return std::move(link_); }
  /// Begins again: the connection has ended before all ranks were there.
  void restart(TimeNs now) {
    done_ = false;
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
    return std::unexpected(error_of(refusal, who(), "rank " + std::to_string(self_.rank)));
  }

  uint32_t rank_;
  HostPort address_;
  TcpIdentity self_;
  protocol::HostLookups* lookups_;
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
  Entrance(const TcpIdentity& self, const std::optional<protocol::SecretKey>& key, std::vector<Met>& ranks)
      : self_(self), key_(key), ranks_(ranks) {}

  size_t missing() const {
    return static_cast<size_t>(
        std::count_if(ranks_.begin() + self_.rank + 1, ranks_.end(), [](const Met& one) { return !one.link; }));
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
    Met& present = ranks_.at(hello->from);
    if (present.link && !present.link->has_closed()) return refuse(guest, TcpRefusal::kTaken);
    send_at_once(guest.link->socket());
    const TcpFrame welcome{.kind = TcpFrameKind::kWelcome,
                           .size = self_.size,
                           .group = self_.group,
                           .from = self_.rank,
                           .to = hello->from};
    if (send_frame(*guest.link, welcome)) present = {.link = std::move(guest.link)};
  }

  /// The group's number is not for strangers.
  void refuse(Guest& guest, TcpRefusal refusal) {
    has_refused_keys_ = has_refused_keys_ || refusal >= TcpRefusal::kNeedsKey;
    static_cast<void>(
        send_frame(*guest.link, {.kind = TcpFrameKind::kRefusal, .refusal = refusal, .from = self_.rank}));
  }

  TcpIdentity self_;
  const std::optional<protocol::SecretKey>& key_;
  std::vector<Met>& ranks_;
  std::vector<Guest> guests_;  ///< by age
  bool has_refused_keys_ = false;
};

/// Runs until all ranks are connected to each other.
class Meeting {
 public:
  Meeting(TcpListener listener, const TcpMeeting& meeting, const TcpIdentity& self)
      : listener_(std::move(listener)),
        meeting_(meeting),
        self_(self),
        lookups_(meeting.resolver),
        ranks_(self.size),
        entrance_(self, meeting.key, ranks_) {}

  Status begin() {
    for (uint32_t rank = 0; rank < self_.rank; ++rank) {
      auto address = host_port_of(meeting_.addresses[rank], protocol::PortZero::kRefused);
      if (!address) return std::unexpected(address.error());
      attempts_.emplace_back(rank, std::move(*address), self_, meeting_, lookups_);
    }
    return {};
  }

  Result<Links> run() {
    const TimeNs end = meeting_.began.value_or(monotonic_now_ns()) + meeting_.time_max;
    for (;;) {
      const TimeNs now = monotonic_now_ns();
      if (Status status = advance(now); !status) return std::unexpected(status.error());
      if (has_ended_) break;
      if (now >= end) return std::unexpected(missing());
      if (meeting_.give_up && meeting_.give_up()) {
        return fail(ErrorCode::kUnavailable, "the ranks did not meet: the caller gave up" + hint());
      }
      wait(now, end);
    }
    Links links;
    for (Met& one : ranks_) links.push_back(std::move(one.link));
    return links;
  }

 private:
  bool leads() const { return self_.rank == 0; }
  /// Returns whether this rank has a connection to every other one.
  bool is_linked() const {
    return entrance_.missing() == 0 && std::ranges::all_of(attempts_, [](const Attempt& one) { return one.is_done(); });
  }

  Status advance(TimeNs now) {
    if (now >= next_check_) drop_ended(now);
    for (Attempt& attempt : attempts_) {
      if (Status status = attempt.advance(now); !status) return status;
      Met& rank = ranks_[attempt.rank()];
      if (attempt.is_done() && !rank.link) rank = {.link = attempt.take_link()};
    }
    // A rank that connects while none is missing has met, and meets again: it waits for the next listener.
    if (!is_linked()) {
      for (const Descriptor& listener : listener_.sockets()) {
        if (Status status = entrance_.accept_all(listener, now); !status) return status;
      }
      entrance_.hear_guests(now);
    }
    if (is_linked() || is_ready_) {
      if (Status agreed = leads() ? lead(now) : follow(now); !agreed || has_ended_) return agreed;
    }
    return {};
  }

  /// Ends the meeting of all ranks once all are ready. A rank that returned earlier would begin to sum, or to meet
  /// again, while another one still meets and answers nothing.
  Status lead(TimeNs now) {
    for (uint32_t rank = 1; rank < self_.size; ++rank) hear(rank, now);
    const auto are_ready = [this] {
      return is_linked() &&
             std::all_of(ranks_.begin() + 1, ranks_.end(), [](const Met& one) { return one.last.is_whole(); });
    };
    if (!are_ready()) return {};
    drop_ended(now);
    if (!are_ready()) return {};
    // A connection that breaks now is the group's error.
    for (uint32_t rank = 1; rank < self_.size; ++rank) {
      send_frame(*ranks_[rank].link, frame_of(TcpFrameKind::kMet, self_.rank, rank));
    }
    has_ended_ = true;
    return {};
  }

  /// Reports to rank 0 that this rank is ready, and waits for its answer.
  Status follow(TimeNs now) {
    hear(0, now);
    if (is_ready_ && !ranks_[0].link) return gone(0, "; its own error may name the reason");
    if (ranks_[0].last.is_whole()) {
      has_ended_ = true;
      const auto one = std::ranges::find_if(ranks_, [](const Met& each) { return each.has_ended; });
      return one == ranks_.end() ? Status() : gone(one - ranks_.begin());
    }
    if (is_ready_) return {};
    drop_ended(now);
    if (is_linked()) is_ready_ = send_frame(*ranks_[0].link, frame_of(TcpFrameKind::kReady, self_.rank, 0));
    return {};
  }

  TcpFrame frame_of(TcpFrameKind kind, uint32_t from, uint32_t to) const {
    return {.kind = kind, .size = self_.size, .group = self_.group, .from = from, .to = to};
  }

  /// Reads the frame that ends the meeting.
  void hear(uint32_t rank, TimeNs now) {
    Met& one = ranks_[rank];
    if (!one.link || one.last.is_whole()) return;
    const bool open = one.last.read(*one.link);
    const bool is_whole = one.last.is_whole();
    const TcpFrame expected = frame_of(leads() ? TcpFrameKind::kReady : TcpFrameKind::kMet, rank, self_.rank);
    if (is_whole ? decode_tcp_frame(one.last.bytes) != expected : !open) drop(rank, now);
  }

  static Status gone(ptrdiff_t rank, const std::string& more = "") {
    return fail(ErrorCode::kUnavailable, "rank " + std::to_string(rank) + " is gone: its connection has ended" + more);
  }

  /// A rank may be started again. Not so rank 0 once this rank is ready: others may have met already.
  void drop(uint32_t rank, TimeNs now) {
    ranks_[rank] = {.has_ended = true};
    if (rank < self_.rank && !(rank == 0 && is_ready_)) attempts_[rank].restart(now);
  }

  void drop_ended(TimeNs now) {
    next_check_ = now + kGiveUpEvery;
    for (uint32_t rank = 0; rank < self_.size; ++rank) {
      if (ranks_[rank].link && ranks_[rank].link->has_ended()) drop(rank, now);
    }
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
    for (const bool has_ended : {false, true}) {
      for (uint32_t rank = 0; rank < self_.size; ++rank) {
        if (rank == self_.rank || ranks_[rank].link || ranks_[rank].has_ended != has_ended) continue;
        const std::string name = "rank " + std::to_string(rank);
        if (rank < self_.rank) {
          return {ErrorCode::kTimeout, std::string("no connection to ").append(name).append(time) + ": the rank" +
                                           attempts_[rank].problem()};
        }
        const char* again = has_ended ? " has ended its connection, and has not connected again" : " has not connected";
        return {ErrorCode::kTimeout,
                std::string(name).append(again).append(time) + " to " + listener_.address() + hint()};
      }
    }
    for (uint32_t rank = 1; rank < self_.size && leads(); ++rank) {
      if (ranks_[rank].last.is_whole()) continue;
      return {ErrorCode::kTimeout, "rank " + std::to_string(rank) + " has not met all other ranks" + time +
                                       ": its own error names the missing one"};
    }
    return {ErrorCode::kTimeout, "not all ranks have met each other" + time + ": the error of rank 0 names one"};
  }

  void wait(TimeNs now, TimeNs end) {
    std::vector<pollfd> polled;
    TimeNs next = std::min(end, now + kGiveUpEvery);
    for (const Attempt& attempt : attempts_) next = std::min(next, attempt.poll_for(polled));
    lookups_.poll_for(polled);
    if (!is_linked()) {
      next = std::min(next, entrance_.poll_for(polled));
      for (const Descriptor& listener : listener_.sockets()) polled.push_back({listener.number(), POLLIN, 0});
    }
    if (is_linked() || is_ready_) {
      for (const Met& one : std::span(ranks_).first(leads() ? ranks_.size() : 1)) {
        if (one.link && !one.last.is_whole()) polled.push_back({one.link->socket().number(), POLLIN, 0});
      }
    }
    const int wait_ms = static_cast<int>(std::max<TimeNs>(0, next - now + kNsPerMs - 1) / kNsPerMs);
    static_cast<void>(::poll(polled.data(), polled.size(), wait_ms));
  }

  TcpListener listener_;
  const TcpMeeting& meeting_;
  const TcpIdentity self_;
  protocol::HostLookups lookups_;
  std::vector<Met> ranks_;  ///< this one has no link
  Entrance entrance_;
  std::vector<Attempt> attempts_;
  TimeNs next_check_ = 0;
  bool is_ready_ = false;  ///< rank 0 knows that this rank has all connections
  bool has_ended_ = false;
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
    if (protocol::is_every_host(parsed->host)) {
      return fail(ErrorCode::kInvalidArgument, "a rank has the address " + text +
                                                   ", which is every address of its machine: give the rank one that " +
                                                   "the others reach");
    }
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
  if (Status begun = running.begin(); !begun) return std::unexpected(begun.error());
  return running.run();
}

}  // namespace millrace::peer
