#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/retained.h"
#include "kernels/cuda/accumulator.h"
#include "kernels/cuda/bucket_top_k.h"
#include "kernels/cuda/thresholds.h"
#include "kernels/select/select.h"
#include "kernels/select/top_k.h"
#include "kernels/select/warm_up.h"

namespace millrace::cuda {

/// Says whether a launch can have a block for each bucket of `count` values.
inline bool launches_buckets(uint64_t count, uint64_t bucket_size) {
  constexpr uint64_t kBlocksMax = std::numeric_limits<int32_t>::max();
  return count / bucket_size < kBlocksMax;
}

/// Says whether bucket_top_k() has the buckets of selection bucket_topk. An exponential warm-up has a larger k.
inline bool selects_buckets(const SelectionSpec& spec, uint64_t dimension) {
  return spec.warm_up != WarmUp::kExponential && spec.bucket_size <= BucketTopK::kBucketMax &&
         bucket_k_of(spec, dimension) <= BucketTopK::kListed && launches_buckets(dimension, spec.bucket_size);
}

/// Selects by a specification from a sum in a queue's memory, and keeps the selection's state from step to step. The
/// positions are those of Selector (kernels/select) for a dense view.
///
/// Limits   topk, trimmed, radix, threshold, threshold_reuse, binary_search, sampled, gaussian; bucket_topk where
///          selects_buckets(). No alternating signs. Trimmed and radix are other ways to the positions of topk: here
///          topk's own.
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
    begun_ = true;
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
      case SelectionId::kBucketTopK: {
        auto found = bucket_top_k(queue, {.residual = sum.values(),
                                          .n = dimension_,
                                          .bucket_size = spec_.bucket_size,
                                          .k = static_cast<uint32_t>(bucket_k_of(spec_, dimension_))});
        if (!found) return std::unexpected(found.error());
        return std::move(found->selected);
      }
      default: return sum.select_top_k(k_);
    }
  }

  /// Returns the state that Selector::retained() of the specification returns.
  Retained retained() const {
    if (spec_.warm_up == WarmUp::kNone) return retained_of_stage();
    if (!begun_) return {};
    Retained out{std::bit_cast<uint64_t>(density_.value_or(0))};
    append_list(out, retained_of_stage());
    return out;
  }
  /// Continues with it. Errors  invalid_argument. Nothing changes then.
  Status restore_retained(std::span<const uint64_t> retained) {
    if (spec_.warm_up == WarmUp::kNone) return restore_stage(retained);
    SumSelector restored(spec_, dimension_);
    if (!retained.empty()) {
      RetainedReader reader(retained);
      const double density = std::bit_cast<double>(reader.next(0, std::bit_cast<uint64_t>(1.0)));
      const std::span<const uint64_t> of_stage = reader.list();
      if (Status status = reader.end(); !status) return status;
      if (density != 0) restored.begin(density);
      restored.begun_ = true;
      if (Status status = restored.restore_stage(of_stage); !status) return status;
    }
    *this = std::move(restored);
    return {};
  }

 private:
  Retained retained_of_stage() const {
    if (spec_.selection == SelectionId::kThresholdReuse) return reuse_.retained();
    return spec_.selection == SelectionId::kSampled ? sampled_.retained() : Retained{};
  }

  Status restore_stage(std::span<const uint64_t> retained) {
    if (spec_.selection == SelectionId::kThresholdReuse) return reuse_.restore_retained(retained);
    if (spec_.selection == SelectionId::kSampled) return sampled_.restore_retained(retained);
    return RetainedReader(retained).end();
  }

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
  bool begun_ = false;             ///< a step has selected; dense steps do not
  ThresholdReuse<Queue> reuse_;
  Sampled<Queue> sampled_;
};

}  // namespace millrace::cuda
