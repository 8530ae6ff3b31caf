#include "kernels/select/binary_search.h"

#include <algorithm>
#include <optional>

#include "kernels/select/cut_search.h"
#include "kernels/select/magnitude_sample.h"
#include "kernels/select/registry.h"
#include "kernels/select/top_k.h"

namespace millrace {
namespace {

template <typename T>
uint64_t count_from(std::span<const MagnitudeKey<T>> keys, MagnitudeKey<T> key_min) {
  return static_cast<uint64_t>(
      std::count_if(keys.begin(), keys.end(), [key_min](MagnitudeKey<T> key) { return key >= key_min; }));
}

/// A key from 1 up that at least `least` and at most `most` of the keys reach; where ties leave none, the highest one that more
/// reach; 1 if too few are not zero.
///
/// The paper halves a ratio between mean and maximum until an epsilon: on data with a few far outliers that is many halvings,
/// and may end with all entries or none. The bits of |x| are halved here: 31 (63) times at most, down to neighbouring numbers.
template <typename T>
MagnitudeKey<T> bisect(std::span<const MagnitudeKey<T>> keys, double least, double most) {
  MagnitudeKey<T> low = 1;  // enough reach it
  MagnitudeKey<T> high = kInfinityKey<T>;
  while (high - low > 1) {
    const MagnitudeKey<T> middle = low + (high - low) / 2;
    const double count = static_cast<double>(count_from<T>(keys, middle));
    if (count < least) {
      high = middle;
      continue;
    }
    low = middle;
    if (count <= most) break;
  }
  return low;
}

template <typename T>
CutGuess<T> guess_threshold(std::span<const T> values, uint64_t k) {
  const size_t n = values.size();
  if (n < kSampleFrom) return {1, n};
  const auto keys = sample_keys(values);
  const double samples = static_cast<double>(keys.size());
  const double least = safe_sample_rank(k, n, keys.size());
  if (least >= samples) return {1, n};
  constexpr double kRoom = 1.1;  // a few halvings fewer; still under 2k from a rank of 80 in the sample on
  const MagnitudeKey<T> key = bisect<T>(keys, least, kRoom * least);
  const double count = std::max(least, static_cast<double>(count_from<T>(keys, key)));
  return {key, static_cast<uint64_t>(count / samples * static_cast<double>(n))};
}

template <typename T>
Result<MagnitudeKey<T>> exactly_k(std::span<const T> values, uint64_t k, IndexBuffer& positions) {
  if (auto done = select_top_k_nonzero(values, k, positions); !done) return std::unexpected(done.error());
  return MagnitudeKey<T>{0};
}

/// Keeps of the candidates those that reach the key.
template <typename T>
void keep_from(const Candidates<T>& candidates, MagnitudeKey<T> key_min, IndexBuffer& positions) {
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
/// Source   redsync.txt, section 2.1, algorithm 3; differs in: algorithm 3 assigns thresholds to the bounds of a ratio, and
///          halves downwards where fewer than k/2 entries are left, so that a count in [k/2, k) raises the threshold: k is meant.
///          The search is over a sample first, and then over the entries that this leaves.
template <typename T>
class BinarySearchSelector final : public Selector<T> {
 public:
  explicit BinarySearchSelector(uint64_t k) : k_(k) {}
  Status select(const StreamView<T>& accumulator, const SelectContext&, IndexBuffer& positions) override {
    positions.clear();
    const std::span<const T> values = accumulator.values;
    const uint64_t k = std::min<uint64_t>(k_, values.size());
    if (k == 0) return {};
    if (auto done = select_k_to_2k(values, k, positions); !done) return std::unexpected(done.error());
    return {};
  }

 private:
  uint64_t k_;
};

template <typename T>
std::unique_ptr<Selector<T>> make_binary_search(const SelectionSpec& spec, uint64_t dimension) {
  return std::make_unique<BinarySearchSelector<T>>(k_of(spec, dimension));
}

}  // namespace

template <typename T>
Result<MagnitudeKey<T>> select_k_to_2k(std::span<const T> values, uint64_t k, IndexBuffer& positions) {
  positions.clear();
  const CutGuess<T> guess = guess_threshold(values, k);
  if (values.size() >= kSampleFrom && guess.expected > values.size() / 2) return exactly_k(values, k, positions);
  Candidates<T> candidates;
  const uint64_t limit = std::max(2 * k, guess.expected + guess.expected / 4) + kScanBlock;
  candidates.positions.reserve(std::min<uint64_t>(limit, values.size()) + kScanBlock + kScanSlack);
  candidates.keys.reserve(std::min<uint64_t>(limit, values.size()) + kScanBlock + kScanSlack);
  MagnitudeKey<T> key = std::min(guess.key, kInfinityKey<T>);
  const ScanEnd end = collect_at_least(values, key, limit, candidates);
  if (end == ScanEnd::kNonFinite) {
    return fail(ErrorCode::kNonFinite, "NaN or infinity among the values to select from");
  }
  const uint64_t found = candidates.keys.size();
  if (end == ScanEnd::kOverLimit || (found < k && key > 1)) return exactly_k(values, k, positions);
  if (found > 2 * k) {
    key = bisect<T>(candidates.keys, static_cast<double>(k), static_cast<double>(2 * k));
    if (count_from<T>(candidates.keys, key) > 2 * k) return exactly_k(values, k, positions);
    keep_from(candidates, key, positions);
    return key;
  }
  positions = std::move(candidates.positions);
  return found < k ? MagnitudeKey<T>{0} : key;
}

SelectionEntry binary_search_selection() {
  return {
      {Selection::kBinarySearch, "binary_search", "RedSync 2.1", "a threshold by bisection; between k and 2k entries",
       SelectionAmount::kShare, SelectionExtra::kNone, SelectionUse::kKeepsRest, true},
      validate_density_or_k,
      make_binary_search<float>,
      make_binary_search<double>};
}

template Result<uint32_t> select_k_to_2k<float>(std::span<const float>, uint64_t, IndexBuffer&);
template Result<uint64_t> select_k_to_2k<double>(std::span<const double>, uint64_t, IndexBuffer&);

}  // namespace millrace
