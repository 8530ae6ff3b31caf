#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "kernels/grid/block_grid.h"
#include "kernels/grid/reselect_sums.h"
#include "kernels/stream/shared_stream.h"
#include "worker/training/exchange/training_options.h"

namespace millrace::training {

/// Rounds a rank's contributions to the grid, for a reproducible job among peers. So every algorithm with exact sums
/// gives the same bits, and those that shards and a switch give. As with them, the counts of the step before decide the
/// threshold of the sum.
///
/// Order    one step at a time: round(), the allreduce, decide().
/// Threads  one.
class PeerGrid {
 public:
  /// Errors  as check_peer_grid().
  static Result<PeerGrid> make(const OptimizerOptions& options, uint64_t dimension, uint32_t ranks);

  /// Returns the values to send of a selection: on the grid, without zeros where it is sparse.
  SharedStream round(const SharedStream& selected);

  struct Decided {
    SharedStream update;       ///< the same on all ranks
    bool is_selected = false;  ///< `update` is a part of the sum
    Stream returned;           ///< the selected values that the update omitted; one value an entry
  };
  /// Takes the sum over all ranks: of the step that round() began.
  Decided decide(SharedStream&& sum);

  /// Returns the blocks and the entries of a sum, as one text.
  std::string text() const { return std::to_string(grid_.block_indices()) + ':' + std::to_string(k_); }
  /// Returns the exponents, and the counts of the step before. Between steps.
  Retained retained() const;
  /// Returns a hash of retained(): the same on all ranks. Between steps.
  uint64_t digest() const;
  /// Errors  invalid_argument.
  Status restore_retained(std::span<const uint64_t> retained, uint64_t dimension);

 private:
  PeerGrid(const BlockGrid& grid, uint64_t k) : grid_(grid), k_(k) {}
  bool cut(SharedStream& sum);

  BlockGrid grid_;
  uint64_t k_;  ///< of the sum; 0: all of it
  SharedStream selected_;
  Buffer<float> back_;
  SumHistogram counts_;  ///< of the step before
  bool counted_ = false;
};

/// Refuses the options that a reproducible job among peers cannot have; all others pass.
Status check_peer_grid(const OptimizerOptions& options, uint64_t dimension);

}  // namespace millrace::training
