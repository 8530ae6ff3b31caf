#include "switch_agg/packet_io/dpdk/open_dpdk.h"

#include <fmt/format.h>
#include <rte_ethdev.h>
#include <rte_version.h>

#include "switch_agg/packet_io/dpdk/dpdk_port.h"
#include "switch_agg/packet_io/dpdk/dpdk_setup.h"

namespace millrace::switch_agg {

std::string_view dpdk_version() {
  constexpr std::string_view kPrefix = "DPDK ";
  const std::string_view version = rte_version();
  return version.starts_with(kPrefix) ? version.substr(kPrefix.size()) : version;
}

Result<std::vector<std::unique_ptr<PacketPort>>> open_dpdk_ports(const DpdkOptions& options) {
  if (const Status started = start_dpdk(options); !started) return std::unexpected(started.error());
  const uint64_t device = rte_eth_find_next(0);
  if (device >= RTE_MAX_ETHPORTS) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("DPDK found no device '{}': give a driver and its arguments, as net_af_packet,iface=eth1, or "
                    "a PCI address bound to vfio-pci; its own words are above{}",
                    options.device, device_advice(options)));
  }
  const std::shared_ptr<const void> use = use_device(static_cast<uint16_t>(device));
  Result<std::vector<DpdkLane>> lanes = set_up_device(static_cast<uint16_t>(device), options);
  if (!lanes) return std::unexpected(lanes.error());
  std::vector<std::unique_ptr<PacketPort>> ports;
  for (DpdkLane& lane : *lanes) {
    lane.device_use = use;
    ports.push_back(std::make_unique<DpdkPort>(std::move(lane)));
  }
  return ports;
}

}  // namespace millrace::switch_agg
