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

  /// Returns [dimension] of the bucket: the values that entered, or came with a loaded state, and that this worker
  /// neither holds nor counts as lost. Updates have applied them.
  std::vector<double> handed_over(uint32_t bucket) const {
    std::vector<double> rest = ledger(bucket);
    for (size_t i = 0; i < rest.size(); ++i) rest[i] = entered(bucket)[i] + opening_residual(bucket)[i] - rest[i];
    const auto take_out = [&rest](uint64_t begin, const StreamView& held) {
      each(begin, held, [&rest](uint64_t index, float value) { rest[index] -= static_cast<double>(value); });
    };
    const Stream kept = residual(bucket);
    take_out(0, kept.view());
    for (const worker::OutstandingView& out : outstanding(bucket)) take_out(out.begin, out.sent);
    return rest;
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
