#pragma once

#include <functional>
#include <vector>

#include "worker/peer/collectives/sparse_allgather.h"

namespace millrace::cli {

/// What a rank takes into a step of distributed coordinate descent. All ranks know which coordinates of which owner the
/// step has.
struct CoordinateStep {
  std::vector<std::vector<double>>
      partials;  ///< [size] by owner: this rank's part of the derivative by each of its coordinates
  /// At the owner: the changes of its own coordinates, of the derivatives that the ranks' parts add up to. Called once,
  /// on whichever thread makes progress; what it captures is its own.
  std::function<Stream(const std::vector<double>& derivatives)> changes;
  /// Empty: a sparse allgather. Else a dense one: [size + 1] ascending indices of the model, from 0 to its dimension;
  /// the coordinates of rank r lie in [slices[r], slices[r + 1]).
  std::vector<uint64_t> slices = {};
};

/// Every rank sends each owner its parts of the owner's derivatives; the owner adds them, in the order of the ranks,
/// and changes its coordinates; a sparse allgather takes the changes to all, or a dense one the slices that they lie
/// in.
///
/// Bits     the same on all ranks, and without a codec the same in either form.
/// Bytes    a rank: 8 for each coordinate of the others, and (P - 1) / P of all changes (sparse_allgather.h), or of
///          4 for each index of the model (dense).
/// Errors   malformed: a rank sent parts of another number of coordinates. Those of sparse_allgather().
/// Source   [SparCML19, 8.2] (the sparse allgather of what each node changed); the parts are sent because rows are
///          partitioned as well.
peer::Task<Result<peer::Gathered>> exchange_coordinates(peer::Channel& channel, CoordinateStep step,
                                                        peer::SparseAllgatherSettings settings);

}  // namespace millrace::cli
