#include <algorithm>
#include <cmath>

#include "kernels/magnitude/magnitude_sample.h"
#include "kernels/magnitude/top_k_search.h"
#include "kernels/select/registry.h"

namespace millrace {
namespace {

// Ratio of max - mean, where the paper starts; it decreases by kStep times itself. The paper subtracts 0.2 each time.
// At 1 % of Gaussian data that leaves 8 k entries to select from. Where one entry is far above the rest, it leaves all.
constexpr double kFirstRatio = 0.8;
constexpr double kStep = 1.0 / 64;
constexpr uint32_t kSteps = 1024;    // down to a ratio of 8e-8
constexpr uint32_t kHalvings = 256;  // of the mean, which one entry may put above all others

/// The thresholds of algorithm 2 from the mean and the largest of a sample, the highest first.
class TrimThresholds {
 public:
  explicit TrimThresholds(std::span<const MagnitudeKey> keys) : keys_(keys) {
    max_ = magnitude_of_key(*std::max_element(keys.begin(), keys.end()));
    // Of shares of the largest: sums of huge magnitudes would be infinite.
    double sum = 0;
    for (const MagnitudeKey key : keys) sum += static_cast<double>(magnitude_of_key(key)) / max_;
    mean_share_ = sum / static_cast<double>(keys.size());
  }

  /// Of the at-th threshold, in [0, kSteps + kHalvings]. REQUIRES usable().
  MagnitudeKey key(uint32_t at) const {
    const double share = at < kSteps ? mean_share_ + kFirstRatio * std::pow(1 - kStep, at) * (1 - mean_share_)
                                     : std::ldexp(mean_share_, -static_cast<int>(at - kSteps));
    return magnitude_key(
        static_cast<float>(std::min(share, 1.0) * max_));  // a mean of equal shares may round to above 1
  }
  uint64_t count(MagnitudeKey key_min) const {
    return static_cast<uint64_t>(
        std::count_if(keys_.begin(), keys_.end(), [key_min](MagnitudeKey key) { return key >= key_min; }));
  }
  bool usable() const { return max_ > 0 && std::isfinite(max_); }

 private:
  std::span<const MagnitudeKey> keys_;
  double max_ = 0;
  double mean_share_ = 0;
};

// The highest threshold that k entries most likely reach.
ThresholdGuess trim(std::span<const float> values, uint64_t k) {
  const size_t n = values.size();
  if (n < kSampleFrom) return {0, n};
  const auto keys = sample_keys(values);
  const double samples = static_cast<double>(keys.size());
  const double wanted = safe_sample_rank(k, n, keys.size());
  if (wanted >= samples) return {0, n};
  const TrimThresholds thresholds(keys);
  uint32_t low = 0;
  uint32_t high = kSteps + kHalvings;
  // Nothing but zeros in the sample: all other entries are above its largest. NaN: the scan finds it.
  if (!thresholds.usable()) return {1, static_cast<uint64_t>(wanted / samples * static_cast<double>(n))};
  while (low < high) {  // the counts only grow on the way down: finds the steps' result in eleven counts
    const uint32_t middle = low + (high - low) / 2;
    if (static_cast<double>(thresholds.count(thresholds.key(middle))) >= wanted) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  const MagnitudeKey key = thresholds.key(high);
  const double expected = std::max(wanted, static_cast<double>(thresholds.count(key))) / samples;
  return {key, static_cast<uint64_t>(expected * static_cast<double>(n))};
}

/// Selects the k entries of largest magnitude, exactly: radix select among the entries over a threshold between mean
/// and maximum.
///
/// Source   [RedSync19, 2.1, algorithm 2]; with differences. Its while loop runs while there are more than k entries,
///          and reads a threshold that was never set. It must run while there are fewer than k, from the first
///          threshold on, as the text above it has it. The algorithm ends without the top-k of the remaining entries,
///          which the text has. Mean, maximum and counts are those of a sample: each would be a memory pass over the
///          whole. The thresholds are closer together, and continue below the mean.
class TrimmedSelector final : public Selector {
 public:
  explicit TrimmedSelector(uint64_t k) : k_(k) {}
  Status select(const StreamView& accumulator, const SelectContext&, IndexBuffer& positions) override {
    positions.clear();
    const std::span<const float> values = accumulator.values;
    const uint64_t k = std::min<uint64_t>(k_, values.size());
    if (k == 0) return {};
    return emit_top_k(values, k, Zeros::kSkipped, search_top_k(values, k, trim(values, k)), positions);
  }

 private:
  uint64_t k_;
};

std::unique_ptr<Selector> make_trimmed(const SelectionSpec& spec, uint64_t dimension) {
  return std::make_unique<TrimmedSelector>(k_of(spec, dimension));
}

}  // namespace

SelectionEntry trimmed_selection() {
  return {.info = {.selection = SelectionId::kTrimmed,
                   .name = "trimmed",
                   .paper = "[RedSync19, 2.1]",
                   .summary = "exactly k: radix select above a threshold from mean and maximum",
                   .parameters = kShareAlone,
                   .may_alternate_signs = true},
          .validate = validate_density_or_k,
          .make = make_trimmed,
          .takes_all = k_is_all};
}

}  // namespace millrace
