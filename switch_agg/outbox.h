#pragma once

#include <cstring>
#include <span>

#include "kernels/base/clock.h"
#include "protocol/datagram/packet_sink.h"
#include "switch_agg/aggregator_counters.h"

namespace millrace::switch_agg {

/// What happens to one job is counted for it and for all together.
struct EventBook {
  AggregatorCounters* total = nullptr;
  AggregatorCounters* job = nullptr;

  void add(AggregatorEvent event, uint64_t times = 1) const {
    total->add(event, times);
    if (job != nullptr) job->add(event, times);
  }
};

/// The time and the way out of one call: lives as long as that call.
class Outbox {
 public:
  Outbox(protocol::PacketSink& sink, TimeNs now, EventBook book) : sink_(&sink), now_(now), book_(book) {}

  TimeNs now() const { return now_; }
  void count(AggregatorEvent event, uint64_t times = 1) const { book_.add(event, times); }

  /// Room for a packet of so many bytes; empty where there is none: counted, and lost as if the wire had lost it.
  std::span<uint8_t> room(size_t bytes) const {
    const std::span<uint8_t> room = sink_->room();
    if (room.size() >= bytes) return room;
    count(AggregatorEvent::kNoRoom);
    return {};
  }
  /// For who signs and sends by itself; it counts what it sent.
  protocol::PacketSink& sink() const { return *sink_; }
  /// Sends the first bytes of the last room.
  void send(size_t bytes, const protocol::Endpoint& to) const {
    sink_->send(bytes, to);
    count(AggregatorEvent::kSent);
  }
  void send_copy(std::span<const uint8_t> packet, const protocol::Endpoint& to) const {
    const std::span<uint8_t> to_room = room(packet.size());
    if (to_room.empty()) return;
    std::memcpy(to_room.data(), packet.data(), packet.size());
    send(packet.size(), to);
  }
  /// The same bytes to all of these.
  void send_to_each(std::span<const uint8_t> packet, std::span<const protocol::Endpoint> to) const {
    const size_t sent = sink_->send_to_each(packet, to);
    count(AggregatorEvent::kSent, sent);
    if (sent != to.size()) count(AggregatorEvent::kNoRoom, to.size() - sent);
  }

 private:
  protocol::PacketSink* sink_;
  TimeNs now_;
  EventBook book_;
};

}  // namespace millrace::switch_agg
