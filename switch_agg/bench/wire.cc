#include "switch_agg/bench/wire.h"

#include <algorithm>
#include <vector>

#include "protocol/address/endpoint_text.h"
#include "switch_agg/packet_io/dpdk/open_dpdk.h"
#include "switch_agg/packet_io/memory_port.h"

namespace millrace::switch_agg {
namespace {

constexpr uint16_t kFirstPort = 10'000;  ///< worker w has UDP port kFirstPort + w
constexpr uint16_t kSwitchPort = 7700;
constexpr Ipv4Address kSwitchIp = {10, 0, 0, 1};

Ipv4Address ip_of(uint16_t worker) { return {10, 0, 1, static_cast<uint8_t>(worker)}; }

class MemoryWire final : public BenchWire {
 public:
  explicit MemoryWire(size_t packet_bytes_max)
      : slot_bytes_(packet_bytes_max),
        staged_(packet_bytes_max * kBenchWirePackets),
        port_(
            {.packet_bytes_max = packet_bytes_max, .arriving_max = kBenchWirePackets, .sent_max = kBenchWirePackets}) {}

  PacketPort& port() override { return port_; }

  bool inject(ByteSpan datagram, uint16_t worker) override {
    if (datagram.size() > slot_bytes_) return false;
    uint8_t* const at = staged_.data() + next_ * slot_bytes_;
    if (!port_.inject({at, datagram.size()},
                      {protocol::mapped_address(ip_of(worker)), static_cast<uint16_t>(kFirstPort + worker)}))
      return false;
    std::copy_n(datagram.data(), datagram.size(), at);
    next_ = (next_ + 1) % kBenchWirePackets;
    return true;
  }

  void take(const std::function<void(ByteSpan, uint16_t)>& taker) override {
    for (const MemoryPort::Sent& sent : port_.sent())
      taker(sent.bytes, static_cast<uint16_t>(sent.to.port - kFirstPort));
    port_.clear_sent();
  }

 private:
  size_t slot_bytes_;
  std::vector<uint8_t> staged_;
  size_t next_ = 0;
  MemoryPort port_;
};

/// One lane's queue of a wire that all lanes share.
class RingBenchWire final : public BenchWire {
 public:
  RingBenchWire(std::shared_ptr<DpdkRingWire> wire, uint32_t lane) : wire_(std::move(wire)), lane_(lane) {}

  PacketPort& port() override { return *wire_->ports()[lane_]; }
  void enter_thread() override { port().enter_thread(); }

  bool inject(ByteSpan datagram, uint16_t worker) override {
    frame_.resize(kUdpHeadersBytes + datagram.size());
    std::ranges::copy(datagram, frame_.begin() + kUdpHeadersBytes);
    const MacAddress mac = {0x02, 0, 0, 0, 1, static_cast<uint8_t>(worker)};
    build_udp_headers({{mac, ip_of(worker)}, wire_->address(), static_cast<uint16_t>(kFirstPort + worker), kSwitchPort},
                      frame_);
    return wire_->inject_frame(frame_, lane_);
  }

  void take(const std::function<void(ByteSpan, uint16_t)>& taker) override {
    wire_->take_frames(lane_, [&](ByteSpan frame) {
      const auto udp = parse_udp_frame(frame);
      if (udp) taker(udp->payload, static_cast<uint16_t>(udp->to_port - kFirstPort));
    });
  }

 private:
  std::shared_ptr<DpdkRingWire> wire_;
  uint32_t lane_;
  std::vector<uint8_t> frame_;
};

}  // namespace

Result<std::vector<std::unique_ptr<BenchWire>>> open_bench_wires(const std::string& pmd, size_t packet_bytes_max,
                                                                 uint32_t lanes) {
  std::vector<std::unique_ptr<BenchWire>> wires;
  if (pmd == "memory") {
    for (uint32_t lane = 0; lane < lanes; ++lane) wires.push_back(std::make_unique<MemoryWire>(packet_bytes_max));
    return wires;
  }
  auto wire = DpdkRingWire::open({.address = kSwitchIp,
                                  .port = kSwitchPort,
                                  .lanes = lanes,
                                  .packet_bytes_max = packet_bytes_max,
                                  .memory_mib = 512},
                                 lanes);
  if (!wire) return std::unexpected(wire.error());
  const std::shared_ptr<DpdkRingWire> shared = std::move(*wire);
  for (uint32_t lane = 0; lane < lanes; ++lane) wires.push_back(std::make_unique<RingBenchWire>(shared, lane));
  return wires;
}

}  // namespace millrace::switch_agg
