#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <span>

#include "kernels/base/retained.h"
#include "kernels/cuda/k_to_2k.h"
#include "kernels/cuda/tail_sums.h"
#include "kernels/threshold/gaussian_search.h"
#include "kernels/threshold/reused_threshold.h"
#include "kernels/threshold/sampled_threshold.h"

/// Selections by a threshold from an earlier step, or from a fit.
namespace millrace::cuda {

/// The k-th largest magnitude, found exactly once a period and reused in between: selection `threshold_reuse`.
///
/// The state is the host's. After an error it is as before.
/// Source   [OkTopk22, 3.1.3].
template <class Queue>
class ThresholdReuse {
 public:
  ThresholdReuse(uint64_t k, uint32_t period) : k_(k), threshold_(period) {}

  /// Selects from this step's values [n]: the same positions as the host's selector.
  ///
  /// Cost    one pass; a step that evaluates: that of top_k(), and two radix selections of its k entries.
  /// Errors  NaN or infinity: non_finite.
  Result<Positions<Queue>> select(Queue& queue, const float* values, uint64_t n) {
    const uint64_t k = std::min(k_, n);
    if (threshold_.is_due()) return evaluate(queue, values, n, k);
    auto found = reach(queue, values, n, threshold_.key(), ReusedThreshold::count_max(k));
    if (!found) return std::unexpected(found.error());
    if (threshold_.accept(found->found, k)) return std::move(found->selected);
    return evaluate(queue, values, n, k);
  }

  Retained retained() const { return threshold_.retained(); }
  Status restore_retained(std::span<const uint64_t> retained) { return threshold_.restore_retained(retained); }

 private:
  Result<Positions<Queue>> evaluate(Queue& queue, const float* values, uint64_t n, uint64_t k) {
    auto selected = top_k(queue, values, n, k, Zeros::kSkipped);
    if (!selected) return selected;
    if (selected->count == 0 || selected->count < k) {
      threshold_.forget();
      return selected;
    }
    auto states = queue.template allocate<SelectState>(2);
    auto bins = queue.template allocate<uint64_t>(kBins);
    queue.launch(BeginSelection{{.rank = k}, {.rank = ReusedThreshold::inner_rank(k)}, states.data(), bins.data()}, 1);
    const PositionSource source{values, selected->positions.data(), k};
    find_key(queue, source, k, 3, bins.data(), states.data());
    find_key(queue, source, k, 3, bins.data(), states.data() + 1);
    std::array<SelectState, 2> ends;
    queue.download(std::span<SelectState>(ends), static_cast<const SelectState*>(states.data()));
    if (auto done = queue.finish(); !done) return std::unexpected(done.error());
    threshold_.keep(k, ends[0].decided, ends[1].decided);
    return selected;
  }

  uint64_t k_;
  ReusedThreshold threshold_;
};

/// The threshold of k_to_2k(), found once a period and reused in between: selection `sampled`.
///
/// The state is the host's. After an error it is as before.
/// Source   [RedSync19, 2.1].
template <class Queue>
class Sampled {
 public:
  Sampled(uint64_t k, uint32_t period) : k_(k), threshold_(period) {}

  /// Selects from this step's values [n]: the same positions as the host's selector.
  ///
  /// Cost    one pass; a step that searches: that of k_to_2k().
  /// Errors  NaN or infinity: non_finite.
  Result<Positions<Queue>> select(Queue& queue, const float* values, uint64_t n) {
    const uint64_t k = std::min(k_, n);
    if (k == 0) return Positions<Queue>{queue.template allocate<uint32_t>(0), 0};
    if (!threshold_.is_due()) {
      auto found = reach(queue, values, n, threshold_.key(), SampledThreshold::count_max(k));
      if (!found) return std::unexpected(found.error());
      if (threshold_.accept(found->found, k)) return std::move(found->selected);
    }
    auto searched = k_to_2k(queue, values, n, k);
    if (!searched) return std::unexpected(searched.error());
    threshold_.keep(searched->key);
    return std::move(searched->selected);
  }

  Retained retained() const { return threshold_.retained(); }
  Status restore_retained(std::span<const uint64_t> retained) { return threshold_.restore_retained(retained); }

 private:
  uint64_t k_;
  SampledThreshold threshold_;
};

/// Selects between 3k/4 and 2k entries as selection `gaussian` does: the same positions.
///
/// values  [n] f32 in the queue's memory.
/// Cost    a read pass for mean and deviation, and one for each threshold that is tried.
/// Errors  NaN or infinity: non_finite. k = 0: invalid_argument.
/// Source  [GaussianK19]; [OkTopk22, 2, 5.4].
template <class Queue>
Result<Positions<Queue>> gaussian(Queue& queue, const float* values, uint64_t n, uint64_t k) {
  if (k == 0) return fail(ErrorCode::kInvalidArgument, "k is 0");
  if (n > kDimensionMax) return fail(ErrorCode::kLimitExceeded, "more than 2^32 values to select from");
  const auto all = tail_sums(queue, values, n, kInfinityKey);
  if (!all) return std::unexpected(all.error());
  if (all->above > 0) return non_finite_values();
  if (all->magnitude == 0) return Positions<Queue>{queue.template allocate<uint32_t>(0), 0};
  k = std::min(k, n);
  GaussianSearch search(normal_key(*all, n, k), n, k);
  while (search.goes_on()) {
    auto found = reach(queue, values, n, search.key(), search.count_max());
    if (!found) return std::unexpected(found.error());
    const bool is_over = found->found > search.count_max();
    if (search.accept(is_over ? std::nullopt : std::optional(found->found))) return std::move(found->selected);
  }
  return top_k(queue, values, n, k, Zeros::kSkipped);
}

}  // namespace millrace::cuda
