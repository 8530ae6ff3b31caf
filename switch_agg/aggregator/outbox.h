#pragma once

#include <cstring>
#include <span>

#include "kernels/base/clock.h"
#include "protocol/datagram/packet_sink.h"
#include "switch_agg/aggregator/aggregator_counters.h"

namespace millrace::switch_agg {

/// Counts a job's events, for the job and for all jobs together.
struct EventBook {
  AggregatorCounters* total = nullptr;
  AggregatorCounters* job = nullptr;

  void add(AggregatorEvent event, uint64_t times = 1) const {
    total->add(event, times);
    if (job != nullptr) job->add(event, times);
  }
};

/// Holds the time and the sink of one call; valid during that call.
class Outbox {
 public:
  /// handled  the packet that the call handles; of tick(): none.
  Outbox(protocol::PacketSink& sink, TimeNs now, EventBook book, const protocol::ReceivedPacket& handled = {})
      : sink_(&sink), now_(now), book_(book), ecn_(handled.ecn), handled_bytes_(handled.bytes.size()) {}

  TimeNs now() const { return now_; }
  /// Returns the ECN mark of the packet that this call handles.
  protocol::Ecn ecn() const { return ecn_; }
  /// Returns that packet's UDP payload: the datagram, and bytes behind it (S2.2).
  size_t handled_bytes() const { return handled_bytes_; }
  void set_ecn(protocol::Ecn ecn) const { sink_->set_ecn(ecn); }
  void count(AggregatorEvent event, uint64_t times = 1) const { book_.add(event, times); }

  /// Returns room for a packet of `bytes`. Empty: there is none. That is counted, and the packet is lost as if on the
  /// wire.
  std::span<uint8_t> room(size_t bytes) const {
    const std::span<uint8_t> room = sink_->room();
    if (room.size() >= bytes) return room;
    count(AggregatorEvent::kNoRoom);
    return {};
  }
  /// Sends the first bytes of the last room.
  void send(size_t bytes, const protocol::Endpoint& to) const {
    sink_->send(bytes, to);
    count_sent(1, bytes);
  }
  void send_copy(std::span<const uint8_t> packet, const protocol::Endpoint& to) const {
    const std::span<uint8_t> to_room = room(packet.size());
    if (to_room.empty()) return;
    std::memcpy(to_room.data(), packet.data(), packet.size());
    send(packet.size(), to);
  }
  /// Sends the same bytes to all receivers.
  void send_to_each(std::span<const uint8_t> packet, std::span<const protocol::Endpoint> to) const {
    const size_t sent = sink_->send_to_each(packet, to);
    count_sent(sent, sent * packet.size());
    if (sent != to.size()) count(AggregatorEvent::kNoRoom, to.size() - sent);
  }

 private:
  void count_sent(size_t packets, size_t bytes) const {
    count(AggregatorEvent::kSent, packets);
    count(AggregatorEvent::kSentBytes, bytes);
  }

  protocol::PacketSink* sink_;
  TimeNs now_;
  EventBook book_;
  protocol::Ecn ecn_;
  size_t handled_bytes_;
};

/// Sends for a component that signs and sends by itself (protocol::SwitchLink). Counts its packets as all others.
class CountedSink final : public protocol::PacketSink {
 public:
  /// out  outlives this.
  explicit CountedSink(const Outbox& out) : out_(&out) {}

  std::span<uint8_t> room() override { return out_->room(1); }
  void send(size_t bytes, const protocol::Endpoint& to) override { out_->send(bytes, to); }

 private:
  const Outbox* out_;
};

}  // namespace millrace::switch_agg
