#include "kernels/select/top_k.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <numeric>

#include "kernels/select/magnitude_scan.h"
#include "kernels/select/radix_select.h"
#include "kernels/select/registry.h"

namespace millrace {
namespace {

constexpr size_t kSampleFrom = 4096;       // below this every entry is a candidate
constexpr size_t kEntriesPerSample = 256;  // at 2^24 entries the sample costs a twentieth of the memory pass
constexpr size_t kSampleMin = 256;
constexpr size_t kSampleMax = 65536;

std::unexpected<Error> non_finite() {
  return fail(ErrorCode::kNonFinite, "NaN or infinity among the values to select from");
}

// Where the k largest end: everything above `key`, and the first `ties` of those equal to it.
template <typename T>
struct Cut {
  MagnitudeKey<T> key = 0;
  uint64_t ties = 0;
};

template <typename T>
Cut<T> cut_at(std::span<const MagnitudeKey<T>> keys, uint64_t k) {
  Buffer<MagnitudeKey<T>> scratch;
  const MagnitudeKey<T> key = kth_largest_key<T>(keys, k, scratch);
  uint64_t above = 0;
  for (const MagnitudeKey<T> candidate : keys) above += candidate > key ? 1 : 0;
  return {key, k - above};
}

// Copies the positions that are in, without a branch an entry; `out` has room for one more than there are.
template <typename T>
size_t keep_above_cut(const uint32_t* positions, const MagnitudeKey<T>* keys, size_t count, Cut<T>& cut,
                      uint32_t* out) {
  size_t kept = 0;
  for (size_t i = 0; i < count; ++i) {
    const uint64_t tie = keys[i] == cut.key && cut.ties != 0 ? 1 : 0;
    out[kept] = positions[i];
    kept += (keys[i] > cut.key ? 1 : 0) + tie;
    cut.ties -= tie;
  }
  return kept;
}

// A key that the k-th largest most likely reaches, from a stratified sample; `expected` entries should be at or above it.
template <typename Key>
struct Estimate {
  Key key = 0;
  uint64_t expected = 0;
};

template <typename T>
Estimate<MagnitudeKey<T>> estimate_cut(std::span<const T> values, uint64_t k) {
  using Key = MagnitudeKey<T>;
  const size_t n = values.size();
  if (n < kSampleFrom) return {0, n};
  const size_t samples = std::clamp(n / kEntriesPerSample, kSampleMin, kSampleMax);
  // Four standard deviations of the count at or above the k-th: too high an estimate is one in 30,000 on independent
  // data and costs a slower path, never a wrong answer.
  const double rank = static_cast<double>(k) * static_cast<double>(samples) / static_cast<double>(n);
  const double safe_rank = rank + 4 * std::sqrt(rank) + 4;
  if (safe_rank >= static_cast<double>(samples)) return {0, n};
  Buffer<Key> keys(samples);
  // One entry of each stratum, where in it varies: no period of the data meets all of them. Fixed, so that a selection
  // takes the same path every time.
  uint64_t jitter = 0x9E3779B97F4A7C15u;
  for (size_t i = 0; i < samples; ++i) {
    const size_t begin = i * n / samples;
    const size_t end = (i + 1) * n / samples;
    jitter = jitter * 6364136223846793005u + 1442695040888963407u;
    keys[i] = magnitude_key(values[begin + (jitter >> 33) % (end - begin)]);
  }
  Buffer<Key> scratch;
  const Key key = kth_largest_key<T>(keys, static_cast<uint64_t>(safe_rank), scratch);
  const double expected = safe_rank / static_cast<double>(samples) * static_cast<double>(n);
  return {key, static_cast<uint64_t>(expected)};
}

// The cut of the k largest (1 <= k <= n), with candidates that hold all of them unless `from_values`.
template <typename T>
struct CutSearch {
  Cut<T> cut;
  Candidates<T> candidates;
  bool from_values = false;
};

template <typename T>
Result<CutSearch<T>> find_cut(std::span<const T> values, uint64_t k) {
  CutSearch<T> search;
  const auto estimate = estimate_cut(values, k);
  // Many candidates (k near n) are more writing than the radix passes over the values are reading.
  if (estimate.expected <= values.size() / 2 || values.size() < kSampleFrom) {
    const bool all = values.size() < kSampleFrom;
    const MagnitudeKey<T> key_min = all ? estimate.key : std::max<MagnitudeKey<T>>(estimate.key, 1);
    // A sample's non-finite entry is met in the scan too, which finds keys from infinity up whatever the estimate.
    const uint64_t limit = all ? values.size() : estimate.expected + estimate.expected / 4 + kScanBlock;
    search.candidates.positions.reserve(limit + kScanBlock + kScanSlack);
    search.candidates.keys.reserve(limit + kScanBlock + kScanSlack);
    const ScanEnd end = collect_at_least(values, std::min(key_min, kInfinityKey<T>), limit, search.candidates);
    if (end == ScanEnd::kNonFinite) return non_finite();
    const uint64_t found = search.candidates.keys.size();
    if (end == ScanEnd::kComplete && found >= k) {
      search.cut = cut_at<T>(search.candidates.keys, k);
      return search;
    }
    if (end == ScanEnd::kComplete && key_min == 1) {  // all that is not zero was found: the rest of k are zeros
      search.cut = {0, k - found};
      search.from_values = true;
      return search;
    }
  }
  search.from_values = true;
  const auto key = kth_largest_key_of_values(values, k);
  if (!key) return non_finite();
  const uint64_t above = count_at_least<T>(values, *key + 1);
  search.cut = {*key, k - above};
  return search;
}

template <typename T>
void emit_from_values(std::span<const T> values, Cut<T> cut, uint64_t k, IndexBuffer& positions) {
  std::array<uint32_t, kScanBlock + kScanSlack> block_positions;
  std::array<MagnitudeKey<T>, kScanBlock + kScanSlack> block_keys;
  positions.resize(k + 1);
  size_t used = 0;
  for (size_t at = 0; at < values.size() && used < k; at += kScanBlock) {
    const size_t count = std::min(kScanBlock, values.size() - at);
    const size_t found = scan_block<T>(values.data() + at, count, static_cast<uint32_t>(at), cut.key,
                                       block_positions.data(), block_keys.data());
    used += keep_above_cut<T>(block_positions.data(), block_keys.data(), found, cut, positions.data() + used);
  }
  positions.resize(used);
}

enum class Zeros : uint8_t { kSelected, kSkipped };

template <typename T>
Status select_k(std::span<const T> values, uint64_t k, Zeros zeros, IndexBuffer& positions) {
  positions.clear();
  if (values.size() > kDimensionMax) return fail(ErrorCode::kLimitExceeded, "more than 2^32 values to select from");
  if (k == 0 || (k == values.size() && zeros == Zeros::kSelected)) {
    if (max_key(values) >= kInfinityKey<T>) return non_finite();
    positions.resize(k);
    std::iota(positions.begin(), positions.end(), 0u);
    return {};
  }
  auto search = find_cut(values, k);
  if (!search) return std::unexpected(search.error());
  if (zeros == Zeros::kSkipped && search->cut.key == 0) search->cut.ties = 0;
  if (search->from_values) {
    emit_from_values(values, search->cut, k, positions);
    return {};
  }
  positions.resize(k + 1);
  const Candidates<T>& candidates = search->candidates;
  positions.resize(keep_above_cut<T>(candidates.positions.data(), candidates.keys.data(), candidates.keys.size(),
                                     search->cut, positions.data()));
  return {};
}

template <typename T>
class TopKSelector final : public Selector<T> {
 public:
  explicit TopKSelector(uint64_t k) : k_(k) {}
  Status select(const StreamView<T>& accumulator, const SelectContext&, IndexBuffer& positions) override {
    return select_top_k_nonzero(accumulator.values, k_, positions);
  }

 private:
  uint64_t k_;
};

template <typename T>
std::unique_ptr<Selector<T>> make(const SelectionSpec& spec, uint64_t dimension) {
  return std::make_unique<TopKSelector<T>>(k_of(spec, dimension));
}

}  // namespace

template <typename T>
Status select_top_k(std::span<const T> values, uint64_t k, IndexBuffer& positions) {
  positions.clear();
  if (k > values.size()) return fail(ErrorCode::kInvalidArgument, "k is larger than the number of values");
  return select_k(values, k, Zeros::kSelected, positions);
}

template <typename T>
Status select_top_k_nonzero(std::span<const T> values, uint64_t k, IndexBuffer& positions) {
  return select_k(values, std::min<uint64_t>(k, values.size()), Zeros::kSkipped, positions);
}

template <typename T>
Result<T> top_k_threshold(std::span<const T> values, uint64_t k) {
  if (k == 0 || k > values.size())
    return fail(ErrorCode::kInvalidArgument, "k is 0 or larger than the number of values");
  if (values.size() > kDimensionMax) return fail(ErrorCode::kLimitExceeded, "more than 2^32 values to select from");
  const auto search = find_cut(values, k);
  if (!search) return std::unexpected(search.error());
  return magnitude_of_key<T>(search->cut.key);
}

template <typename T>
T max_magnitude(std::span<const T> values) {
  return magnitude_of_key<T>(max_key(values));
}

SelectionEntry top_k_selection() {
  return {{Selection::kTopK, "topk", "SparCML 2.2", "the k entries of largest magnitude, exactly",
           SelectionAmount::kShare, SelectionExtra::kNone, SelectionUse::kKeepsRest, true, "exact"},
          validate_density_or_k,
          make<float>,
          make<double>};
}

#define MILLRACE_INSTANTIATE(T)                                                        \
  template Status select_top_k<T>(std::span<const T>, uint64_t, IndexBuffer&);         \
  template Status select_top_k_nonzero<T>(std::span<const T>, uint64_t, IndexBuffer&); \
  template Result<T> top_k_threshold<T>(std::span<const T>, uint64_t);                 \
  template T max_magnitude<T>(std::span<const T>)
MILLRACE_INSTANTIATE(float);
MILLRACE_INSTANTIATE(double);
#undef MILLRACE_INSTANTIATE

}  // namespace millrace
