#pragma once

#include <algorithm>
#include <vector>

#include "kernels/cuda/top_k.h"
#include "kernels/select/binary_search.h"

namespace millrace::cuda {

/// Positions, and the key of their threshold; 0: they are not the entries that reach a threshold.
template <class Queue>
struct ThresholdPositions {
  Positions<Queue> selected;
  MagnitudeKey key = 0;
};

template <class Queue>
class KTo2K {
 public:
  KTo2K(Queue& queue, const float* values, uint64_t n, uint64_t k) : queue_(queue), values_(values), n_(n), k_(k) {}

  Result<ThresholdPositions<Queue>> select() {
    const auto sample = sampled();
    if (!sample) return std::unexpected(sample.error());
    const ThresholdGuess guess = guess_k_to_2k(*sample, n_, k_);
    if (!sample->empty() && guess.expected > n_ / 2) return exactly_k();
    const uint64_t limit = std::min(n_, k_to_2k_limit(guess, k_));
    auto states = queue_.template allocate<SelectState>(2);
    SelectState* const state = states.data() + 1;
    const MagnitudeKey key = std::min(guess.key, kInfinityKey);
    queue_.launch(BeginSelection{{.decided = key}, {}, states.data(), nullptr}, 1);
    CandidateMemory<Queue> candidates(queue_, limit, tiles_of(n_));
    const MagnitudeTest test{values_, n_, states.data(), 1, is_aligned16(values_)};
    queue_.launch(Collect<MagnitudeTest>{test, candidates.table(), state}, tiles_of(n_));
    const auto end = state_of(queue_, state);
    if (!end) return std::unexpected(end.error());
    if (end->found > limit || (end->found < k_ && key > 1)) return exactly_k();
    if (end->non_finite != 0) return non_finite_values();
    if (end->found <= 2 * k_) return emitted(candidates, states.data(), end->found, end->found < k_ ? 0 : key, 0);
    return bisected(candidates, states.data(), end->found);
  }

 private:
  Result<std::vector<MagnitudeKey>> sampled() {
    if (n_ < kSampleFrom) return std::vector<MagnitudeKey>();
    const uint64_t samples = sample_size(n_);
    auto keys = queue_.template allocate<uint32_t>(samples);
    queue_.launch(SampleKeys{values_, samples, (n_ << 16) / samples, keys.data()},
                  (samples + SampleKeys::kThreads - 1) / SampleKeys::kThreads);
    std::vector<MagnitudeKey> sample(samples);
    queue_.download(std::span(sample), static_cast<const uint32_t*>(keys.data()));
    if (auto done = queue_.finish(); !done) return std::unexpected(done.error());
    return sample;
  }

  Result<ThresholdPositions<Queue>> exactly_k() {
    auto selected = top_k(queue_, values_, n_, k_, Zeros::kSkipped);
    if (!selected) return std::unexpected(selected.error());
    return ThresholdPositions<Queue>{std::move(*selected), 0};
  }

  /// The sample was wrong by far: bisects the candidates' keys on the host.
  Result<ThresholdPositions<Queue>> bisected(const CandidateMemory<Queue>& candidates, SelectState* states,
                                             uint64_t found) {
    std::vector<MagnitudeKey> keys(found);
    queue_.download(std::span(keys), static_cast<const uint32_t*>(candidates.table().keys));
    if (auto done = queue_.finish(); !done) return std::unexpected(done.error());
    const MagnitudeKey key = bisect_keys(keys, static_cast<double>(k_), static_cast<double>(2 * k_));
    const auto reach = std::count_if(keys.begin(), keys.end(), [key](MagnitudeKey of) { return of >= key; });
    if (static_cast<uint64_t>(reach) > 2 * k_) return exactly_k();
    return emitted(candidates, states, static_cast<uint64_t>(reach), key, key - 1);
  }

  /// The candidates above a cut.
  Result<ThresholdPositions<Queue>> emitted(const CandidateMemory<Queue>& candidates, SelectState* states,
                                            uint64_t count, MagnitudeKey key, MagnitudeKey cut) {
    queue_.launch(BeginSelection{{}, {.decided = cut}, states, nullptr}, 1);
    ThresholdPositions<Queue> result{{queue_.template allocate<uint32_t>(count), count}, key};
    emit(queue_, candidates, Zeros::kSelected, states + 1, count, result.selected.positions.data());
    if (auto done = queue_.finish(); !done) return std::unexpected(done.error());
    return result;
  }

  Queue& queue_;
  const float* values_;
  uint64_t n_;
  uint64_t k_;
};

/// Selects as select_k_to_2k() does: the same positions and key.
///
/// values  [n] f32 in the queue's memory; k in [1, n].
/// Cost    a sample that crosses the bus (256 KiB at most), one pass, and the candidates. Where more than 2k entries
///         reach
///         the sample's threshold, their keys cross the bus.
/// Errors  NaN or infinity: non_finite.
/// Source  [RedSync19, 2.1, algorithm 3].
template <class Queue>
Result<ThresholdPositions<Queue>> k_to_2k(Queue& queue, const float* values, uint64_t n, uint64_t k) {
  if (k == 0 || k > n) return fail(ErrorCode::kInvalidArgument, "k is 0 or larger than the number of values");
  if (n > kDimensionMax) return fail(ErrorCode::kLimitExceeded, "more than 2^32 values to select from");
  return KTo2K<Queue>(queue, values, n, k).select();
}

}  // namespace millrace::cuda
