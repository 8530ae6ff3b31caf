#include "switch_agg/packet_io/dpdk/neighbours.h"

#include <algorithm>
#include <bit>

namespace millrace::switch_agg {

size_t Neighbours::set_of(const Ipv4Address& ip) {
  constexpr uint32_t kGolden = 0x9E3779B1;  // 2^32 / golden ratio, odd: neighbours in number go to different sets
  static_assert(kSets == 256);
  return std::bit_cast<uint32_t>(ip) * kGolden >> 24;
}

Neighbours::Entry* Neighbours::entry_of(const Ipv4Address& ip) {
  std::array<Entry, kWays>& set = sets_[set_of(ip)];
  const auto at = std::ranges::find_if(set, [&](const Entry& one) { return one.heard != 0 && one.host.ip == ip; });
  return at == set.end() ? nullptr : &*at;
}

void Neighbours::learn(const WireAddress& host) {
  Entry* at = entry_of(host.ip);
  if (at == nullptr) at = &*std::ranges::min_element(sets_[set_of(host.ip)], {}, &Entry::heard);
  *at = {host, ++count_};
}

void Neighbours::learn_if_new(const WireAddress& host) {
  Entry* const known = entry_of(host.ip);
  if (known == nullptr) return learn(host);
  if (known->host.mac == host.mac) known->heard = ++count_;
}

std::optional<MacAddress> Neighbours::find(const Ipv4Address& ip) const {
  for (const Entry& one : sets_[set_of(ip)]) {
    if (one.heard != 0 && one.host.ip == ip) return one.host.mac;
  }
  return std::nullopt;
}

}  // namespace millrace::switch_agg
