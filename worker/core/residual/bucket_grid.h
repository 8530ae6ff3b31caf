#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/grid/block_grid.h"
#include "kernels/stream/stream.h"
#include "protocol/job/job_spec.h"
#include "protocol/job/layout.h"

namespace millrace::worker {

/// One bucket's grid in a reproducible job that goes over the shards: what is selected is rounded to it before it is
/// coded, so that sums over workers are exact. What rounding and saturation leave comes back with the update.
///
/// Of an entry that was selected one value comes back: the remainder where it was applied, the whole of it where it was
/// not. So the residual there is one f32 addition later (the next gradient and this), whatever comes first, and the
/// same bits as with a switch's client, or among peers, which give back the same.
class BucketGrid {
 public:
  BucketGrid(const protocol::JobSpec& spec, std::span<const protocol::PartLayout> parts);

  /// What of a part was selected and has not been settled.
  struct Rounded {
    Stream selected;       ///< indices local to the part
    Buffer<float> back;    ///< by entry of `selected`: what comes back where it is applied
    Buffer<float> beyond;  ///< what f32 does not hold of that: lost by name
    bool is_open() const { return selected.dimension != 0; }
    uint64_t index_of(size_t entry) const { return selected.dense ? entry : selected.indices[entry]; }
  };

  /// Rounds `selected` (indices of the bucket); entries that round to 0 leave it where it is sparse. Keeps what they
  /// were.
  void round(Stream& selected);
  const Rounded& of(size_t at) const { return rounded_[at]; }
  Rounded take(size_t at) { return std::exchange(rounded_[at], {}); }

  /// The update of the step has come for part `at`: its sums, indices local to the part. The last part's ends the step.
  void observe(size_t at, const StreamView& sums);
  const BlockGrid& grid() const { return grid_; }

 private:
  BlockGrid grid_;
  std::vector<protocol::PartLayout> parts_;
  std::vector<Rounded> rounded_;  ///< by part
  size_t observed_ = 0;           ///< parts, of the step in hand
};

/// Of what was selected of a part: the remainders of the entries that the update carries (null: all of them), and all
/// of the others. Without zeros. lost_again: positions of entries whose `beyond` was not lost after all.
Stream grid_returns(const BucketGrid::Rounded& rounded, const StreamView* carried, std::vector<size_t>& lost_again);

}  // namespace millrace::worker
