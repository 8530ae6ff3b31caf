#pragma once

#include <memory>
#include <utility>

#include "kernels/reduce/magnitude_histogram.h"
#include "server/base/memory_account.h"

namespace millrace::server {

/// A histogram that a part, its bucket's board and a threshold hold together.
using SharedHistogram = std::shared_ptr<const MagnitudeHistogram>;

/// Charges the histogram's memory to the account until the last holder drops the returned pointer. The account must
/// outlive it.
inline SharedHistogram charged(SharedHistogram histogram, MemoryAccount& account) {
  struct Charged {
    SharedHistogram histogram;
    MemoryCharge charge;
  };
  if (!histogram) return nullptr;
  const uint64_t bytes = sizeof(MagnitudeHistogram) + sizeof(Charged) + histogram->memory_bytes();
  auto held = std::make_shared<Charged>(std::move(histogram), MemoryCharge(account, bytes));
  const MagnitudeHistogram* at = held->histogram.get();
  return {std::move(held), at};
}

}  // namespace millrace::server
