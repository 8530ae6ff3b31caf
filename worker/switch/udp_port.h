#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/base/result.h"
#include "protocol/datagram/job_numbers.h"
#include "protocol/datagram/packet_sink.h"
#include "protocol/datagram/udp_bursts.h"
#include "worker/switch/switch_client.h"

namespace millrace::worker {

/// A worker's UDP sockets, one for each lane of its job: bursts (UdpBursts), no thread of its own.
///
/// Why one a lane   what a device or the kernel makes of a burst (a piece of several datagrams on the way out, or put together on
///                  the way in; the queue that a card's RSS chooses) goes by addresses and ports. Lanes of one socket would come
///                  to one core of their aggregator, whichever it is.
/// Threads  one at a time.
class SwitchUdpPort final : public protocol::PacketSink {
 public:
  /// A free port each of any local address of the family that `peer` has.
  /// Errors   io.
  static Result<std::unique_ptr<SwitchUdpPort>> open(const protocol::Endpoint& peer, size_t packet_bytes_max,
                                                     const protocol::JobNumbers& of = {});
  ~SwitchUdpPort() override;
  SwitchUdpPort(const SwitchUdpPort&) = delete;
  SwitchUdpPort& operator=(const SwitchUdpPort&) = delete;

  std::span<uint8_t> room() override;
  void send(size_t bytes, const protocol::Endpoint& to) override;
  /// What send() has gathered goes out; what the system does not take is lost, as on the wire, and counted.
  void flush();
  /// What is there, without waiting; good until the next call.
  std::span<const protocol::ReceivedPacket> receive();
  void wait(TimeNs at_most);
  /// Of all sockets together.
  protocol::UdpBursts::Counters counters() const;
  int descriptor() const;  ///< for a poll: readable where receive() has something
  /// The port's number on this machine, of a lane.
  uint16_t local_port(uint32_t lane = 0) const;

 private:
  SwitchUdpPort(const protocol::JobNumbers& of, size_t packet_bytes_max);
  Status poll_all();

  protocol::JobNumbers of_;
  std::vector<std::unique_ptr<protocol::UdpBursts>> sockets_;  ///< by lane
  // Of several: a packet is written here, since only then its lane is known; what all of them have received.
  std::vector<uint8_t> room_;
  std::vector<protocol::ReceivedPacket> received_;
  int poll_ = -1;  ///< an epoll of all of them
};

/// A step's whole update, and what of the worker's own values is not in it.
struct SwitchStep {
  struct Window {
    uint32_t window = 0;
    int exponent = 0;
    uint64_t contributors = 0;
    size_t first = 0;  ///< of `indices` and `sums`
    size_t last = 0;
  };
  std::vector<Window> windows;    ///< in the order in which they were settled
  std::vector<uint32_t> indices;  ///< of the tensor
  std::vector<int32_t> sums;      ///< x 2^exponent of their window
  std::vector<uint32_t> returned_indices;
  std::vector<float> returned_values;
};

/// Client and socket, steps one at a time, blocking. The table is the caller's: `epoch` is asked now and then what it says.
/// Threads  one at a time.
class SwitchStepper : private SwitchOutcome {
 public:
  using ReadEpoch = std::function<SwitchEpoch()>;

  /// REQUIRES: SwitchClient::validate(options).
  static Result<std::unique_ptr<SwitchStepper>> open(const SwitchClientOptions& options, ReadEpoch epoch);
  ~SwitchStepper() override;

  /// Errors   as SwitchClient::begin_step(); timeout: the step goes on all the same, wait_step() may be called again.
  Result<SwitchStep> run_step(uint32_t step, IndexSpan indices, std::span<const float> values, TimeNs timeout);
  Result<SwitchStep> wait_step(TimeNs timeout);
  /// Answers the others until all have finished.
  Status finish(TimeNs timeout);
  const SwitchClient& client() const { return *client_; }

 private:
  SwitchStepper() = default;
  void settled(const SettledWindow& window) override;
  void step_done(uint32_t step) override;
  /// One round: what came, what is due.
  void turn(TimeNs wait_at_most);
  template <typename Done>
  Status pump(TimeNs timeout, const Done& done);

  ReadEpoch read_epoch_;
  TimeNs epoch_read_at_ = INT64_MIN;
  std::unique_ptr<SwitchUdpPort> port_;
  std::unique_ptr<SwitchClient> client_;
  SwitchStep under_way_;
  bool done_ = false;
};

}  // namespace millrace::worker
