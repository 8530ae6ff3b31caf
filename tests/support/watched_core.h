#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "protocol/job/layout.h"
#include "tests/support/index_ledger.h"
#include "worker/core/session_core.h"

namespace millrace::testing {

/// Says whether a core's ledgers are kept by index. A test of many cores or of a huge tensor has no room for that.
enum class Watch : uint8_t { kNothing = 1, kLedger = 2 };

/// A SessionCore with its ledgers by index.
class WatchedCore : public IndexLedger, public worker::SessionCore {
 public:
  explicit WatchedCore(worker::CoreConfig config, Watch watch = Watch::kLedger)
      : IndexLedger(watch == Watch::kNothing ? protocol::JobLayout() : layout_of(config)),
        SessionCore(reporting(std::move(config), watch == Watch::kNothing ? nullptr : this)) {}

  /// Returns [dimension] of the bucket: the lost values. Those are quantization errors, dropped or rounded off, and
  /// unreturnable values.
  std::vector<double> ledger(uint32_t bucket) const {
    return lost(bucket, [&](worker::LedgerObserver& to) { report_postponed(bucket, to); });
  }

 private:
  static protocol::JobLayout layout_of(const worker::CoreConfig& config) {
    return protocol::plan_layout(config.spec, static_cast<uint32_t>(config.shard_addresses.size()));
  }
  static worker::CoreConfig reporting(worker::CoreConfig config, worker::LedgerObserver* to) {
    config.observer = to;
    return config;
  }
};

}  // namespace millrace::testing
