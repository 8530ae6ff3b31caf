#include "switch_agg/packet_io/dpdk/neighbours.h"

#include <algorithm>
#include <bit>

namespace millrace::switch_agg {

size_t Neighbours::set_of(const Ipv4Address& ip) {
  constexpr uint32_t kGolden = 0x9E3779B1;  // 2^32 / golden ratio, odd: neighbours in number go to different sets
  static_assert(kSets == 256);
  return std::bit_cast<uint32_t>(ip) * kGolden >> 24;
}

void Neighbours::learn(const WireAddress& host) {
  std::array<Entry, kWays>& set = sets_[set_of(host.ip)];
  auto at = std::ranges::find_if(set, [&](const Entry& one) { return one.heard != 0 && one.host.ip == host.ip; });
  if (at == set.end()) at = std::ranges::min_element(set, {}, &Entry::heard);
  *at = {host, ++count_};
}

std::optional<MacAddress> Neighbours::find(const Ipv4Address& ip) const {
  for (const Entry& one : sets_[set_of(ip)]) {
    if (one.heard != 0 && one.host.ip == ip) return one.host.mac;
  }
  return std::nullopt;
}

}  // namespace millrace::switch_agg
