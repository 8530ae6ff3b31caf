#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include "kernels/draw/draw.h"
#include "kernels/select/registry.h"
#include "kernels/stream/index_sort.h"

namespace millrace {
namespace {

/// `k` of the numbers below n, each set of k as likely as any other; increasing. REQUIRES: k <= n / 2.
IndexBuffer few_below(uint64_t n, uint64_t k, RandomSequence& random) {
  const auto bits = static_cast<uint32_t>(std::bit_width(n - 1));
  IndexBuffer all;
  IndexBuffer fresh;
  IndexBuffer merged;
  Buffer<uint64_t> keys;
  Buffer<uint64_t> scratch;
  // As many as are missing, and again for those that were there: the set is the first k different ones of one sequence.
  while (all.size() < k) {
    keys.resize(k - all.size());
    for (size_t i = 0; i < keys.size(); ++i) {
      keys[i] = index_key(static_cast<uint32_t>(random.next_below(n)), static_cast<uint32_t>(i));
    }
    sort_by_index(keys, bits, scratch);
    fresh.resize(keys.size());
    std::ranges::transform(keys, fresh.begin(), index_of_key);
    fresh.erase(std::unique(fresh.begin(), fresh.end()), fresh.end());
    merged.resize(all.size() + fresh.size());
    merged.erase(std::set_union(all.begin(), all.end(), fresh.begin(), fresh.end(), merged.begin()), merged.end());
    std::swap(all, merged);
  }
  return all;
}

/// Does the same for any k <= n, where k is a large part of it. Takes one number after the other, each with the chance
/// (numbers still missing) / (numbers left). The chances are those of 32 bits: off by 2^-32 at most, of k / n.
/// Source   [Knuth97, 3.4.2, algorithm S].
IndexBuffer many_below(uint64_t n, uint64_t k, RandomSequence& random) {
  IndexBuffer all(k + 1);  // one more is written, and not kept
  uint64_t taken = 0;
  for (uint64_t number = 0; taken < k; ++number) {
    all[taken] = static_cast<uint32_t>(number);
    taken += (uint64_t{random.next_u32()} * (n - number) >> 32) < k - taken ? 1 : 0;
  }
  all.resize(k);
  return all;
}

constexpr uint64_t kManyFrom = 16;  ///< a share of n: sorting takes longer than passing all from about here on

IndexBuffer some_below(uint64_t n, uint64_t k, RandomSequence& random) {
  if (k == 0) return {};
  return k < n / kManyFrom ? few_below(n, k, random) : many_below(n, k, random);
}

/// Selects k of the entries that are not 0, each set of them as likely as any other. In unbiased jobs they are scaled
/// by n / k, where n is the number of entries that are not 0. (The usual n / k counts zeros too. Then fewer than k
/// entries are sent, and scaled by more.)
///
/// Errors   draw(): non_finite also where the largest value, scaled, would be.
/// Cost     two read passes, and a sort of k numbers; from n / 16 on, n random numbers.
/// Source   [DeepReduce21, 10.2, remark 1] (Random-r).
class RandomSelector final : public Selector {
 public:
  explicit RandomSelector(uint64_t k) : k_(k) {}

  Status select(const StreamView& accumulator, const SelectContext& context, IndexBuffer& positions) override {
    positions.clear();
    const ScannedBlock present = count_at_least(accumulator.values, 1);
    if (present.largest >= kInfinityKey) return refuse_non_finite();
    choose(accumulator.values, present.found, context.random, positions);
    return {};
  }

  Status draw(const StreamView& accumulator, const SelectContext& context, IndexBuffer& positions,
              Buffer<float>& drawn) override {
    positions.clear();
    drawn.clear();
    const std::span<const float> values = accumulator.values;
    const auto [present, largest] = count_at_least(values, 1);
    const double scale =
        static_cast<double>(present) / static_cast<double>(std::min(std::max<uint64_t>(present, 1), k_));
    if (Status fits = fits_scaled(largest, scale); !fits) return fits;
    choose(values, present, context.random, positions);
    drawn.resize(positions.size());
    std::ranges::transform(positions, drawn.begin(), [&](uint32_t position) {
      return static_cast<float>(static_cast<double>(values[position]) * scale);
    });
    return {};
  }

 private:
  void choose(std::span<const float> values, uint64_t present, RandomKey key, IndexBuffer& positions) const {
    RandomSequence random(key, kDrawStream);
    positions = some_below(present, std::min(present, k_), random);
    if (present < values.size()) to_positions(values, positions);
  }

  /// From the how-manieth entry that is not 0 to where it is.
  static void to_positions(std::span<const float> values, IndexBuffer& ranks) {
    std::array<uint32_t, kScanBlock + kScanSlack> found;
    uint64_t before = 0;
    size_t next = 0;
    for (size_t at = 0; at < values.size() && next < ranks.size(); at += kScanBlock) {
      const size_t count = std::min(kScanBlock, values.size() - at);
      const size_t here = scan_positions(values.data() + at, count, static_cast<uint32_t>(at), 1, found.data()).found;
      for (; next < ranks.size() && ranks[next] < before + here; ++next) ranks[next] = found[ranks[next] - before];
      before += here;
    }
  }

  uint64_t k_;
};

std::unique_ptr<Selector> make_random(const SelectionSpec& spec, uint64_t dimension) {
  return std::make_unique<RandomSelector>(k_of(spec, dimension));
}

}  // namespace

SelectionEntry random_selection() {
  return {.info = {.selection = SelectionId::kRandom,
                   .name = "random",
                   .paper = "[DeepReduce21, 10.2] (Random-r)",
                   .summary = "k entries regardless of their size; in unbiased jobs scaled up",
                   .parameters = kShareAlone,
                   .use = SelectionUse::kBoth},
          .validate = validate_density_or_k,
          .make = make_random,
          .takes_all = k_is_all};
}

}  // namespace millrace
