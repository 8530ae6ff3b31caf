#include <fmt/format.h>
#include <rte_errno.h>
#include <rte_eth_ring.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>

#include <algorithm>
#include <array>
#include <atomic>

#include "switch_agg/dpdk_port.h"
#include "switch_agg/dpdk_ports.h"
#include "switch_agg/dpdk_setup.h"

namespace millrace::switch_agg {
namespace {

constexpr unsigned kRingFrames = 4096;

class RingWire final : public DpdkRingWire {
 public:
  RingWire(rte_ring* to_ports, rte_ring* from_ports, std::vector<DpdkLane> lanes)
      : to_ports_(to_ports), from_ports_(from_ports), address_(lanes.front().self), pool_(lanes.front().pool) {
    for (DpdkLane& lane : lanes) ports_.push_back(std::make_unique<DpdkPort>(std::move(lane)));
  }

  WireAddress address() const override { return address_; }
  std::vector<std::unique_ptr<PacketPort>>& ports() override { return ports_; }

  bool inject_frame(ByteSpan frame) override {
    rte_mbuf* const copy = rte_pktmbuf_alloc(pool_);
    if (copy == nullptr) return false;
    char* const data = rte_pktmbuf_append(copy, static_cast<uint16_t>(frame.size()));
    if (data != nullptr) std::copy_n(frame.data(), frame.size(), rte_pktmbuf_mtod(copy, uint8_t*));
    if (data == nullptr || rte_ring_sp_enqueue(to_ports_, copy) != 0) {
      rte_pktmbuf_free(copy);
      return false;
    }
    return true;
  }

  void take_frames(const std::function<void(ByteSpan)>& take) override {
    void* object = nullptr;
    while (rte_ring_sc_dequeue(from_ports_, &object) == 0) {
      auto* const frame = static_cast<rte_mbuf*>(object);
      const uint32_t bytes = rte_pktmbuf_pkt_len(frame);
      frame_.resize(bytes);  // for frames in pieces
      take({static_cast<const uint8_t*>(rte_pktmbuf_read(frame, 0, bytes, frame_.data())), bytes});
      rte_pktmbuf_free(frame);
    }
  }

 private:
  rte_ring* to_ports_;
  rte_ring* from_ports_;
  WireAddress address_;
  rte_mempool* pool_;
  std::vector<uint8_t> frame_;
  std::vector<std::unique_ptr<PacketPort>> ports_;
};

}  // namespace

Result<std::unique_ptr<DpdkRingWire>> DpdkRingWire::open(const DpdkOptions& options) {
  DpdkOptions without_device = options;
  without_device.device.clear();
  if (const Status started = start_dpdk(without_device); !started) return std::unexpected(started.error());
  static std::atomic<unsigned> wires = 0;
  const unsigned number = wires.fetch_add(1);
  std::array<rte_ring*, 2> rings{};
  for (size_t way = 0; way < rings.size(); ++way) {
    rings[way] = rte_ring_create(fmt::format("mr_wire_{}_{}", number, way).c_str(), kRingFrames, SOCKET_ID_ANY,
                                 RING_F_SP_ENQ | RING_F_SC_DEQ);
    if (rings[way] == nullptr)
      return fail(ErrorCode::kIo, fmt::format("DPDK has no memory for a ring: {}", rte_strerror(rte_errno)));
  }
  const int device =
      rte_eth_from_rings(fmt::format("net_ring_wire{}", number).c_str(), &rings[0], 1, &rings[1], 1, SOCKET_ID_ANY);
  if (device < 0) return fail(ErrorCode::kIo, fmt::format("DPDK made no net_ring: {}", rte_strerror(rte_errno)));
  Result<std::vector<DpdkLane>> lanes = set_up_device(static_cast<uint16_t>(device), without_device);
  if (!lanes) return std::unexpected(lanes.error());
  // The driver's own address is all zeros, which no host has.
  for (DpdkLane& lane : *lanes) lane.self.mac = {0x02, 0, 0, 0, 0, 0x01};
  return std::make_unique<RingWire>(rings[0], rings[1], std::move(*lanes));
}

}  // namespace millrace::switch_agg
