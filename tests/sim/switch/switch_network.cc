#include "tests/sim/switch/switch_network.h"

namespace millrace::testing {

void SwitchNetwork::send(uint32_t from, ByteSpan bytes, const protocol::Endpoint& to) {
  ++sent_;
  if (tap_sent_) tap_sent_(from, to.port - 1u, bytes);
  const bool narrow = scenario_.switch_bytes_max != 0 && from < scenario_.switches;
  if (narrow && bytes.size() > scenario_.switch_bytes_max) return;
  const bool rough = scheduler_.now() < scenario_.calm_from;
  if (rough && scheduler_.chance(scenario_.loss)) return;
  ByteBuffer travelling(bytes.begin(), bytes.end());
  if (rough && scheduler_.chance(scenario_.duplication)) schedule(from, to.port - 1u, travelling);
  if (rough && scheduler_.chance(scenario_.corruption)) {
    const uint64_t bit = scheduler_.dice().next_below(travelling.size() * 8);
    travelling[bit / 8] ^= static_cast<uint8_t>(1u << (bit % 8));
  }
  schedule(from, to.port - 1u, std::move(travelling));
}

void SwitchNetwork::schedule(uint32_t from, uint32_t to, ByteBuffer bytes) {
  TimeNs latency = scenario_.in_order ? 70 * kNsPerUs : scheduler_.draw(20 * kNsPerUs, 120 * kNsPerUs);
  if (scheduler_.now() < scenario_.calm_from && scheduler_.chance(scenario_.slow)) {
    latency += scheduler_.draw(0, scenario_.slow_max);
  }
  const uint64_t lost_before = lost_before_[from];
  scheduler_.after(latency, [this, from, to, lost_before, bytes = std::move(bytes)] {
    const auto node = nodes_.find(to);
    if (node == nodes_.end() || lost_before != lost_before_[from]) return;
    bytes_to_[to] += bytes.size();
    if (tap_) tap_(to, bytes);
    node->second({.bytes = ByteSpan(bytes), .from = sim_endpoint(from)});
  });
}

}  // namespace millrace::testing
