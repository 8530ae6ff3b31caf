#include "kernels/select/top_k.h"

#include <algorithm>
#include <memory>
#include <numeric>

#include "kernels/magnitude/magnitude_sample.h"
#include "kernels/magnitude/magnitude_scan.h"
#include "kernels/magnitude/radix_select.h"
#include "kernels/magnitude/top_k_search.h"
#include "kernels/select/registry.h"

namespace millrace {
namespace {

// A stratified sample says where the k-th most likely is at the lowest.
ThresholdGuess guess_top_k_threshold(std::span<const float> values, uint64_t k) {
  const size_t n = values.size();
  if (n < kSampleFrom) return {0, n};
  const auto keys = sample_keys(values);
  const double rank = safe_sample_rank(k, n, keys.size());
  if (rank >= static_cast<double>(keys.size())) return {0, n};
  Buffer<MagnitudeKey> scratch;
  const double expected = rank / static_cast<double>(keys.size()) * static_cast<double>(n);
  return {kth_largest_key(keys, static_cast<uint64_t>(rank), scratch), static_cast<uint64_t>(expected)};
}

Status select_k(std::span<const float> values, uint64_t k, Zeros zeros, IndexBuffer& positions) {
  positions.clear();
  if (values.size() > kDimensionMax) return fail(ErrorCode::kLimitExceeded, "more than 2^32 values to select from");
  if (k == 0 || (k == values.size() && zeros == Zeros::kSelected)) {
    if (max_key(values) >= kInfinityKey) {
      return fail(ErrorCode::kNonFinite, "NaN or infinity among the values to select from");
    }
    positions.resize(k);
    std::iota(positions.begin(), positions.end(), 0u);
    return {};
  }
  return emit_top_k(values, k, zeros, search_top_k(values, k, guess_top_k_threshold(values, k)), positions);
}

class TopKSelector final : public Selector {
 public:
  explicit TopKSelector(uint64_t k) : k_(k) {}
  Status select(const StreamView& accumulator, const SelectContext& context, IndexBuffer& positions) override {
    const uint64_t k = std::min<uint64_t>(k_, accumulator.values.size());
    if (context.largest == nullptr || context.largest->keys.size() < k || k == 0) {
      return select_top_k_nonzero(accumulator.values, k, positions);
    }
    emit_largest(*context.largest, k, positions);
    return {};
  }
  uint64_t largest_wanted() const override { return k_; }

 private:
  uint64_t k_;
};

std::unique_ptr<Selector> make_top_k(const SelectionSpec& spec, uint64_t dimension) {
  return std::make_unique<TopKSelector>(k_of(spec, dimension));
}

}  // namespace

Status select_top_k(std::span<const float> values, uint64_t k, IndexBuffer& positions) {
  positions.clear();
  if (k > values.size()) return fail(ErrorCode::kInvalidArgument, "k is larger than the number of values");
  return select_k(values, k, Zeros::kSelected, positions);
}

Status select_top_k_nonzero(std::span<const float> values, uint64_t k, IndexBuffer& positions) {
  return select_k(values, std::min<uint64_t>(k, values.size()), Zeros::kSkipped, positions);
}

Result<float> top_k_threshold(std::span<const float> values, uint64_t k) {
  if (k == 0 || k > values.size())
    return fail(ErrorCode::kInvalidArgument, "k is 0 or larger than the number of values");
  if (values.size() > kDimensionMax) return fail(ErrorCode::kLimitExceeded, "more than 2^32 values to select from");
  const auto search = search_top_k(values, k, guess_top_k_threshold(values, k));
  if (!search) return std::unexpected(search.error());
  return magnitude_of_key(search->threshold.key);
}

float max_magnitude(std::span<const float> values) { return magnitude_of_key(max_key(values)); }

SelectionEntry top_k_selection() {
  return {.info = {.selection = SelectionId::kTopK,
                   .name = "topk",
                   .paper = "[SparCML19, 2.2]",
                   .summary = "the k entries of largest magnitude, exactly",
                   .parameters = kShareAlone,
                   .may_alternate_signs = true,
                   .alias = "exact"},
          .validate = validate_density_or_k,
          .make = make_top_k,
          .takes_all = k_is_all};
}

}  // namespace millrace
