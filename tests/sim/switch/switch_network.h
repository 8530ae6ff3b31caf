#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "protocol/datagram/packet_sink.h"
#include "tests/sim/switch/switch_sim.h"
#include "tests/support/sim_scheduler.h"

namespace millrace::testing {

inline protocol::Endpoint sim_endpoint(uint32_t node) {
  protocol::Endpoint out;
  out.address[15] = 1;
  out.port = static_cast<uint16_t>(1 + node);
  return out;
}

/// Packets between numbered nodes: as UDP does it, and worse.
class SwitchNetwork {
 public:
  using Deliver = std::function<void(const protocol::ReceivedPacket&)>;

  SwitchNetwork(SimScheduler& scheduler, const SwitchScenario& scenario) : scheduler_(scheduler), scenario_(scenario) {}

  void attach(uint32_t node, Deliver deliver) { nodes_[node] = std::move(deliver); }
  void detach(uint32_t node) { nodes_.erase(node); }
  /// Loses all packets that are under way from that node.
  void lose_from(uint32_t node) { ++lost_before_[node]; }
  /// Shown every packet that is handed over.
  void tap(std::function<void(uint32_t to, ByteSpan packet)> listener) { tap_ = std::move(listener); }
  /// Shown every packet that is sent.
  void tap_sent(std::function<void(uint32_t from, uint32_t to, ByteSpan packet)> listener) {
    tap_sent_ = std::move(listener);
  }
  uint64_t sent() const { return sent_; }
  /// Of packets handed over at that node.
  uint64_t bytes_to(uint32_t node) const {
    const auto found = bytes_to_.find(node);
    return found == bytes_to_.end() ? 0 : found->second;
  }

  void send(uint32_t from, ByteSpan bytes, const protocol::Endpoint& to);

 private:
  void schedule(uint32_t from, uint32_t to, ByteBuffer bytes);

  SimScheduler& scheduler_;
  const SwitchScenario& scenario_;
  std::map<uint32_t, Deliver> nodes_;
  std::map<uint32_t, uint64_t> lost_before_;
  std::map<uint32_t, uint64_t> bytes_to_;
  std::function<void(uint32_t, ByteSpan)> tap_;
  std::function<void(uint32_t, uint32_t, ByteSpan)> tap_sent_;
  uint64_t sent_ = 0;
};

/// A node's way out.
class SimSink : public protocol::PacketSink {
 public:
  SimSink(SwitchNetwork& network, uint32_t node, size_t packet_bytes)
      : network_(network), node_(node), room_(packet_bytes) {}
  std::span<uint8_t> room() override { return room_; }
  void send(size_t bytes, const protocol::Endpoint& to) override {
    network_.send(node_, ByteSpan(room_).first(bytes), to);
  }

 private:
  SwitchNetwork& network_;
  uint32_t node_;
  std::vector<uint8_t> room_;
};

}  // namespace millrace::testing
