#pragma once

#include <cstdint>

#include "kernels/base/clock.h"
#include "protocol/datagram/packet_sink.h"
#include "protocol/datagram/switch_link.h"

namespace millrace::worker {

struct SwitchProbeOptions {
  protocol::SwitchLink::Identity identity{};  ///< with a nonce_seed of its own
  protocol::Endpoint at{};                    ///< the switch
  TimeNs hold = 5 * kNsPerS;                  ///< it has to answer for so long
  TimeNs every = 200 * kNsPerMs;
  uint32_t doublings_max = 5;
};

/// Whether the switch that a job has left answers again (S6.7), and for long enough to go back to it: a pure state
/// machine. It asks who is there (CHALREQ) and believes an authentic CHALLENGE that answers the very question. Three
/// questions without an answer, or another life of the switch, begin the time anew.
///
/// A job that falls back again and again would spend its time in changes of epoch: each fallback doubles the time, and
/// a stay at the switch of eight times it takes one doubling back.
/// Threads  one at a time.
class SwitchProbe {
 public:
  explicit SwitchProbe(const SwitchProbeOptions& options);

  /// The job's path is a shard from now on. fell_back: it was the switch before.
  enum class Cause : uint8_t { kFellBack, kBegan };
  void start(Cause cause, TimeNs now);
  /// The job's path is the switch.
  void stop(TimeNs now);

  /// It asks; else no packet is for it.
  bool probes() const { return probing_; }
  /// False: the packet is none of the switch's answers to this probe; it may be somebody else's.
  bool receive(const protocol::Datagram& datagram, TimeNs now);
  void tick(TimeNs now, protocol::PacketSink& sink);
  TimeNs next_deadline() const;

  /// It has answered for as long as it must.
  bool answers(TimeNs now) const;
  /// As long as it must answer at present.
  TimeNs hold() const { return options_.hold << doublings_; }

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
