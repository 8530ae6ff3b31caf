#pragma once

#include <cstdint>

#include "kernels/base/clock.h"
#include "protocol/datagram/packet_sink.h"
#include "protocol/datagram/switch_link.h"

namespace millrace::worker {

struct SwitchProbeOptions {
  protocol::SwitchLink::Identity identity{};  ///< with a nonce_seed of its own
  protocol::Endpoint at{};                    ///< the switch
  /// The time for which the switch must answer.
  TimeNs observation_time = 5 * kNsPerS;
  TimeNs every = 200 * kNsPerMs;
  uint32_t doublings_max = 5;
};

/// Finds out whether the switch that a job has left answers again (S6.7), and for long enough to return to it: a pure
/// state machine. It sends CHALREQ, and accepts only an authentic CHALLENGE that answers its last CHALREQ. Three
/// requests without an answer, or another incarnation of the switch, restart the time.
///
/// Repeated fallbacks would cost a job much time in changes of epoch. So each fallback doubles the time. A stay at the
/// switch of eight times that time takes one doubling back.
/// Threads  one at a time.
class SwitchProbe {
 public:
  explicit SwitchProbe(const SwitchProbeOptions& options);

  /// The job's path is a shard from now on. fell_back: it was the switch before.
  enum class Cause : uint8_t { kFellBack, kBegan };
  void start(Cause cause, TimeNs now);
  /// Stops the probe: the job's path is the switch.
  void stop(TimeNs now);

  /// Says whether it asks; otherwise no packet is for it.
  bool probes() const { return probing_; }
  /// Takes a packet. Returns false where it is none of the switch's answers to this probe.
  bool receive(const protocol::Datagram& datagram, TimeNs now);
  void tick(TimeNs now, protocol::PacketSink& sink);
  TimeNs next_deadline() const;

  /// Says that the switch has answered for the required time.
  bool answers(TimeNs now) const;
  /// As long as it must answer at present.
  TimeNs observation_time() const { return options_.observation_time << doublings_; }

 private:
  bool stale(TimeNs now) const;

  SwitchProbeOptions options_;
  protocol::SwitchLink link_;
  bool probing_ = false;
  TimeNs ask_at_ = 0;
  TimeNs answering_since_ = 0;
  TimeNs answered_at_ = 0;  ///< 0: not since start()
  TimeNs at_switch_since_ = 0;
  uint32_t doublings_ = 0;
};

}  // namespace millrace::worker
