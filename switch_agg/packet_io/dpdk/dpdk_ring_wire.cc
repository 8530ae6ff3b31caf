#include <fmt/format.h>
#include <rte_errno.h>
#include <rte_eth_ring.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>

#include <algorithm>
#include <atomic>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "switch_agg/packet_io/dpdk/dpdk_port.h"
#include "switch_agg/packet_io/dpdk/dpdk_setup.h"
#include "switch_agg/packet_io/dpdk/open_dpdk.h"

namespace millrace::switch_agg {
namespace {

constexpr unsigned kRingFrames = 4096;

/// Both ways of one queue, and a buffer for frames in pieces.
struct RingPair {
  rte_ring* to_port = nullptr;
  rte_ring* from_port = nullptr;
  std::vector<uint8_t> frame{};
};

class RingWire final : public DpdkRingWire {
 public:
  RingWire(std::vector<RingPair> queues, std::vector<DpdkLane> lanes)
      : queues_(std::move(queues)), address_(lanes.front().self), pool_(lanes.front().pool) {
    for (DpdkLane& lane : lanes) ports_.push_back(std::make_unique<DpdkPort>(std::move(lane)));
  }

  WireAddress address() const override { return address_; }
  std::vector<std::unique_ptr<PacketPort>>& ports() override { return ports_; }

  bool inject_frame(ByteSpan frame, uint32_t queue) override {
    rte_mbuf* const copy = rte_pktmbuf_alloc(pool_);
    if (copy == nullptr) return false;
    char* const data = rte_pktmbuf_append(copy, static_cast<uint16_t>(frame.size()));
    if (data != nullptr) std::copy_n(frame.data(), frame.size(), rte_pktmbuf_mtod(copy, uint8_t*));
    if (data == nullptr || rte_ring_sp_enqueue(queues_[queue].to_port, copy) != 0) {
      rte_pktmbuf_free(copy);
      return false;
    }
    return true;
  }

  void take_frames(uint32_t queue, const std::function<void(ByteSpan)>& take) override {
    RingPair& rings = queues_[queue];
    void* object = nullptr;
    while (rte_ring_sc_dequeue(rings.from_port, &object) == 0) {
      auto* const frame = static_cast<rte_mbuf*>(object);
      const uint32_t bytes = rte_pktmbuf_pkt_len(frame);
      rings.frame.resize(bytes);
      take({static_cast<const uint8_t*>(rte_pktmbuf_read(frame, 0, bytes, rings.frame.data())), bytes});
      rte_pktmbuf_free(frame);
    }
  }

 private:
  std::vector<RingPair> queues_;
  WireAddress address_;
  rte_mempool* pool_;
  std::vector<std::unique_ptr<PacketPort>> ports_;
};

/// Null where DPDK has no memory.
rte_ring* make_ring(unsigned wire, uint32_t queue, std::string_view way) {
  return rte_ring_create(fmt::format("mr_wire_{}_{}_{}", wire, queue, way).c_str(), kRingFrames, SOCKET_ID_ANY,
                         RING_F_SP_ENQ | RING_F_SC_DEQ);
}

}  // namespace

Result<std::unique_ptr<DpdkRingWire>> DpdkRingWire::open(const DpdkOptions& options, uint32_t queues) {
  MILLRACE_CHECK(queues >= 1 && queues <= options.lanes, queues, options.lanes);
  DpdkOptions without_device = options;
  without_device.device.clear();
  if (const Status started = start_dpdk(without_device); !started) return std::unexpected(started.error());
  static std::atomic<unsigned> wires = 0;
  const unsigned number = wires.fetch_add(1);
  std::vector<RingPair> pairs;
  std::vector<rte_ring*> to_ports;
  std::vector<rte_ring*> from_ports;
  for (uint32_t queue = 0; queue < queues; ++queue) {
    to_ports.push_back(make_ring(number, queue, "in"));
    from_ports.push_back(make_ring(number, queue, "out"));
    if (to_ports.back() == nullptr || from_ports.back() == nullptr)
      return fail(ErrorCode::kIo, fmt::format("DPDK has no memory for a ring: {}", rte_strerror(rte_errno)));
    pairs.push_back({.to_port = to_ports.back(), .from_port = from_ports.back()});
  }
  const int device = rte_eth_from_rings(fmt::format("net_ring_wire{}", number).c_str(), to_ports.data(), queues,
                                        from_ports.data(), queues, SOCKET_ID_ANY);
  if (device < 0) return fail(ErrorCode::kIo, fmt::format("DPDK made no net_ring: {}", rte_strerror(rte_errno)));
  Result<std::vector<DpdkLane>> lanes = set_up_device(static_cast<uint16_t>(device), without_device);
  if (!lanes) return std::unexpected(lanes.error());
  // The driver's own address is all zeros, which no host has.
  for (DpdkLane& lane : *lanes) lane.self.mac = {0x02, 0, 0, 0, 0, 0x01};
  return std::make_unique<RingWire>(std::move(pairs), std::move(*lanes));
}

}  // namespace millrace::switch_agg
