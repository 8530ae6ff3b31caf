#include "worker/peer/transport/tcp_communicator.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>
#include <string>
#include <utility>

#include "kernels/base/check.h"

namespace millrace::peer {
namespace {

/// Of one connection before the next has its turn: a message is handed out while it is still in a cache.
constexpr size_t kReadBytesATurn = 256 << 10;
constexpr size_t kEventsACall = 64;
constexpr TimeNs kGoodbyeMax = 10 * kNsPerS;
constexpr TimeNs kGoodbyeIdleMax = 2 * kNsPerS;  ///< while no machine acknowledges bytes
constexpr TimeNs kGoodbyePause = kNsPerMs;
/// Between two looks at the acknowledged bytes: a system call for each connection with bytes on their way.
constexpr TimeNs kLookEvery = 50 * kNsPerMs;

void pause_for_goodbyes(TimeNs time) {
  const timespec until{.tv_sec = time / kNsPerS, .tv_nsec = time % kNsPerS};
  ::ppoll(nullptr, 0, &until, nullptr);
}

Error system_error(const char* what) {
  return {ErrorCode::kIo, std::string(what) + ": " + protocol::system_message(errno)};
}

}  // namespace

Result<std::unique_ptr<TcpCommunicator>> TcpCommunicator::connect(TcpListener listener, const TcpMeeting& meeting,
                                                                  uint64_t body_bytes_max) {
  auto links = meet_ranks(std::move(listener), meeting);
  if (!links) return std::unexpected(links.error());
  return over(meeting.rank, std::move(*links), body_bytes_max);
}

Result<std::unique_ptr<TcpCommunicator>> TcpCommunicator::over(uint32_t rank,
                                                               std::vector<std::unique_ptr<TcpLink>> links,
                                                               uint64_t body_bytes_max) {
  MILLRACE_CHECK(rank < links.size(), rank, links.size());
  std::unique_ptr<TcpCommunicator> made(new TcpCommunicator(rank, std::move(links), body_bytes_max));
  if (Status begun = made->begin(); !begun) return std::unexpected(begun.error());
  return made;
}

TcpCommunicator::TcpCommunicator(uint32_t rank, std::vector<std::unique_ptr<TcpLink>> links, uint64_t body_bytes_max)
    : rank_(rank),
      body_bytes_max_(std::min(body_bytes_max, kBodyBytesMax)),
      watches_output_(links.size()),
      scratch_(TcpConnection::kScratchBytes) {
  connections_.reserve(links.size());
  for (uint32_t peer = 0; peer < links.size(); ++peer) {
    connections_.emplace_back(peer, std::move(links[peer]), body_bytes_max_);
  }
}

Status TcpCommunicator::begin() {
  epoll_ = Descriptor(::epoll_create1(EPOLL_CLOEXEC));
  wake_ = Descriptor(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!epoll_ || !wake_) return std::unexpected(system_error("no descriptor for a communicator"));
  for (TcpConnection& connection : connections_) {
    if (connection.peer() == rank_) continue;
    epoll_event event{.events = EPOLLIN, .data = {.u32 = connection.peer()}};
    if (::epoll_ctl(epoll_.number(), EPOLL_CTL_ADD, connection.descriptor(), &event) != 0) {
      return std::unexpected(system_error("a connection cannot be watched"));
    }
  }
  return {};
}

TcpCommunicator::~TcpCommunicator() {
  if (::getpid() != process_) return;  // the connections are the parent's
  for (TcpConnection& connection : connections_) {
    connection.say_goodbye({.kind = TcpFrameKind::kGoodbye, .size = size(), .from = rank_, .to = connection.peer()});
  }
  drain();
  for (TcpConnection& connection : connections_) connection.close();
}

/// Waits until the bytes that are on the way have arrived: closing might take them back. An abort may be behind a long
/// message, and its reason is the only one that the other rank gets. What arrives is dropped, so that two ranks that
/// leave do not wait for each other.
void TcpCommunicator::drain() {
  const TimeNs end = now() + kGoodbyeMax;
  TimeNs idle_end = now() + kGoodbyeIdleMax;
  uint64_t acknowledged_before = 0;
  while (now() < std::min(end, idle_end)) {
    bool drained = true;
    uint64_t acknowledged = 0;
    for (TcpConnection& connection : connections_) {
      connection.drop_input(scratch_, kReadBytesATurn);
      if (connection.has_output()) connection.flush();
      drained = drained && connection.is_drained();
      acknowledged += connection.acknowledged_bytes();
    }
    if (drained) return;
    if (acknowledged > acknowledged_before) {
      acknowledged_before = acknowledged;
      idle_end = now() + kGoodbyeIdleMax;
    }
    pause_for_goodbyes(kGoodbyePause);
  }
}

Status TcpCommunicator::send(uint32_t to, PeerMessage message) {
  MILLRACE_CHECK(to < size() && to != rank_, to, rank_);
  const uint64_t body_bytes = message.body.bytes.size();
  if (body_bytes > body_bytes_max_) {
    return fail(ErrorCode::kLimitExceeded, "a message of " + std::to_string(body_bytes) +
                                               " bytes; a connection carries " + std::to_string(body_bytes_max_) +
                                               " at most: use more parts");
  }
  TcpConnection& connection = connections_[to];
  if (connection.state() == TcpState::kLost) {
    return fail(ErrorCode::kUnavailable, "rank " + std::to_string(to) + " is gone: its connection has ended");
  }
  if (connection.state() == TcpState::kLeft) {
    // An answer to its question, perhaps: it finished meanwhile. take_left() reports it.
    if (message.kind != MessageKind::kData) return {};
    return fail(ErrorCode::kUnavailable, "rank " + std::to_string(to) + " has left the group");
  }
  traffic_.bytes_sent += kMessageHeaderBytes + body_bytes;
  ++traffic_.messages_sent;
  connection.send(std::move(message));
  watch_output(connection);
  return {};
}

/// Has epoll report when the socket takes bytes again, while there are some to send.
void TcpCommunicator::watch_output(TcpConnection& connection) {
  const bool wanted = connection.has_output();
  if (connection.descriptor() < 0 || wanted == watches_output_[connection.peer()]) return;
  watches_output_[connection.peer()] = wanted;
  epoll_event event{.events = EPOLLIN, .data = {.u32 = connection.peer()}};
  if (wanted) event.events |= EPOLLOUT;
  // It cannot fail: the descriptor is watched already.
  const int changed = ::epoll_ctl(epoll_.number(), EPOLL_CTL_MOD, connection.descriptor(), &event);
  MILLRACE_CHECK(changed == 0, errno);
}

Result<std::optional<ReceivedMessage>> TcpCommunicator::receive() {
  if (arrived_.empty()) poll();
  std::optional<ReceivedMessage> message;
  if (!arrived_.empty()) {
    message = std::move(arrived_.front());
    arrived_.pop_front();
    traffic_.bytes_received += kMessageHeaderBytes + message->message.body.bytes.size();
  }
  std::optional<Error> problem;
  if (!message) problem = std::exchange(problem_, std::nullopt);
  has_something_ = !arrived_.empty() || !lost_.empty() || !left_.empty() || problem_;
  if (problem) return std::unexpected(std::move(*problem));
  return message;
}

void TcpCommunicator::poll() {
  std::array<epoll_event, kEventsACall> events;
  const int count = ::epoll_wait(epoll_.number(), events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events[static_cast<size_t>(i)];
    serve(connections_[event.data.u32], event.events);
  }
}

void TcpCommunicator::serve(TcpConnection& connection, uint32_t events) {
  if (connection.state() != TcpState::kOpen) return;
  if ((events & EPOLLOUT) != 0) connection.flush();
  if ((events & ~static_cast<uint32_t>(EPOLLOUT)) != 0) {
    Status read = connection.read(scratch_, kReadBytesATurn, arrived_);
    if (connection.take_has_read() && std::ranges::find(heard_, connection.peer()) == heard_.end()) {
      heard_.push_back(connection.peer());
    }
    if (!read && !culprit_) {
      problem_ = read.error();
      culprit_ = connection.peer();
    }
    if (connection.state() == TcpState::kLost) lost_.push_back(connection.peer());
    if (connection.state() == TcpState::kLeft) left_.push_back(connection.peer());
    if (connection.state() != TcpState::kOpen) return forget(connection);
  }
  watch_output(connection);
}

/// Closes a connection that has ended. epoll would go on to report a socket that a forked process has too.
void TcpCommunicator::forget(TcpConnection& connection) {
  ::epoll_ctl(epoll_.number(), EPOLL_CTL_DEL, connection.descriptor(), nullptr);
  connection.close();
}

std::optional<uint32_t> TcpCommunicator::take_heard() {
  if (heard_.empty()) look_at_output();
  if (heard_.empty()) return std::nullopt;
  const uint32_t rank = heard_.front();
  heard_.pop_front();
  return rank;
}

/// Notes the ranks whose machines take bytes before a question. A rank that reads a long message cannot answer before.
void TcpCommunicator::look_at_output() {
  if (now() < next_look_) return;
  next_look_ = now() + kLookEvery;
  for (TcpConnection& connection : connections_) {
    if (connection.take_has_moved_question()) heard_.push_back(connection.peer());
  }
}

std::optional<uint32_t> TcpCommunicator::take_lost() { return take_ended(lost_); }
std::optional<uint32_t> TcpCommunicator::take_left() { return take_ended(left_); }

std::optional<uint32_t> TcpCommunicator::take_ended(std::deque<uint32_t>& ended) {
  // Messages that it sent before come first.
  if (ended.empty() || !arrived_.empty()) return std::nullopt;
  const uint32_t rank = ended.front();
  ended.pop_front();
  has_something_ = !lost_.empty() || !left_.empty() || problem_;
  return rank;
}

void TcpCommunicator::wait(TimeNs at_most, WaitAs) {
  if (has_something_) return;
  std::array<pollfd, 2> polled{pollfd{epoll_.number(), POLLIN, 0}, pollfd{wake_.number(), POLLIN, 0}};
  const timespec until{.tv_sec = at_most / kNsPerS, .tv_nsec = at_most % kNsPerS};
  if (::ppoll(polled.data(), polled.size(), &until, nullptr) <= 0 || polled[1].revents == 0) return;
  uint64_t count = 0;
  static_cast<void>(::read(wake_.number(), &count, sizeof count) < 0);
}

void TcpCommunicator::wake() {
  const uint64_t one = 1;
  static_cast<void>(::write(wake_.number(), &one, sizeof one) < 0);
}

}  // namespace millrace::peer
