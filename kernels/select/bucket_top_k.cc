#include <algorithm>
#include <array>
#include <functional>
#include <numeric>

#include "kernels/magnitude/magnitude_scan.h"
#include "kernels/select/registry.h"
#include "kernels/select/top_k.h"

namespace millrace {
namespace {

/// Selects the k of every `bucket_size` consecutive indices with the largest magnitude; of a sparse accumulator, of the
/// entries stored in that range of indices. Exact; zeros are left out.
///
/// Neighbouring buckets are alike: a bucket is scanned from a little less than the last one's threshold, which leaves a
/// few entries to compare. Where that leaves fewer than k, or many, the bucket is selected from the start.
/// Source   [SparCML19, 8.3].
class BucketTopKSelector final : public Selector {
 public:
  BucketTopKSelector(uint64_t k, uint32_t bucket_size) : k_(k), bucket_size_(bucket_size) {}

  Status select(const StreamView& accumulator, const SelectContext&, IndexBuffer& positions) override {
    positions.clear();
    MagnitudeKey guess = 1;
    uint64_t begin = 0;
    const uint64_t count = accumulator.count();
    while (begin < count) {
      const uint64_t end = bucket_end(accumulator, begin);
      guess = select_bucket(accumulator.values, begin, end, guess, positions);
      if (guess >= kInfinityKey) {
        positions.clear();
        return fail(ErrorCode::kNonFinite, "NaN or infinity among the values to select from");
      }
      begin = end;
    }
    return {};
  }

 private:
  // As many candidates as this are compared in place; buckets that leave more go through the general selection.
  static constexpr size_t kCandidatesMax = kScanBlock;
  // Of a bucket's k-th magnitude, to start the next bucket from: low enough that k are found nearly always.
  static constexpr float kGuess = 0.75F;

  // Position after the last entry of the bucket that holds the entry at `begin`.
  uint64_t bucket_end(const StreamView& accumulator, uint64_t begin) const {
    if (accumulator.dense) return std::min<uint64_t>(begin + bucket_size_, accumulator.count());
    const uint64_t index_end = (accumulator.indices[begin] / bucket_size_ + uint64_t{1}) * bucket_size_;
    const auto first = accumulator.indices.begin() + static_cast<ptrdiff_t>(begin);
    const auto last = first + static_cast<ptrdiff_t>(std::min<uint64_t>(bucket_size_, accumulator.count() - begin));
    return static_cast<uint64_t>(std::lower_bound(first, last, index_end) - accumulator.indices.begin());
  }

  // Appends the bucket's selection and returns where to start scanning the next bucket. Returns infinity's key if this
  // bucket has a value that is not finite (every start of the scan finds it).
  MagnitudeKey select_bucket(std::span<const float> values, uint64_t begin, uint64_t end, MagnitudeKey guess,
                             IndexBuffer& positions) {
    const uint64_t k = std::min<uint64_t>(k_, end - begin);
    if (end - begin > kCandidatesMax) return select_large(values.subspan(begin, end - begin), begin, k, positions);
    size_t found = scan_bucket(values, begin, end, guess);
    if (found < k && guess > 1) found = scan_bucket(values, begin, end, 1);
    if (found == 0) return 1;
    const auto [least, most] = std::minmax_element(keys_.begin(), keys_.begin() + static_cast<ptrdiff_t>(found));
    if (*most >= kInfinityKey) return kInfinityKey;
    const MagnitudeKey cut = append_largest(found, *least, k, positions);
    return std::max<MagnitudeKey>(magnitude_key(magnitude_of_key(cut) * kGuess), 1);
  }

  // Appends the k largest of the scanned (all of them, if there are no more) and returns the least of their keys.
  MagnitudeKey append_largest(size_t found, MagnitudeKey least, uint64_t k, IndexBuffer& positions) {
    uint64_t ties = found;
    if (found > k) {
      std::copy_n(keys_.begin(), found, order_.begin());
      const auto end = order_.begin() + static_cast<ptrdiff_t>(found);
      std::nth_element(order_.begin(), order_.begin() + static_cast<ptrdiff_t>(k - 1), end, std::greater<>());
      least = order_[k - 1];
      const auto above = std::count_if(order_.begin(), order_.begin() + static_cast<ptrdiff_t>(k),
                                       [least](MagnitudeKey key) { return key > least; });
      ties = k - static_cast<uint64_t>(above);
    }
    size_t used = positions.size();
    positions.resize(used + found);
    for (size_t i = 0; i < found; ++i) {
      const uint64_t tie = keys_[i] == least && ties != 0 ? 1 : 0;
      positions[used] = scanned_[i];
      used += (keys_[i] > least ? 1 : 0) + tie;
      ties -= tie;
    }
    positions.resize(used);
    return least;
  }

  size_t scan_bucket(std::span<const float> values, uint64_t begin, uint64_t end, MagnitudeKey key_min) {
    return scan_block(values.data() + begin, end - begin, static_cast<uint32_t>(begin), key_min, scanned_.data(),
                      keys_.data())
        .found;
  }

  MagnitudeKey select_large(std::span<const float> bucket, uint64_t begin, uint64_t k, IndexBuffer& positions) {
    if (!select_top_k_nonzero(bucket, k, large_)) return kInfinityKey;
    for (const uint32_t position : large_) positions.push_back(static_cast<uint32_t>(begin + position));
    return 1;
  }

  uint64_t k_;
  uint32_t bucket_size_;
  std::array<uint32_t, kCandidatesMax + kScanSlack> scanned_;
  std::array<MagnitudeKey, kCandidatesMax + kScanSlack> keys_;
  std::array<MagnitudeKey, kCandidatesMax> order_;
  IndexBuffer large_;
};

std::unique_ptr<Selector> make_bucket_top_k(const SelectionSpec& spec, uint64_t dimension) {
  return std::make_unique<BucketTopKSelector>(bucket_k_of(spec, dimension), spec.bucket_size);
}

constexpr SelectionParameter kBucketParameters[] = {
    kShareParameter,
    {.form = "BUCKET",
     .set = [](std::string_view word, SelectionSpec& spec) { return set_count(word, spec.bucket_size); },
     .value = [](const SelectionSpec& spec) { return SelectionNumber(uint64_t{spec.bucket_size}); }}};

bool takes_whole_buckets(const SelectionSpec& spec, uint64_t dimension) {
  return bucket_k_of(spec, dimension) >= std::min<uint64_t>(spec.bucket_size, dimension);
}

Status validate_bucket(const SelectionSpec& spec) {
  if (spec.bucket_size == 0) return fail(ErrorCode::kInvalidArgument, "a bucket holds at least 1 index");
  if (spec.density != 0 && !(spec.density > 0 && spec.density <= 1)) {
    return fail(ErrorCode::kInvalidArgument, "a density is in (0, 1]");
  }
  return validate_density_or_k(spec);
}

}  // namespace

SelectionEntry bucket_top_k_selection() {
  return {.info = {.selection = SelectionId::kBucketTopK,
                   .name = "bucket_topk",
                   .paper = "[SparCML19, 8.3]",
                   .summary = "the largest of every bucket of consecutive indices",
                   .parameters = kBucketParameters,
                   .alias = "bucket"},
          .validate = validate_bucket,
          .make = make_bucket_top_k,
          .takes_all = takes_whole_buckets};
}

}  // namespace millrace
