#include "server/datagram_units.h"

#include <bit>

#include "kernels/base/check.h"

namespace millrace::server {

using protocol::kFragmentsMax;

void DatagramUnits::begin(uint64_t live) {
  live_ = live;
  whole_ = 0;
  selected_ = 0;
  begun_ = 0;
  have_.fill(0);
  last_.fill(kUnknown);
}

DatagramUnits::Verdict DatagramUnits::accept(const Units& units) {
  MILLRACE_CHECK(units.fragment < kFragmentsMax, units.fragment);
  if (units.have == 0) return Verdict::kEmpty;
  if ((units.have & ~live_) != 0) return Verdict::kForeign;
  if ((units.last & ~units.have) != 0) return Verdict::kContradicts;
  if ((units.have & (have_[units.fragment] | selected_)) != 0) return Verdict::kOverlap;
  uint64_t higher = 0;
  for (size_t fragment = units.fragment + size_t{1}; fragment < kFragmentsMax; ++fragment) higher |= have_[fragment];
  if ((units.last & higher) != 0) return Verdict::kContradicts;
  for (uint64_t left = units.have; left != 0; left &= left - 1) {
    const auto worker = static_cast<size_t>(std::countr_zero(left));
    const bool is_last = (units.last >> worker & 1) != 0;
    if (last_[worker] != kUnknown && (is_last || units.fragment > last_[worker])) return Verdict::kContradicts;
  }

  have_[units.fragment] |= units.have;
  begun_ |= units.have;
  for (uint64_t left = units.have; left != 0; left &= left - 1) {
    const auto worker = static_cast<size_t>(std::countr_zero(left));
    if ((units.last >> worker & 1) != 0) last_[worker] = units.fragment;
    if (last_[worker] == kUnknown) continue;
    uint64_t all = ~uint64_t{0};
    for (size_t fragment = 0; fragment <= last_[worker]; ++fragment) all &= have_[fragment];
    whole_ |= all & uint64_t{1} << worker;
  }
  return Verdict::kAccepted;
}

DatagramUnits::Verdict DatagramUnits::accept_selected(uint64_t rack_workers, uint64_t hash) {
  MILLRACE_CHECK(hash != 0);
  if (rack_workers == 0) return Verdict::kEmpty;
  if ((rack_workers & ~live_) != 0) return Verdict::kForeign;
  if ((rack_workers & (begun_ | selected_)) != 0) return Verdict::kOverlap;
  selected_ |= rack_workers;
  whole_ |= rack_workers;
  for (uint64_t left = rack_workers; left != 0; left &= left - 1)
    hashes_[static_cast<size_t>(std::countr_zero(left))] = hash;
  return Verdict::kAccepted;
}

}  // namespace millrace::server
