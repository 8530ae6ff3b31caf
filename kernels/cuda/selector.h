#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/cuda/accumulator.h"
#include "kernels/cuda/thresholds.h"
#include "kernels/select/select.h"
#include "kernels/select/top_k.h"
#include "kernels/select/warm_up.h"

namespace millrace::cuda {

/// Selects by a specification from a sum in a queue's memory, and keeps the selection's state from step to step. The
/// positions are those of Selector (kernels/select) for a dense view.
///
/// Limits   topk, trimmed, radix, threshold, threshold_reuse, binary_search, sampled, gaussian. No alternating signs.
///          Trimmed and radix are other ways to the positions of topk: here topk's own.
template <class Queue>
class SumSelector {
 public:
  SumSelector(const SelectionSpec& spec, uint64_t dimension)
      : spec_(spec),
        dimension_(dimension),
        k_(k_of(spec, dimension)),
        reuse_(k_, spec.period),
        sampled_(k_, spec.period) {}

  /// Errors  non_finite: the sum has NaN or infinity; the state is as before.
  Result<Positions<Queue>> select(Queue& queue, Accumulator<Queue>& sum, uint64_t step) {
    const std::optional<double> density = warm_up_density(spec_, dimension_, step);
    if (density == 1.0) return sum.select_at_least(std::numeric_limits<float>::denorm_min());
    if (density != density_) begin(density);
    switch (spec_.selection) {
      case SelectionId::kThreshold: return sum.select_at_least(threshold_in_f32(spec_.threshold));
      case SelectionId::kThresholdReuse: return reuse_.select(queue, sum.values(), dimension_);
      case SelectionId::kSampled: return sampled_.select(queue, sum.values(), dimension_);
      case SelectionId::kGaussian: return gaussian(queue, sum.values(), dimension_, k_);
      case SelectionId::kBinarySearch: {
        auto found = k_to_2k(queue, sum.values(), dimension_, k_);
        if (!found) return std::unexpected(found.error());
        return std::move(found->selected);
      }
      default: return sum.select_top_k(k_);
    }
  }

 private:
  /// Another stage of the warm-up: the state of the one before is of another k.
  void begin(std::optional<double> density) {
    SelectionSpec spec = spec_;
    if (density) {
      spec.density = *density;
      spec.k = 0;
    }
    k_ = k_of(spec, dimension_);
    reuse_ = ThresholdReuse<Queue>(k_, spec.period);
    sampled_ = Sampled<Queue>(k_, spec.period);
    density_ = density;
  }

  SelectionSpec spec_;
  uint64_t dimension_;
  uint64_t k_;
  std::optional<double> density_;  ///< of k_; none: the specification's own
  ThresholdReuse<Queue> reuse_;
  Sampled<Queue> sampled_;
};

}  // namespace millrace::cuda
