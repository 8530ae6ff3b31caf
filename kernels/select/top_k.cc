#include "kernels/select/top_k.h"

#include <algorithm>
#include <memory>
#include <numeric>

#include "kernels/select/cut_search.h"
#include "kernels/select/magnitude_sample.h"
#include "kernels/select/magnitude_scan.h"
#include "kernels/select/radix_select.h"
#include "kernels/select/registry.h"

namespace millrace {
namespace {

// A stratified sample says where the k-th most likely is at the lowest.
template <typename T>
CutGuess<T> guess_cut(std::span<const T> values, uint64_t k) {
  const size_t n = values.size();
  if (n < kSampleFrom) return {0, n};
  const auto keys = sample_keys(values);
  const double rank = safe_sample_rank(k, n, keys.size());
  if (rank >= static_cast<double>(keys.size())) return {0, n};
  Buffer<MagnitudeKey<T>> scratch;
  const double expected = rank / static_cast<double>(keys.size()) * static_cast<double>(n);
  return {kth_largest_key<T>(keys, static_cast<uint64_t>(rank), scratch), static_cast<uint64_t>(expected)};
}

template <typename T>
Status select_k(std::span<const T> values, uint64_t k, Zeros zeros, IndexBuffer& positions) {
  positions.clear();
  if (values.size() > kDimensionMax) return fail(ErrorCode::kLimitExceeded, "more than 2^32 values to select from");
  if (k == 0 || (k == values.size() && zeros == Zeros::kSelected)) {
    if (max_key(values) >= kInfinityKey<T>) {
      return fail(ErrorCode::kNonFinite, "NaN or infinity among the values to select from");
    }
    positions.resize(k);
    std::iota(positions.begin(), positions.end(), 0u);
    return {};
  }
  return emit_cut(values, k, zeros, search_cut(values, k, guess_cut(values, k)), positions);
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
std::unique_ptr<Selector<T>> make_top_k(const SelectionSpec& spec, uint64_t dimension) {
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
  const auto search = search_cut(values, k, guess_cut(values, k));
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
          make_top_k<float>,
          make_top_k<double>};
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
