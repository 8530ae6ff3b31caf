#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/clock.h"
#include "protocol/messages/messages.h"
#include "tests/support/sim_scheduler.h"

namespace millrace::testing {

/// The faults that the network applies to a message. All zero: perfect, in order, latency_min.
struct SimLinkFaults {
  TimeNs latency_min = 50 * kNsPerUs;
  TimeNs latency_max = 50 * kNsPerUs;
  double slow = 0;  ///< share of messages that take up to slow_max more
  TimeNs slow_max = 0;
  double loss = 0;
  double duplication = 0;
  double corruption = 0;  ///< share of payloads in which one bit flips
  bool in_order = true;   ///< per direction, as TCP; false: latency reorders
};

/// Carries messages between numbered nodes, with loss, duplication, delay, reordering and partitions. The simulation
/// assigns the nodes. A delivery runs the sender's closure, so that the network depends on neither workers nor shards.
class SimNetwork {
 public:
  using Deliver = std::function<void(protocol::Message)>;

  SimNetwork(SimScheduler& scheduler, uint32_t nodes)
      : scheduler_(scheduler), nodes_(nodes), blocked_until_(nodes * nodes, 0) {}

  void set_faults(const SimLinkFaults& faults) { faults_ = faults; }
  const SimLinkFaults& faults() const { return faults_; }

  /// Every message becomes bytes and a message again on its way (encode_envelope, decode_message), its payload a copy.
  void set_real_bytes(bool real_bytes) { real_bytes_ = real_bytes; }

  /// Nothing goes from `from` to `to` until then (one direction).
  void block(uint32_t from, uint32_t to, TimeNs until);
  bool blocked(uint32_t from, uint32_t to) const { return blocked_until_[from * nodes_ + to] > scheduler_.now(); }

  void send(uint32_t from, uint32_t to, const protocol::Message& message, const Deliver& deliver);

  /// A trip's time of a message that is not lost: connection set-up and the like.
  TimeNs draw_latency();

  uint64_t sent() const { return sent_; }
  uint64_t lost() const { return lost_; }
  /// Messages whose own bytes did not decode to a message: a fault of the codec of messages.
  const std::vector<std::string>& byte_faults() const { return byte_faults_; }

 private:
  void schedule(uint32_t from, uint32_t to, protocol::Message message, const Deliver& deliver);
  protocol::Message through_bytes(const protocol::Message& message);

  SimScheduler& scheduler_;
  uint32_t nodes_;
  SimLinkFaults faults_;
  bool real_bytes_ = false;
  std::vector<TimeNs> blocked_until_;
  std::map<std::pair<uint32_t, uint32_t>, TimeNs> last_arrival_;
  uint64_t sent_ = 0;
  uint64_t lost_ = 0;
  std::vector<std::string> byte_faults_;
};

/// One line about a message: traces.
std::string describe_message(const protocol::Message& message);

/// A number for a message's identity: the run's fingerprint.
uint64_t fingerprint(const protocol::Message& message);

}  // namespace millrace::testing
