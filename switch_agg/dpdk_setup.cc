#include "switch_agg/dpdk_setup.h"

#include <fmt/format.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <sched.h>

#include <algorithm>
#include <string>

#include "kernels/base/check.h"

namespace millrace::switch_agg {
namespace {

constexpr uint16_t kDescriptors = 1024;
constexpr unsigned kInboxFrames = 2048;
/// Frames on their way: a full queue each way, full rings, a burst in hand each way, and what lanes keep in their caches.
constexpr unsigned kMbufs = 16'384 - 1;
constexpr unsigned kMbufCache = RTE_MEMPOOL_CACHE_MAX_SIZE;
/// Of a buffer for headers alone: whole cache lines.
constexpr uint16_t kHeaderRoom = RTE_PKTMBUF_HEADROOM + 64;
static_assert(kUdpHeadersBytes <= 64);

/// A driver's name has no colon, a PCI address always.
bool is_pci_address(const std::string& device) {
  return device.substr(0, device.find(',')).find(':') != std::string::npos;
}

/// "net_af_packet,iface=veth0" -> "net_af_packet0,iface=veth0": DPDK numbers its virtual devices.
std::string numbered(const std::string& device) {
  const size_t comma = device.find(',');
  std::string name = device.substr(0, comma);
  if (!name.empty() && (name.back() < '0' || name.back() > '9')) name += '0';
  return comma == std::string::npos ? name : name + device.substr(comma);
}

std::vector<std::string> environment_arguments(const DpdkOptions& options, int processor) {
  std::vector<std::string> arguments = {"millrace-switch", "--no-telemetry", "--log-level=3", "-l",
                                        std::to_string(processor)};
  // No files that outlive the process, and no others' processes that look into this one.
  if (options.memory == DpdkMemory::kHugePages) {
    arguments.emplace_back("--in-memory");
  } else {
    for (const char* one : {"--no-huge", "--no-shconf", "--file-prefix=millrace", "--iova-mode=va"})
      arguments.emplace_back(one);
    arguments.insert(arguments.end(), {"-m", std::to_string(options.memory_mib)});
  }
  if (is_pci_address(options.device)) {
    arguments.insert(arguments.end(), {"-a", options.device});
  } else {
    arguments.emplace_back("--no-pci");
    if (!options.device.empty()) arguments.push_back("--vdev=" + numbered(options.device));
  }
  return arguments;
}

Status start_environment(const DpdkOptions& options) {
  cpu_set_t processors;
  CPU_ZERO(&processors);
  sched_getaffinity(0, sizeof processors, &processors);
  int first = 0;
  while (first < CPU_SETSIZE - 1 && !CPU_ISSET(first, &processors)) ++first;
  std::vector<std::string> arguments = environment_arguments(options, first);
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  const int started = rte_eal_init(static_cast<int>(argv.size()), argv.data());
  sched_setaffinity(0, sizeof processors, &processors);
  if (started >= 0) return {};
  return fail(
      ErrorCode::kIo,
      fmt::format("DPDK did not start ({}): {}", rte_strerror(rte_errno),
                  options.memory == DpdkMemory::kHugePages
                      ? "are huge pages reserved? deploy/switch-host.sh says how; without --huge-pages none are needed"
                      : "its own words are above; a device of the kernel needs root"));
}

std::unexpected<Error> device_failed(std::string_view what, const DpdkOptions& options, int code) {
  return fail(ErrorCode::kIo, fmt::format("cannot {} the device '{}': {}", what, options.device, rte_strerror(-code)));
}

Status set_up_queues(uint16_t device, uint16_t queues, const rte_eth_dev_info& info, rte_mempool* pool,
                     const DpdkOptions& options) {
  rte_eth_conf configuration{};
  if (queues > 1 && info.flow_type_rss_offloads != 0) {
    configuration.rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
    configuration.rx_adv_conf.rss_conf.rss_hf = info.flow_type_rss_offloads & (RTE_ETH_RSS_IP | RTE_ETH_RSS_UDP);
  }
  configuration.txmode.offloads = info.tx_offload_capa & RTE_ETH_TX_OFFLOAD_MULTI_SEGS;
  uint16_t receive_descriptors = kDescriptors;
  uint16_t send_descriptors = kDescriptors;
  if (const int code = rte_eth_dev_configure(device, queues, queues, &configuration); code != 0)
    return device_failed("configure", options, code);
  if (const int code = rte_eth_dev_adjust_nb_rx_tx_desc(device, &receive_descriptors, &send_descriptors); code != 0)
    return device_failed("size the queues of", options, code);
  for (uint16_t queue = 0; queue < queues; ++queue) {
    const int socket = rte_eth_dev_socket_id(device);
    const auto node = static_cast<unsigned>(socket);
    if (const int code = rte_eth_rx_queue_setup(device, queue, receive_descriptors, node, nullptr, pool); code != 0)
      return device_failed("set up a receiving queue of", options, code);
    if (const int code = rte_eth_tx_queue_setup(device, queue, send_descriptors, node, nullptr); code != 0)
      return device_failed("set up a sending queue of", options, code);
  }
  if (const int code = rte_eth_dev_start(device); code != 0) return device_failed("start", options, code);
  return {};
}

/// A name that no earlier device of this process has.
std::string name_of(std::string_view what, uint16_t device, uint32_t number = 0) {
  return fmt::format("mr_{}_{}_{}", what, device, number);
}

/// A pool that hands out again what came back last, which is still in a cache; DPDK's usual one goes round through all of its
/// memory. Without that driver of DPDK the usual one.
rte_mempool* make_pool(const std::string& name, uint16_t room_bytes) {
  rte_mempool* const pool =
      rte_pktmbuf_pool_create_by_ops(name.c_str(), kMbufs, kMbufCache, 0, room_bytes, SOCKET_ID_ANY, "lf_stack");
  if (pool != nullptr) return pool;
  return rte_pktmbuf_pool_create(name.c_str(), kMbufs, kMbufCache, 0, room_bytes, SOCKET_ID_ANY);
}

}  // namespace

Status start_dpdk(const DpdkOptions& options) {
  static const Status kStarted = start_environment(options);
  return kStarted;
}

Result<std::vector<DpdkLane>> set_up_device(uint16_t device, const DpdkOptions& options) {
  MILLRACE_CHECK(options.lanes >= 1 && options.lanes <= 64, options.lanes);
  rte_eth_dev_info info{};
  if (const int code = rte_eth_dev_info_get(device, &info); code != 0) return device_failed("ask", options, code);
  // Drivers of the kernel's interfaces copy into buffers of DPDK's usual size, and refuse smaller ones.
  const size_t room_bytes =
      std::max<size_t>(RTE_MBUF_DEFAULT_BUF_SIZE, RTE_PKTMBUF_HEADROOM + kUdpHeadersBytes + options.packet_bytes_max);
  rte_mempool* pool = make_pool(name_of("pool", device), static_cast<uint16_t>(room_bytes));
  if (pool == nullptr) return device_failed("find memory (see --dpdk-memory-mib) for", options, -rte_errno);
  rte_mempool* headers = nullptr;
  if ((info.tx_offload_capa & RTE_ETH_TX_OFFLOAD_MULTI_SEGS) != 0) {
    headers = make_pool(name_of("headers", device), kHeaderRoom);
    if (headers == nullptr) return device_failed("find memory (see --dpdk-memory-mib) for", options, -rte_errno);
  }
  const auto queues =
      static_cast<uint16_t>(std::min<uint32_t>({options.lanes, info.max_rx_queues, info.max_tx_queues}));
  if (const Status ready = set_up_queues(device, queues, info, pool, options); !ready)
    return std::unexpected(ready.error());
  DpdkLane wiring{.device = device,
                  .queue = {},
                  .pool = pool,
                  .headers = headers,
                  .lane = 0,
                  .inboxes = {},
                  .outbox = nullptr,
                  .self = {},
                  .options = options};
  rte_ether_addr mac{};
  if (const int code = rte_eth_macaddr_get(device, &mac); code != 0) return device_failed("ask", options, code);
  std::copy_n(mac.addr_bytes, wiring.self.mac.size(), wiring.self.mac.begin());
  wiring.self.ip = options.address;
  for (uint32_t lane = 0; options.lanes > 1 && lane < options.lanes; ++lane) {
    wiring.inboxes.push_back(
        rte_ring_create(name_of("inbox", device, lane).c_str(), kInboxFrames, SOCKET_ID_ANY, RING_F_SC_DEQ));
    if (wiring.inboxes.back() == nullptr) return device_failed("make rings for", options, -rte_errno);
  }
  if (queues < options.lanes) {
    wiring.outbox = rte_ring_create(name_of("outbox", device).c_str(), kInboxFrames, SOCKET_ID_ANY, RING_F_SC_DEQ);
    if (wiring.outbox == nullptr) return device_failed("make rings for", options, -rte_errno);
  }
  std::vector<DpdkLane> lanes(options.lanes, wiring);
  for (uint32_t lane = 0; lane < options.lanes; ++lane) {
    lanes[lane].lane = lane;
    if (lane < queues) lanes[lane].queue = static_cast<uint16_t>(lane);
  }
  return lanes;
}

}  // namespace millrace::switch_agg
