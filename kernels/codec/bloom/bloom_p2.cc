#include <algorithm>
#include <compare>
#include <utility>
#include <vector>

#include "kernels/base/random.h"
#include "kernels/codec/bloom/bloom_policy.h"
#include "kernels/codec/codec.h"

namespace millrace {
namespace {

constexpr uint64_t kBloomP2PickStream = 0x7032;  // "p2": apart from the hash functions, which the same seed draws

/// [DeepReduce21, algorithm 1]. Every bit of the filter has a conflict set: the positives that it was set by, or seems
/// to be. A set of one is no false positive. Smallest sets first, one index is drawn from each, again and again.
///
/// Differs from the paper where that draws from an empty set (line 11, once line 10 has emptied it): an empty set is
/// dropped. Also where it takes more than r (its while looks only after all sets): the choice ends with the r-th. Sets
/// of one size go by their bits. An index that two hash functions send to one bit is in its set once.
class ConflictPicker final : public BloomPicker {
 public:
  explicit ConflictPicker(const BloomPickInput& input) : taken_(input.positives, false) {
    collect(input);
    draw(input);
  }
  bool takes_next() override {
    if (next_ == taken_.size()) return false;
    return taken_[next_++];
  }

  /// Returns a bound of the memory of one: a place for each bit, a set for each set bit, members and positives.
  static uint64_t bytes(const BloomShape& shape, uint64_t positives) {
    const uint64_t members = positives * shape.probes;
    return shape.bits * sizeof(uint64_t) + std::min(shape.bits, members) * sizeof(Set) + members * sizeof(uint32_t) +
           positives * sizeof(uint32_t) + positives / 8;
  }

 private:
  /// Its members are members_[begin, begin + size): numbers of positives.
  struct Set {
    uint64_t size = 0;
    uint64_t begin = 0;  // larger for later bits
    auto operator<=>(const Set&) const = default;
  };

  void collect(const BloomPickInput& input) {
    Buffer<uint32_t> positives;
    positives.reserve(input.positives);
    input.filter.scan(input.dimension, [&](IndexSpan some) {
      if (positives.size() + some.size() > input.positives) return false;  // refused later, by their number
      positives.insert(positives.end(), some.begin(), some.end());
      return true;
    });
    std::vector<uint64_t> places(input.filter.hashes.bits, 0);  // by bit: how many members, then where they end
    for_each_member(input.filter.hashes, positives, [&](uint32_t bit, uint32_t) { ++places[bit]; });
    sets_.reserve(static_cast<size_t>(std::ranges::count_if(places, [](uint64_t size) { return size > 0; })));
    uint64_t begin = 0;
    for (uint64_t& place : places) {
      if (place > 0) sets_.push_back({place, begin});
      begin += std::exchange(place, begin);
    }
    members_.resize(begin);
    for_each_member(input.filter.hashes, positives,
                    [&](uint32_t bit, uint32_t number) { members_[places[bit]++] = number; });
    std::ranges::sort(sets_);
  }

  template <typename Visit>
  static void for_each_member(const BloomHashes& hashes, IndexSpan positives, const Visit& visit) {
    std::array<uint32_t, kBloomProbesMax> bits{};
    for (uint32_t number = 0; number < positives.size(); ++number) {
      for (uint32_t p = 0; p < hashes.probes; ++p) {
        bits[p] = hashes.bit(positives[number], p);
        if (std::find(bits.begin(), bits.begin() + p, bits[p]) == bits.begin() + p) visit(bits[p], number);
      }
    }
  }

  /// A draw that meets an index that is taken already removes it: every member is met once at most.
  void draw(const BloomPickInput& input) {
    RandomSequence random(RandomKey::from(input.seed), kBloomP2PickStream);
    uint64_t wanted = input.count;
    while (wanted > 0 && !sets_.empty()) {
      size_t kept = 0;
      for (Set set : sets_) {
        bool found = false;
        while (wanted > 0 && set.size > 0 && !found) {
          uint32_t& member = members_[set.begin + random.next_below(set.size)];
          found = !taken_[member];
          taken_[member] = true;
          wanted -= found ? 1 : 0;
          member = members_[set.begin + --set.size];
        }
        if (set.size > 0) sets_[kept++] = set;
      }
      sets_.resize(kept);
    }
  }

  std::vector<bool> taken_;  // by number of the positive
  size_t next_ = 0;
  Buffer<uint32_t> members_;
  std::vector<Set> sets_;
};

/// Policy P2.
class BloomP2IndexCodec final : public BloomPolicyCodec {
 public:
  IndexCodecId id() const override { return IndexCodecId{16}; }
  std::string_view name() const override { return "bloom_p2"; }
  std::string_view paper() const override { return "[DeepReduce21, 4, algorithm 1]: Bloom filter, policy P2"; }

 protected:
  std::unique_ptr<BloomPicker> picker(const BloomPickInput& input) const override {
    const BloomHashes& hashes = input.filter.hashes;
    if (!may_be({{hashes.bits, hashes.probes}, input.dimension, input.positives, input.count})) return nullptr;
    return std::make_unique<ConflictPicker>(input);
  }

  uint64_t picker_bytes(const PickSizes& sizes) const override {
    return may_be(sizes) ? ConflictPicker::bytes(sizes.shape, sizes.positives) : 0;
  }

 private:
  /// Conflict sets have positives * probes members. A half-full filter has rate * d = d / 2^probes false positives. So
  /// the members are below count * probes + d / 2 plus kDrawn; hostile filters with more get no memory.
  static bool may_be(const PickSizes& sizes) {
    constexpr uint64_t kDrawn = 65'536;
    const uint64_t probes = sizes.shape.probes;
    return sizes.positives * probes <= sizes.count * probes + 2 * sizes.dimension + kDrawn;
  }
};

}  // namespace

const IndexCodec& bloom_p2_index_codec() {
  static const BloomP2IndexCodec codec;
  return codec;
}

}  // namespace millrace
