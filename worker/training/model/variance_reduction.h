#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "kernels/stream/stream.h"
#include "worker/training/model/linear_model.h"

namespace millrace::training {

/// Keeps the snapshot of SVRG. A step's gradient is g(w) - g(w~) + G. g is the mean gradient of the step's rows, and w~
/// a snapshot of the model some steps ago. G is the mean gradient of all workers' rows at w~. Every worker has w~ and
/// G, so that a step exchanges g(w) - g(w~) alone.
///
/// Differs  from [GSpar18, equation 2, algorithm 1]: G is not sparsified, since no step sends it. The expectation is
///          the same, and a selection adds the variance of the difference alone. None of the three gradients contains
///          L2's.
/// Threads  one.
/// Source   [GSpar18, 2, 4]; [SVRG13].
class VarianceReduction {
 public:
  /// Makes `model` the snapshot.
  ///
  /// full         the sum of all workers' gradients at it; full / denominator is G.
  /// denominator  positive.
  void take(const LinearModel& model, const StreamView& full, double denominator);
  bool has_snapshot() const { return model_.has_value(); }
  /// Returns w~. REQUIRES: has_snapshot().
  const LinearModel& snapshot() const { return *model_; }

  /// Returns g(w) - g(w~), sparse, without zeros. REQUIRES: both are of the same rows, with the same weights.
  static Stream difference(const Stream& now, const Stream& at_snapshot);

  /// Adds factor * G to the values: the part of a step that no worker sends. REQUIRES: has_snapshot().
  void add_full(std::span<float> values, double factor) const;

 private:
  std::optional<LinearModel> model_;
  Stream full_;  ///< sparse
  double denominator_ = 1;
};

/// Returns the sum of the gradients of rows 0 to rows - 1, taken in pieces of at most 65,536 rows.
///
/// gradient_of  returns a piece's gradient, weighted as the sum is to be. Nothing: the sum ends there, and is of no
///              use.
Stream sum_of_pieces(uint64_t dimension, size_t rows,
                     const std::function<std::optional<Stream>(std::span<const uint32_t>)>& gradient_of);

}  // namespace millrace::training
