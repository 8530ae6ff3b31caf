#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/result.h"
#include "switch_agg/packet_io/packet_port.h"

namespace millrace::switch_agg {

/// Represents the workers' end of a benchmark's network.
class BenchEnd {
 public:
  virtual ~BenchEnd() = default;

  /// Sends a worker's datagram. False: no more fits now.
  virtual bool inject(ByteSpan datagram, uint16_t worker) = 0;
  /// Hands over the packets sent to the workers; the span is valid during the call.
  virtual void take(const std::function<void(ByteSpan datagram, uint16_t worker)>& taker) = 0;
};

/// Datagrams go in at its end, as if from the network, and a port of the product takes them at the other. A packet is
/// copied when it goes in, so that it lies in the cache when the port gets it, as a network card's does.
class BenchWire : public BenchEnd {
 public:
  virtual PacketPort& port() = 0;
  /// Prepares the wire for the calling thread. The thread that uses the wire calls it before any other function.
  virtual void enter_thread() {}
};

/// Packets that may be on a wire at once, one way.
inline constexpr size_t kBenchWirePackets = 4000;

/// Opens a wire for each lane, with a port of its own: lanes may run on threads of their own.
///
/// pmd  "net_ring": frames through DPDK's driver of that name and through DpdkPort, which parses and builds Ethernet,
///      IPv4 and UDP. One device with a queue for each lane. "memory": packets alone, through MemoryPort.
Result<std::vector<std::unique_ptr<BenchWire>>> open_bench_wires(const std::string& pmd, size_t packet_bytes_max,
                                                                 uint32_t lanes);

}  // namespace millrace::switch_agg
