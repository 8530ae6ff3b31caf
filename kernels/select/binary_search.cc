#include "kernels/select/binary_search.h"

#include <algorithm>
#include <optional>

#include "kernels/magnitude/magnitude_sample.h"
#include "kernels/magnitude/top_k_search.h"
#include "kernels/select/registry.h"
#include "kernels/select/top_k.h"

namespace millrace {
namespace {

uint64_t count_from(std::span<const MagnitudeKey> keys, MagnitudeKey key_min) {
  return static_cast<uint64_t>(
      std::count_if(keys.begin(), keys.end(), [key_min](MagnitudeKey key) { return key >= key_min; }));
}

Result<MagnitudeKey> exactly_k(std::span<const float> values, uint64_t k, IndexBuffer& positions) {
  if (auto done = select_top_k_nonzero(values, k, positions); !done) return std::unexpected(done.error());
  return MagnitudeKey{0};
}

/// Keeps of the candidates those that reach the key.
void keep_from(const Candidates& candidates, MagnitudeKey key_min, IndexBuffer& positions) {
  positions.resize(candidates.positions.size() + 1);
  size_t kept = 0;
  for (size_t i = 0; i < candidates.positions.size(); ++i) {
    positions[kept] = candidates.positions[i];
    kept += candidates.keys[i] >= key_min ? 1 : 0;
  }
  positions.resize(kept);
}

/// Between k and 2k entries, by a threshold.
///
/// Source   [RedSync19, 2.1, algorithm 3]; differs in: algorithm 3 assigns thresholds to the bounds of a ratio. It
///          halves downwards where fewer than k/2 entries are left, so that a count in [k/2, k) raises the threshold: k
///          is meant. The search is over a sample first, and then over the entries that this leaves.
class BinarySearchSelector final : public Selector {
 public:
  explicit BinarySearchSelector(uint64_t k) : k_(k) {}
  Status select(const StreamView& accumulator, const SelectContext&, IndexBuffer& positions) override {
    positions.clear();
    const std::span<const float> values = accumulator.values;
    const uint64_t k = std::min<uint64_t>(k_, values.size());
    if (k == 0) return {};
    if (auto done = select_k_to_2k(values, k, positions); !done) return std::unexpected(done.error());
    return {};
  }

 private:
  uint64_t k_;
};

std::unique_ptr<Selector> make_binary_search(const SelectionSpec& spec, uint64_t dimension) {
  return std::make_unique<BinarySearchSelector>(k_of(spec, dimension));
}

}  // namespace

// The paper halves a ratio between mean and maximum until an epsilon. On data with a few far outliers that is many
// halvings, and may end with all entries or none. The bits of |x| are halved here: 31 times at most, down to
// neighbouring numbers.
MagnitudeKey bisect_keys(std::span<const MagnitudeKey> keys, double least, double most) {
  MagnitudeKey low = 1;  // enough reach it
  MagnitudeKey high = kInfinityKey;
  while (high - low > 1) {
    const MagnitudeKey middle = low + (high - low) / 2;
    const double count = static_cast<double>(count_from(keys, middle));
    if (count < least) {
      high = middle;
      continue;
    }
    low = middle;
    if (count <= most) break;
  }
  return low;
}

ThresholdGuess guess_k_to_2k(std::span<const MagnitudeKey> sample, uint64_t n, uint64_t k) {
  if (sample.empty()) return {1, n};
  const double samples = static_cast<double>(sample.size());
  const double least = safe_sample_rank(k, n, sample.size());
  if (least >= samples) return {1, n};
  constexpr double kRoom = 1.1;  // a few halvings fewer; still under 2k from a rank of 80 in the sample on
  const MagnitudeKey key = bisect_keys(sample, least, kRoom * least);
  const double count = std::max(least, static_cast<double>(count_from(sample, key)));
  return {key, static_cast<uint64_t>(count / samples * static_cast<double>(n))};
}

uint64_t k_to_2k_limit(const ThresholdGuess& guess, uint64_t k) {
  return std::max(2 * k, guess.expected + guess.expected / 4) + kScanBlock;
}

Result<MagnitudeKey> select_k_to_2k(std::span<const float> values, uint64_t k, IndexBuffer& positions) {
  positions.clear();
  const auto sample = values.size() < kSampleFrom ? Buffer<MagnitudeKey>() : sample_keys(values);
  const ThresholdGuess guess = guess_k_to_2k(sample, values.size(), k);
  if (values.size() >= kSampleFrom && guess.expected > values.size() / 2) return exactly_k(values, k, positions);
  Candidates candidates;
  const uint64_t limit = k_to_2k_limit(guess, k);
  candidates.positions.reserve(std::min<uint64_t>(limit, values.size()) + kScanBlock + kScanSlack);
  candidates.keys.reserve(std::min<uint64_t>(limit, values.size()) + kScanBlock + kScanSlack);
  MagnitudeKey key = std::min(guess.key, kInfinityKey);
  const ScanEnd end = collect_at_least(values, key, limit, candidates);
  if (end == ScanEnd::kNonFinite) {
    return fail(ErrorCode::kNonFinite, "NaN or infinity among the values to select from");
  }
  const uint64_t found = candidates.keys.size();
  if (end == ScanEnd::kOverLimit || (found < k && key > 1)) return exactly_k(values, k, positions);
  if (found > 2 * k) {
    key = bisect_keys(candidates.keys, static_cast<double>(k), static_cast<double>(2 * k));
    if (count_from(candidates.keys, key) > 2 * k) return exactly_k(values, k, positions);
    keep_from(candidates, key, positions);
    return key;
  }
  positions = std::move(candidates.positions);
  return found < k ? MagnitudeKey{0} : key;
}

SelectionEntry binary_search_selection() {
  return {.info = {.selection = SelectionId::kBinarySearch,
                   .name = "binary_search",
                   .paper = "[RedSync19, 2.1]",
                   .summary = "a threshold by bisection; between k and 2k entries",
                   .parameters = kShareAlone,
                   .may_alternate_signs = true},
          .validate = validate_density_or_k,
          .make = make_binary_search,
          .takes_all = k_is_all};
}

}  // namespace millrace
