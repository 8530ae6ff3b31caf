#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "switch_agg/packet_io/dpdk/ethernet_frames.h"

namespace millrace::switch_agg {

/// Holds hardware addresses of IPv4 hosts, learned from the frames that they send (a router's for all hosts behind it).
/// As with ARP anywhere, none of it is authenticated. A malicious neighbour that sends ARP can keep answers from their
/// receiver, and no more; datagrams have their own MAC.
///
/// Limits   kSets x kWays hosts; a new host replaces the least recently heard one of its set.
/// Threads  one at a time.
class Neighbours {
 public:
  static constexpr size_t kSets = 256;
  static constexpr size_t kWays = 8;

  /// Takes the host's address in place of an earlier one: of ARP.
  void learn(const WireAddress& host);
  /// Takes the host's address where none is known: of other frames, which any host can send under any IP address.
  void learn_if_new(const WireAddress& host);
  std::optional<MacAddress> find(const Ipv4Address& ip) const;

 private:
  struct Entry {
    WireAddress host;
    uint64_t heard = 0;  ///< 0: never
  };
  static size_t set_of(const Ipv4Address& ip);
  Entry* entry_of(const Ipv4Address& ip);

  std::array<std::array<Entry, kWays>, kSets> sets_{};
  uint64_t count_ = 0;
};

}  // namespace millrace::switch_agg
