#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "kernels/base/clock.h"
#include "monitoring/http/http_protection.h"

namespace millrace::monitoring {

/// Holds repeated transfers of one answer.
struct TransferFacts {
  std::string trouble = {};  ///< why there was none; empty: there was one
  uint64_t bytes = 0;        ///< of each
  TimeNs best = 0;           ///< shortest time of one
  TimeNs late = 0;           ///< time after which none had arrived whole; 0: one has, or there is another trouble

  /// Returns the rate of the fastest one.
  double bits_per_second() const {
    constexpr double kBitsPerByte = 8;
    return static_cast<double>(bytes) * kBitsPerByte * static_cast<double>(kNsPerS) /
           static_cast<double>(std::max<TimeNs>(best, 1));
  }
};

/// Fetches /probe of a shard's HTTP port, one transfer after the other. None begins later than timeout_ms.
///
/// times   at least 1.
/// Cost    1 MiB a transfer; at most three times timeout_ms, and the lookup of a name.
/// caller  as of http_get().
TransferFacts fetch_probe(const std::string& http, int times, int timeout_ms, const HttpCaller* caller = nullptr);

}  // namespace millrace::monitoring
