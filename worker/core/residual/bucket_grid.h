#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/retained.h"
#include "kernels/grid/block_grid.h"
#include "kernels/stream/stream.h"
#include "protocol/job/job_spec.h"
#include "protocol/job/layout.h"

namespace millrace::worker {

/// Holds one bucket's grid in a reproducible job over the shards. Rounds the selected entries to the grid before they
/// are coded, so that sums over workers are exact. The remainders of rounding and saturation return with the update.
///
/// Each selected entry returns one value: the remainder where it was applied, its whole value where it was not. So its
/// residual is computed by one f32 addition with the next gradient, independent of the order of events. The bits are
/// those of a switch's client and of peers, which return the same values.
class BucketGrid {
 public:
  BucketGrid(const protocol::JobSpec& spec, std::span<const protocol::PartLayout> parts);

  /// Holds a part's selected entries until they are settled.
  struct Rounded {
    Stream selected;     ///< indices local to the part
    Buffer<float> back;  ///< by entry of `selected`: the value that returns where it is applied
    /// The part of that value that f32 cannot hold: counted as lost.
    Buffer<float> beyond;
    bool is_open() const { return selected.dimension != 0; }
    uint64_t index_of(size_t entry) const { return selected.dense ? entry : selected.indices[entry]; }
  };

  /// Rounds `selected` (indices of the bucket); entries that round to 0 leave it where it is sparse. Keeps the original
  /// values.
  void round(Stream& selected);
  const Rounded& of(size_t at) const { return rounded_[at]; }
  Rounded take(size_t at) { return std::exchange(rounded_[at], {}); }

  /// Takes the step's update of part `at`: its sums, indices local to the part. The last part's update ends the step.
  void observe(size_t at, const StreamView& sums);
  const BlockGrid& grid() const { return grid_; }
  /// Return and replace the exponents (BlockGrid). Between steps.
  Retained retained() const { return grid_.retained(); }
  Status restore_retained(std::span<const uint64_t> retained, uint64_t dimension);

 private:
  BlockGrid grid_;
  std::vector<protocol::PartLayout> parts_;
  std::vector<Rounded> rounded_;  ///< by part
  size_t observed_ = 0;           ///< parts, of the step in hand
};

/// Returns the values that return to the residual of a part's selected entries, without zeros. For entries that the
/// update carries (null: all of them) those are the remainders, for the others the whole values. lost_again: positions
/// of entries whose `beyond` was not lost after all.
Stream grid_returns(const BucketGrid::Rounded& rounded, const StreamView* carried, std::vector<size_t>& lost_again);

}  // namespace millrace::worker
