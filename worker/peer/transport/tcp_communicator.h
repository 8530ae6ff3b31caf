#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/base/descriptor.h"
#include "kernels/base/result.h"
#include "worker/peer/transport/communicator.h"
#include "worker/peer/transport/tcp_connection.h"
#include "worker/peer/transport/tcp_link.h"
#include "worker/peer/transport/tcp_rendezvous.h"

namespace millrace::peer {

/// Communicates over one TCP connection to every other rank; needs no MPI.
///
/// Wire     a message is its header and its body (DESIGN.md, "TCP"). Without a key a body is sent from where it lies.
/// Key      with TcpMeeting::key all messages are encrypted, and a rank that lacks the key takes no part.
/// Order    messages from one rank arrive in the order in which it sent them.
/// Lost     a rank whose connection ends without a goodbye: its process ended, or its machine refuses. Messages that
///          arrived before are handed out first. A machine that vanishes ends no connection: the group's questions find
///          it (GroupOptions::silence_ms_max).
/// Left     a rank whose communicator was destroyed is not lost. Data for it is refused, other messages are dropped.
/// Waiting  wait() sleeps until a socket has something; it never polls.
/// Threads  as every communicator.
/// Bounds   a body has at most `body_bytes_max` bytes.
class TcpCommunicator final : public Communicator {
 public:
  static constexpr uint64_t kBodyBytesMax = (uint64_t{1} << 31) - 1;

  /// Meets the other ranks. Collective: every rank calls it. Errors  as meet_ranks(); io.
  static Result<std::unique_ptr<TcpCommunicator>> connect(TcpListener listener, const TcpMeeting& meeting,
                                                          uint64_t body_bytes_max = kBodyBytesMax);
  /// Takes connections that are there. links: [size], as meet_ranks() returns them. Errors  io.
  static Result<std::unique_ptr<TcpCommunicator>> over(uint32_t rank, std::vector<std::unique_ptr<TcpLink>> links,
                                                       uint64_t body_bytes_max = kBodyBytesMax);
  /// Says goodbye to all ranks, and gives the bytes in flight time to arrive: 2 s in which none does, 10 s in all. In a
  /// forked process it does neither: a key's nonces would repeat.
  ~TcpCommunicator() override;

  uint32_t rank() const override { return rank_; }
  uint32_t size() const override { return static_cast<uint32_t>(connections_.size()); }
  uint64_t body_bytes_max() const override { return body_bytes_max_; }
  Status send(uint32_t to, PeerMessage message) override;
  Result<std::optional<ReceivedMessage>> receive() override;
  std::optional<uint32_t> culprit() const override { return culprit_; }
  std::optional<uint32_t> take_heard() override;
  std::optional<uint32_t> take_lost() override;
  std::optional<uint32_t> take_left() override;
  void wait(TimeNs at_most, WaitAs as) override;
  void wake() override;
  TimeNs now() const override { return monotonic_now_ns(); }
  Traffic traffic() const override { return traffic_; }

 private:
  TcpCommunicator(uint32_t rank, std::vector<std::unique_ptr<TcpLink>> links, uint64_t body_bytes_max);
  Status begin();
  void poll();
  void serve(TcpConnection& connection, uint32_t events);
  void watch_output(TcpConnection& connection);
  void look_at_output();
  void drain();
  std::optional<uint32_t> take_ended(std::deque<uint32_t>& ended);
  void forget(TcpConnection& connection);

  const pid_t process_ = ::getpid();
  const uint32_t rank_;
  const uint64_t body_bytes_max_;
  std::vector<TcpConnection> connections_;  ///< by rank; this one's own is never open
  std::vector<bool> watches_output_;        ///< by rank: epoll reports when its socket takes bytes
  Descriptor epoll_;
  Descriptor wake_;  ///< an eventfd
  std::vector<uint8_t> scratch_;
  std::deque<ReceivedMessage> arrived_;
  std::deque<uint32_t> lost_;
  std::deque<uint32_t> left_;
  std::optional<Error> problem_;
  std::atomic<bool> has_something_ = false;  ///< of the four above, for wait() on another thread
  std::optional<uint32_t> culprit_;          ///< of the first problem
  std::deque<uint32_t> heard_;               ///< each rank once
  TimeNs next_look_ = 0;                     ///< at the acknowledged bytes
  Traffic traffic_;
};

}  // namespace millrace::peer
