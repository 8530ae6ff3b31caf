#pragma once

#include <cstdint>

#include "kernels/stream/stream.h"

namespace millrace::worker {

/// Receives every booking of a worker's ledgers entry by entry, so that a test can check the law index by index.
/// Indices of a stream count from `begin`, in the bucket. A function that an observer does not override does nothing.
///
/// Threads  entered(): the thread that fills the slot; slots of other tensors, with other indices, at the same time.
///          The other functions: the core's thread.
class LedgerObserver {
 public:
  LedgerObserver() = default;
  LedgerObserver(const LedgerObserver&) = default;
  LedgerObserver& operator=(const LedgerObserver&) = default;
  virtual ~LedgerObserver() = default;

  /// weight * gradient entered.
  virtual void entered(uint32_t /*bucket*/, uint64_t /*begin*/, const StreamView& /*gradient*/, float /*weight*/) {}
  /// The accounts took over a share of a loaded residual.
  virtual void opened(uint32_t /*bucket*/, uint64_t /*begin*/, const StreamView& /*share*/) {}
  virtual void lost(uint32_t /*bucket*/, uint64_t /*begin*/, const StreamView& /*values*/) {}
  virtual void lost(uint32_t /*bucket*/, uint64_t /*index*/, double /*amount*/) {}
  /// An update was applied.
  virtual void applied(uint32_t /*bucket*/, uint64_t /*begin*/, const StreamView& /*sum*/) {}
  /// Other weights replaced those of [begin, end), and the updates in them.
  virtual void replaced(uint32_t /*bucket*/, uint64_t /*begin*/, uint64_t /*end*/) {}
  /// Only the outcome "counted" is known of this contribution, and its uncarried entries cannot return. lost() has
  /// reported all of its values, including those that the update carried. Only the log can separate the two.
  virtual void unreturnable(uint32_t /*part*/, uint64_t /*step*/, uint64_t /*incarnation*/) {}
};

}  // namespace millrace::worker
