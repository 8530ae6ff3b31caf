#include "switch_agg/bench/load_generator.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "kernels/base/clock.h"
#include "switch_agg/bench/traffic.h"
#include "switch_agg/packet_io/udp_port.h"

namespace millrace::switch_agg {
namespace {

constexpr TimeNs kLoadTimeout = 20 * kNsPerMs;
/// Time for which it polls for answers before it sleeps. Waking it costs time on the measured core.
constexpr TimeNs kSpin = kNsPerMs;
constexpr int kJoinWaitMs = 400;
constexpr int kJoinTries = 3;

/// All workers behind one socket.
class SocketEnd final : public BenchEnd {
 public:
  SocketEnd(UdpPort& port, const protocol::Endpoint& to) : port_(port), to_(to) {}

  bool inject(ByteSpan datagram, uint16_t) override {
    const std::span<uint8_t> room = port_.room();
    if (room.size() < datagram.size()) return false;
    std::ranges::copy(datagram, room.begin());
    port_.send(datagram.size(), to_);
    port_.flush();
    return true;
  }
  /// Collects answers, which arrive one by one, until there are `packets`, or kJoinWaitMs pass without one.
  void gather(size_t packets) {
    while (gathered_.size() < packets) {
      port_.wait(kJoinWaitMs);
      const auto burst = port_.receive();
      if (burst.empty()) return;
      for (const protocol::ReceivedPacket& packet : burst)
        gathered_.emplace_back(packet.bytes.begin(), packet.bytes.end());
    }
  }
  void take(const std::function<void(ByteSpan, uint16_t)>& taker) override {
    for (const ByteBuffer& packet : std::exchange(gathered_, {})) taker(packet, protocol::kAllWorkers);
  }

 private:
  std::vector<ByteBuffer> gathered_;
  UdpPort& port_;
  protocol::Endpoint to_;
};

class Load {
 public:
  Load(const LoadOptions& options, UdpPort& port)
      : options_(options),
        port_(port),
        workers_({bench_job(options.workers, options.slots, options.window_indices, options.job),
                  entries_in(options.window_indices, options.density), options.packet_bytes, 1,
                  options.apart ? BenchDraw::kOwn : BenchDraw::kSame}),
        slots_(options.slots) {}

  Status join() {
    if (options_.echo) {
      workers_.sign_for_nobody();
      return {};
    }
    SocketEnd end(port_, options_.to);
    Status joined;
    for (int tries = 0; tries < kJoinTries; ++tries) {  // a packet may be lost
      joined = workers_.join(end, [&] { end.gather(options_.workers); });
      if (joined) break;
      end.gather(SIZE_MAX);  // a late answer does not belong to the next try
      end.take([](ByteSpan, uint16_t) {});
    }
    return joined;
  }
  LoadReport run();

  /// The payloads of all turns of a slot: only headers differ from turn to turn.
  void make_packets() {
    for (uint32_t slot = 0; slot < static_cast<uint16_t>(options_.slots); ++slot) {
      slots_[slot].first_packet = packets_.size();
      workers_.append(1, static_cast<uint16_t>(slot), packets_);
    }
  }

 private:
  struct SlotState {
    size_t first_packet = 0;
    uint64_t turn = 0;
    /// Packets of the turn that are to come; 0: a result's last one has yet to say how many it has.
    uint32_t awaited = 0;
    uint32_t taken = 0;     ///< packets of the turn that have come
    bool is_again = false;  ///< the turn was sent again
    TimeNs resend_at = 0;
  };
  void send_turn(uint16_t slot, TimeNs now);
  void take(ByteSpan packet, TimeNs now);

  LoadOptions options_;
  UdpPort& port_;
  BenchWorkers workers_;
  PacketList packets_;
  std::vector<SlotState> slots_;
  LoadReport report_;
};

void Load::send_turn(uint16_t slot, TimeNs now) {
  SlotState& state = slots_[slot];
  state.resend_at = now + kLoadTimeout;
  state.taken = 0;
  const size_t end = slot + size_t{1} < slots_.size() ? slots_[slot + 1].first_packet : packets_.size();
  for (size_t at = state.first_packet; at < end; ++at) {
    const ByteSpan made = packets_[at];
    const std::span<uint8_t> room = port_.room();
    std::ranges::copy(made, room.begin());
    const auto datagram = protocol::parse_datagram(made);
    protocol::DatagramHeader header = workers_.header_of(state.turn, slot);
    header.flags = datagram->header.flags;
    header.fragment = datagram->header.fragment;
    header.worker = datagram->header.worker;
    header.entries = datagram->header.entries;
    header.payload_bytes = datagram->header.payload_bytes;
    header.index_codec = datagram->header.index_codec;
    header.value_codec = datagram->header.value_codec;
    port_.send(workers_.seal(header, room), options_.to);
    ++report_.sent;
  }
  state.awaited = options_.echo ? static_cast<uint32_t>(end - state.first_packet) : 0;
}

void Load::take(ByteSpan packet, TimeNs now) {
  const auto datagram = protocol::parse_datagram(packet);
  const auto expected = options_.echo ? protocol::DatagramType::kContribution : protocol::DatagramType::kResult;
  if (!datagram || datagram->header.type != expected || datagram->header.slot >= slots_.size()) return;
  ++report_.received;
  SlotState& state = slots_[datagram->header.slot];
  if (datagram->header.turn != state.turn) return;
  ++state.taken;
  const bool is_last = (datagram->header.flags & protocol::datagram_flag::kLast) != 0;
  if (!options_.echo && is_last) {
    // After a retransmission one copy of a retained result suffices.
    state.awaited = state.is_again ? state.taken : (datagram->header.fragment + 1u) * options_.workers;
  }
  if (state.awaited == 0 || state.taken < state.awaited) return;
  ++report_.turns;
  ++state.turn;
  state.is_again = false;
  send_turn(datagram->header.slot, now);
}

LoadReport Load::run() {
  const TimeNs begun = monotonic_now_ns();
  const auto until = begun + static_cast<TimeNs>(options_.seconds * static_cast<double>(kNsPerS));
  for (uint16_t slot = 0; slot < static_cast<uint16_t>(options_.slots); ++slot) {
    slots_[slot].turn = 1;
    send_turn(slot, begun);
  }
  TimeNs now = begun;
  TimeNs look_at = begun;
  TimeNs heard_at = begun;
  while (now < until) {
    port_.flush();
    const auto burst = port_.receive();
    now = monotonic_now_ns();
    for (const protocol::ReceivedPacket& packet : burst) take(packet.bytes, now);
    if (!burst.empty()) heard_at = now;
    if (now - heard_at > kSpin) port_.wait(1);
    if (now < look_at) continue;
    look_at = now + kLoadTimeout / 4;
    for (uint16_t slot = 0; slot < static_cast<uint16_t>(options_.slots); ++slot) {
      if (now < slots_[slot].resend_at) continue;
      ++report_.resent;
      slots_[slot].is_again = true;
      send_turn(slot, now);
    }
  }
  report_.seconds = static_cast<double>(now - begun) / static_cast<double>(kNsPerS);
  report_.packets_s = static_cast<double>(report_.received) / report_.seconds;
  report_.contribution_packets_s = static_cast<double>(report_.turns) * static_cast<double>(packets_.size()) /
                                   static_cast<double>(slots_.size()) / report_.seconds;
  return report_;
}

}  // namespace

Result<LoadReport> run_load(const LoadOptions& options) {
  // Results are as long as the switch's packets are, not as its workers'.
  auto port = UdpPort::open({.listen = options.from, .packet_bytes_max = options.packet_bytes > 1472 ? 8972u : 1472u});
  if (!port) return std::unexpected(port.error());
  Load load(options, **port);
  if (const Status joined = load.join(); !joined) return std::unexpected(joined.error());
  load.make_packets();
  return load.run();
}

std::string load_json(const LoadOptions& options, const LoadReport& report) {
  const nlohmann::ordered_json json = {{"echo", options.echo},
                                       {"apart", options.apart},
                                       {"workers", options.workers},
                                       {"slots", options.slots},
                                       {"window_indices", options.window_indices},
                                       {"packet_bytes", options.packet_bytes},
                                       {"density", options.density},
                                       {"seconds", report.seconds},
                                       {"sent", report.sent},
                                       {"received", report.received},
                                       {"turns", report.turns},
                                       {"resent", report.resent},
                                       {"packets_s", report.packets_s},
                                       {"contribution_packets_s", report.contribution_packets_s}};
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace millrace::switch_agg
