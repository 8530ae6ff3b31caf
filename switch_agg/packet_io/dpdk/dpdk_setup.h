#pragma once

#include <rte_mempool.h>
#include <rte_ring.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/result.h"
#include "switch_agg/packet_io/dpdk/open_dpdk.h"

/// What happens before the first packet: environment, memory, queues, rings. dpdk_port.h is the path of the packets.
namespace millrace::switch_agg {

/// Starts DPDK's environment; a second call in a process returns the result of the first. The calling thread keeps its
/// processors (DPDK would bind it to one).
Status start_dpdk(const DpdkOptions& options);

/// Says how one lane receives and sends frames.
struct DpdkLane {
  uint16_t device = 0;
  /// Empty: the lane receives from its rings only.
  std::optional<uint16_t> queue;
  rte_mempool* pool = nullptr;  ///< of all lanes
  /// Of all lanes: headers alone; none where the device takes frames in one piece only.
  rte_mempool* headers = nullptr;
  uint32_t lane = 0;
  std::vector<rte_ring*> inboxes;  ///< by lane: frames that another lane took; empty where there is one lane
  rte_ring* outbox = nullptr;      ///< frames of the lanes without a queue, which lane 0 sends
  WireAddress self;
  DpdkOptions options;
  /// Of all lanes: the last one stops the device. Empty: no lane stops it.
  std::shared_ptr<const void> device_use{};
};

/// Returns possible causes for a device of that driver that does not open. A sentence's end: empty, or beginning with
/// "; ".
std::string device_advice(const DpdkOptions& options);

/// Stops and closes the device when the last copy is destroyed. Otherwise a driver of the kernel's interfaces leaves a
/// program at its interface (net_af_xdp).
std::shared_ptr<const void> use_device(uint16_t device);

/// Gives a device its memory, queues and rings, and starts it. The memory and the rings stay until the process ends:
/// DPDK's own objects have no owner but the environment.
Result<std::vector<DpdkLane>> set_up_device(uint16_t device, const DpdkOptions& options);

}  // namespace millrace::switch_agg
