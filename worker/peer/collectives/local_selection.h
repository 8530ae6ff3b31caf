#pragma once

#include <memory>

#include "kernels/select/select.h"
#include "worker/peer/collectives/allreduce.h"

namespace millrace::peer {

/// Selects from a rank's own values, step after step, for the algorithms that select by themselves
/// (AlgorithmInfo::selects).
///
/// Threads  one take() at a time.
class LocalSelection {
 public:
  /// Of settings.k entries; kThresholdReuse evaluates exactly every settings.thresholds_period steps. It and
  /// kTopK take all of a sparse contribution that has no more than k. REQUIRES: valid settings.
  LocalSelection(SelectionId selection, const AllreduceSettings& settings);

  /// own      dense or sparse, of the settings' dimension; of a sparse one only stored entries can be selected.
  /// Returns  the selected entries, sparse; never zeros. Where that is all of `own`, it looks into what `own` does.
  /// Errors   invalid_argument: another dimension. non_finite: NaN or infinity.
  Result<SharedStream> take(const SharedStream& own);

  /// As Selector has them.
  Retained retained() const { return selector_->retained(); }
  Status restore_retained(std::span<const uint64_t> retained) { return selector_->restore_retained(retained); }

 private:
  uint64_t dimension_;
  uint64_t all_up_to_;  ///< entries
  std::unique_ptr<Selector> selector_;
  uint64_t step_ = 0;
};

/// Returns the entries at these positions of `stream`, which are strictly increasing; sparse.
Stream entries_at(const StreamView& stream, std::span<const uint32_t> positions);

struct Partition {
  Stream kept;
  Stream dropped;
};

/// Returns the entries at these positions of `stream`, which are strictly increasing, and its others that are not 0;
/// both sparse.
Partition partition_at(const StreamView& stream, std::span<const uint32_t> positions);

}  // namespace millrace::peer
