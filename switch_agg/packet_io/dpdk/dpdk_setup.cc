#include "switch_agg/packet_io/dpdk/dpdk_setup.h"

#include <fmt/format.h>
#include <net/if.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <rte_mbuf_pool_ops.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <span>
#include <string>
#include <string_view>

#include "kernels/base/check.h"
#include "switch_agg/packet_io/dpdk/buffer_count.h"
#include "switch_agg/packet_io/dpdk/dpdk_device_text.h"

namespace millrace::switch_agg {
namespace {

constexpr uint16_t kDescriptors = 1024;
constexpr unsigned kInboxFrames = 2048;
constexpr unsigned kMbufCache = RTE_MEMPOOL_CACHE_MAX_SIZE;
/// Of a buffer for headers alone: whole cache lines.
constexpr uint16_t kHeaderRoom = RTE_PKTMBUF_HEADROOM + 64;
static_assert(kUdpHeadersBytes <= 64);
/// Bytes that IPv4 and UDP put in front of a payload, and the payload that Ethernet's usual MTU leaves: every device
/// takes that.
constexpr size_t kIpUdpBytes = kUdpHeadersBytes - kEthernetBytes;
constexpr size_t kUsualPacketBytes = RTE_ETHER_MTU - kIpUdpBytes;

/// Whose frames come from an interface that the kernel has, and keeps.
bool is_of_kernel(std::string_view device) {
  return has_driver(device, "net_af_packet") || has_driver(device, "net_af_xdp");
}

/// Returns the largest frame that the kernel sends by that interface; 0 where it has none of that name.
size_t interface_mtu(std::string_view name) {
  ifreq asked{};
  if (name.size() >= sizeof asked.ifr_name) return 0;
  std::ranges::copy(name, asked.ifr_name);
  const int any = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const bool known = any >= 0 && ::ioctl(any, SIOCGIFMTU, &asked) == 0;
  if (any >= 0) ::close(any);
  return known ? static_cast<size_t>(asked.ifr_mtu) : 0;
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
    if (!options.device.empty())
      arguments.push_back("--vdev=" + numbered_device(with_room_for(options.device, options.packet_bytes_max)));
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
                      : "its own words are above; a device of the kernel needs root, and a filter of system calls must "
                        "let sched_setaffinity through"));
}

std::unexpected<Error> device_failed(std::string_view what, const DpdkOptions& options, int code) {
  return fail(ErrorCode::kIo, fmt::format("cannot {} the device '{}': {}{}", what, options.device, rte_strerror(-code),
                                          device_advice(options)));
}

std::unexpected<Error> mtu_refused(const DpdkOptions& options, std::string_view why, size_t largest) {
  return fail(
      ErrorCode::kInvalidArgument,
      fmt::format("--packet-bytes-max {} needs an MTU of {}: {}, or --packet-bytes-max {}", options.packet_bytes_max,
                  options.packet_bytes_max + kIpUdpBytes, why, std::max(largest, kIpUdpBytes) - kIpUdpBytes));
}

/// Of a configured device that is not started. Packets of the usual length need nothing.
Status set_mtu(uint16_t device, const rte_eth_dev_info& info, const DpdkOptions& options) {
  if (options.packet_bytes_max <= kUsualPacketBytes) return {};
  const size_t mtu = options.packet_bytes_max + kIpUdpBytes;
  constexpr uint32_t kEthernetOverhead = RTE_ETHER_HDR_LEN + RTE_ETHER_CRC_LEN;
  const uint32_t driver_mtu =
      std::min<uint32_t>(info.max_mtu, std::max<uint32_t>(info.max_rx_pktlen, RTE_ETHER_MAX_LEN) - kEthernetOverhead);
  const std::string driver_takes = fmt::format("the driver of '{}' takes {} at most", options.device, driver_mtu);
  if (!is_of_kernel(options.device)) {
    const int code = rte_eth_dev_set_mtu(device, static_cast<uint16_t>(mtu));
    if (code == 0 || code == -ENOTSUP) return {};  // a driver without the notion: frames are as long as its buffers
    return mtu_refused(options, fmt::format("{} ({})", driver_takes, rte_strerror(-code)), driver_mtu);
  }
  // net_af_packet reports 1518 bytes, for any size of its slots.
  if (!has_driver(options.device, "net_af_packet") && mtu > driver_mtu)
    return mtu_refused(options, driver_takes, driver_mtu);
  // The interface's MTU is its administrator's.
  const std::string name(device_argument(options.device, "iface").value_or(""));
  const size_t has = interface_mtu(name);
  if (has >= mtu) return {};
  return mtu_refused(options,
                     fmt::format("the interface '{}' has {}; 'ip link set {} mtu {}' there and at its neighbours", name,
                                 has, name, mtu),
                     has);
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
  if (const Status ready = set_mtu(device, info, options); !ready) return ready;
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

/// A driver of pools that hand out the last returned buffer first, which is still in a cache. DPDK's usual driver goes
/// round through all of its memory.
constexpr const char* kPoolDriver = "lf_stack";

/// True where a driver of pools has that name. These drivers are plugins, and Debian has a package for each.
bool has_pool_driver(std::string_view name) {
  const std::span drivers(rte_mempool_ops_table.ops, rte_mempool_ops_table.num_ops);
  return std::ranges::any_of(drivers, [name](const rte_mempool_ops& one) { return name == one.name; });
}

/// Returns a pool of kPoolDriver, or of the usual driver where that one makes none.
rte_mempool* make_pool(const std::string& name, uint32_t buffers, uint16_t room_bytes) {
  rte_mempool* const pool =
      rte_pktmbuf_pool_create_by_ops(name.c_str(), buffers, kMbufCache, 0, room_bytes, SOCKET_ID_ANY, kPoolDriver);
  if (pool != nullptr) return pool;
  return rte_pktmbuf_pool_create(name.c_str(), buffers, kMbufCache, 0, room_bytes, SOCKET_ID_ANY);
}

/// Returns the same in one piece, buffer after buffer. net_af_xdp shows the kernel as much memory as its buffers have
/// bytes, from the first one on. A usual pool leaves the ends of pages out. Its last buffers then lie behind that
/// memory, and the kernel drops every frame for them. Pages need not be next to each other for a device: this is for
/// drivers of the kernel alone.
rte_mempool* make_pool_in_one_piece(const std::string& name, uint32_t buffers, uint16_t room_bytes) {
  rte_mempool* const pool =
      rte_mempool_create_empty(name.c_str(), buffers, static_cast<unsigned>(sizeof(rte_mbuf) + room_bytes), kMbufCache,
                               sizeof(rte_pktmbuf_pool_private), SOCKET_ID_ANY, RTE_MEMPOOL_F_NO_IOVA_CONTIG);
  if (pool == nullptr) return nullptr;
  if (rte_mempool_set_ops_byname(pool, kPoolDriver, nullptr) != 0)
    rte_mempool_set_ops_byname(pool, rte_mbuf_best_mempool_ops(), nullptr);
  rte_pktmbuf_pool_init(pool, nullptr);
  const int populated = rte_mempool_populate_default(pool);
  if (populated < 0 || pool->nb_mem_chunks != 1) {
    rte_mempool_free(pool);
    rte_errno = populated < 0 ? -populated : ENOMEM;
    return nullptr;
  }
  rte_mempool_obj_iter(pool, rte_pktmbuf_init, nullptr);
  return pool;
}

std::unexpected<Error> no_pool(uint32_t buffers, const DpdkOptions& options) {
  const std::string usual = rte_mbuf_best_mempool_ops();
  if (!has_pool_driver(kPoolDriver) && !has_pool_driver(usual))
    return fail(
        ErrorCode::kIo,
        fmt::format("DPDK has no driver of buffer pools for the device '{}', neither '{}' nor '{}': install the "
                    "package librte-mempool-stack or librte-mempool-ring (librte-meta-mempool has both)",
                    options.device, kPoolDriver, usual));
  return device_failed(
      fmt::format("find memory for {} buffers (more --dpdk-memory or huge pages, or fewer --lcores) for", buffers),
      options, -rte_errno);
}

/// Returns the number of queues each way.
uint16_t queues_of(const rte_eth_dev_info& info, const DpdkOptions& options) {
  return static_cast<uint16_t>(std::min<uint32_t>({options.lanes, info.max_rx_queues, info.max_tx_queues}));
}

/// Returns the number of buffers of a pool. A driver may raise the number of descriptors to its least.
uint32_t buffers_of(const rte_eth_dev_info& info, const DpdkOptions& options) {
  return buffers_for({.lanes = options.lanes,
                      .queues = queues_of(info, options),
                      .receive_descriptors = std::max<uint32_t>(kDescriptors, info.rx_desc_lim.nb_min),
                      .send_descriptors = std::max<uint32_t>(kDescriptors, info.tx_desc_lim.nb_min),
                      .ring_frames = kInboxFrames,
                      .cache = kMbufCache,
                      .burst = PacketPort::kBurst});
}

/// The memory of the packets.
rte_mempool* make_packet_pool(uint16_t device, const rte_eth_dev_info& info, uint32_t buffers,
                              const DpdkOptions& options) {
  // Drivers of the kernel's interfaces copy into buffers of DPDK's usual size, and refuse smaller ones. net_af_xdp
  // keeps a buffer in a page, so it gets no more room than a frame takes.
  const size_t data_room =
      is_of_kernel(options.device) ? frame_room(options.packet_bytes_max) : card_room(options.packet_bytes_max);
  const size_t room_bytes = std::max<size_t>(
      {RTE_MBUF_DEFAULT_BUF_SIZE, RTE_PKTMBUF_HEADROOM + data_room,
       RTE_PKTMBUF_HEADROOM + copied_bytes_max(with_room_for(options.device, options.packet_bytes_max))});
  if (room_bytes > UINT16_MAX) {
    rte_errno = EINVAL;
    return nullptr;
  }
  const std::string name = name_of("pool", device);
  return std::string_view(info.driver_name) == "net_af_xdp"
             ? make_pool_in_one_piece(name, buffers, static_cast<uint16_t>(room_bytes))
             : make_pool(name, buffers, static_cast<uint16_t>(room_bytes));
}

}  // namespace

Status start_dpdk(const DpdkOptions& options) {
  static const Status kStarted = start_environment(options);
  return kStarted;
}

std::string device_advice(const DpdkOptions& options) {
  const std::string name(device_argument(options.device, "iface").value_or(""));
  if (is_of_kernel(options.device) && interface_mtu(name) == 0)
    return fmt::format("; there is no interface '{}' here", name);
  if (!has_driver(options.device, "net_af_xdp")) return {};
  return "; net_af_xdp needs root, a kernel with AF_XDP sockets and BPF, memory that it may lock (ulimit -l "
         "unlimited), a queue "
         "that no other AF_XDP socket has, and for queue_count as many combined queues (ethtool -l); net_af_packet "
         "needs "
         "none of that";
}

std::shared_ptr<const void> use_device(uint16_t device) {
  return {nullptr, [device](const void*) {
            rte_eth_dev_stop(device);
            rte_eth_dev_close(device);
          }};
}

Result<std::vector<DpdkLane>> set_up_device(uint16_t device, const DpdkOptions& options) {
  MILLRACE_CHECK(options.lanes >= 1 && options.lanes <= 64, options.lanes);
  rte_eth_dev_info info{};
  if (const int code = rte_eth_dev_info_get(device, &info); code != 0) return device_failed("ask", options, code);
  const uint32_t buffers = buffers_of(info, options);
  rte_mempool* const pool = make_packet_pool(device, info, buffers, options);
  if (pool == nullptr) return no_pool(buffers, options);
  rte_mempool* headers = nullptr;
  if ((info.tx_offload_capa & RTE_ETH_TX_OFFLOAD_MULTI_SEGS) != 0) {
    headers = make_pool(name_of("headers", device), buffers, kHeaderRoom);
    if (headers == nullptr) return no_pool(buffers, options);
  }
  const uint16_t queues = queues_of(info, options);
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
                  .options = options,
                  .device_use = {}};
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
