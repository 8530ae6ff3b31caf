#pragma once

#include <functional>
#include <vector>

#include "worker/peer/collectives/sparse_allgather.h"

namespace millrace::training {

/// Holds a rank's inputs to a step of distributed coordinate descent. All ranks know which coordinates of which owner
/// the step has.
struct CoordinateStep {
  std::vector<std::vector<double>>
      partials;  ///< [size] by owner: this rank's part of the derivative by each of its coordinates.
  /// Returns, at the owner, the changes of its own coordinates, from the sums of the ranks' parts of the derivatives.
  /// Called once, on any thread that makes progress; its captures are its own.
  std::function<Stream(const std::vector<double>& derivatives)> changes;
  /// Empty: a sparse allgather. Else a dense one: [size + 1] ascending indices of the model, from 0 to its dimension.
  /// The coordinates of rank r lie in [slices[r], slices[r + 1]).
  std::vector<uint64_t> slices = {};
};

/// Exchanges the coordinates' derivatives and changes. Every rank sends each owner its parts of the owner's
/// derivatives. The owner adds them, in the order of the ranks, and changes its coordinates. A sparse allgather sends
/// the changes to all, or a dense one the slices that contain them.
///
/// Bits     the same on all ranks, and without a codec the same in either form.
/// Bytes    a rank: 8 for each coordinate of the others, and (P - 1) / P of all changes (sparse_allgather.h). The dense
///          form moves 4 for each index of the model instead.
/// Errors   malformed: a rank sent parts of another number of coordinates. Those of sparse_allgather().
/// Source   [SparCML19, 8.2] (the sparse allgather of each node's changes); the parts are sent because rows are
///          partitioned as well.
peer::Task<Result<peer::Gathered>> exchange_coordinates(peer::Channel& channel, CoordinateStep step,
                                                        peer::SparseAllgatherSettings settings);

}  // namespace millrace::training
