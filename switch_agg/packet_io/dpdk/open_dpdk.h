#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/result.h"
#include "switch_agg/packet_io/dpdk/ethernet_frames.h"
#include "switch_agg/packet_io/packet_port.h"

/// The seam between this program and DPDK: nothing here or above knows an rte_ name. In a build without DPDK
/// (dpdk_absent.cc) the functions that open something fail with `unsupported` and a sentence about it.
namespace millrace::switch_agg {

enum class DpdkMemory : uint8_t {
  kPlain,      ///< ordinary pages: no set-up of the host, more TLB misses
  kHugePages,  ///< deploy/switch-host.sh reserves them
};

struct DpdkOptions {
  /// A driver of DPDK and its arguments, as "net_af_packet,iface=veth0", or a device's PCI address, as "0000:01:00.0".
  std::string device{};
  Ipv4Address address{};
  /// The port asks by ARP for addresses that share these bits, and reaches others by the gateway.
  uint32_t prefix_bits = 24;
  /// Router to all other addresses. Without one, their senders are answered at the hardware address of their frames.
  std::optional<Ipv4Address> gateway{};
  uint16_t port = 0;  ///< UDP, of all lanes
  uint32_t lanes = 1;
  /// Above 1472 the device's MTU must hold it: asked for of a device of DPDK's own, found of an interface of the
  /// kernel.
  size_t packet_bytes_max = 1472;
  DpdkMemory memory = DpdkMemory::kPlain;
  uint32_t memory_mib = 512;
};

/// Returns DPDK's version, as "22.11.4"; empty in a build without DPDK.
std::string_view dpdk_version();

/// Starts DPDK's environment, opens the device and returns a port for each lane. Once in a process.
///
/// Splitting  A device has as many queues as it can, up to one a lane (RSS fills them). A lane that takes a packet of
///            another lane's job (lane_of_datagram.h) passes it on by a ring. A lane without a queue receives from its
///            ring alone and sends through lane 0. No locks: rings of many producers and one consumer.
/// Errors     unsupported: built without DPDK. invalid_argument: no such driver or device. io: DPDK did not start, with
///            the remedy; DPDK's own messages are on stderr.
Result<std::vector<std::unique_ptr<PacketPort>>> open_dpdk_ports(const DpdkOptions& options);

/// Ports over DPDK's net_ring whose wire is this object: for benchmarks and tests of the DPDK path without a device.
/// Threads  inject_frame() and take_frames(): of each queue one at a time.
class DpdkRingWire {
 public:
  /// options.device  is not looked at.
  /// queues          of the device, each way: at most as many as there are lanes. Queue i is lane i's.
  static Result<std::unique_ptr<DpdkRingWire>> open(const DpdkOptions& options, uint32_t queues = 1);
  virtual ~DpdkRingWire() = default;

  /// Returns the ports' addresses.
  virtual WireAddress address() const = 0;
  virtual std::vector<std::unique_ptr<PacketPort>>& ports() = 0;
  /// Copies `frame` to this queue of the device, as if RSS had chosen it. Returns false where the queue is full.
  virtual bool inject_frame(ByteSpan frame, uint32_t queue) = 0;
  bool inject_frame(ByteSpan frame) { return inject_frame(frame, 0); }
  /// Hands over every frame that was sent by this queue; the span is good during the call.
  virtual void take_frames(uint32_t queue, const std::function<void(ByteSpan)>& take) = 0;
  void take_frames(const std::function<void(ByteSpan)>& take) { take_frames(0, take); }
};

}  // namespace millrace::switch_agg
