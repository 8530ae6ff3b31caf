#include <algorithm>
#include <numeric>

#include "kernels/base/random.h"
#include "kernels/codec/bloom_policy.h"
#include "kernels/codec/codec_list.h"

namespace millrace {
namespace {

constexpr uint64_t kPickStream = 0x7032;  // "p2": apart from the hash functions, which the same seed draws

/// DeepReduce, algorithm 1. Every bit of the filter has a conflict set: the positives that it was set by, or seems to be. A
/// set of one is no false positive. Smallest sets first, one index is drawn from each, again and again.
///
/// Differs from the paper where that draws from an empty set (line 11, once line 10 has taken away all that a set has) and
/// where it takes more than r (its while looks only after all sets): an empty set is dropped, and the choice ends with the
/// r-th. Sets of one size go by their bits. An index that two hash functions send to one bit is in its set once.
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

 private:
  /// Members of the set of bit b are members_[begin_[b], begin_[b + 1]): numbers of positives.
  void collect(const BloomPickInput& input) {
    Buffer<uint32_t> positives;
    positives.reserve(input.positives);
    input.filter.scan(input.dimension, [&](IndexSpan some) {
      if (positives.size() + some.size() > input.positives) return false;  // refused later, by their number
      positives.insert(positives.end(), some.begin(), some.end());
      return true;
    });
    const uint32_t bits = input.filter.hashes.bits;
    begin_.resize(size_t{bits} + 1);
    std::fill(begin_.begin(), begin_.end(), 0);
    for_each_member(input.filter.hashes, positives, [&](uint32_t bit, uint32_t) { ++begin_[bit + 1]; });
    std::partial_sum(begin_.begin(), begin_.end(), begin_.begin());
    members_.resize(begin_.back());
    Buffer<uint64_t> at(begin_.begin(), begin_.end() - 1);
    for_each_member(input.filter.hashes, positives,
                    [&](uint32_t bit, uint32_t number) { members_[at[bit]++] = number; });
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
    struct Set {
      uint64_t begin;
      uint64_t size;
    };
    std::vector<Set> sets;
    for (size_t bit = 0; bit + 1 < begin_.size(); ++bit) {
      if (begin_[bit + 1] > begin_[bit]) sets.push_back({begin_[bit], begin_[bit + 1] - begin_[bit]});
    }
    std::stable_sort(sets.begin(), sets.end(), [](const Set& a, const Set& b) { return a.size < b.size; });
    RandomSequence random(RandomKey::from(input.seed), kPickStream);
    uint64_t wanted = input.count;
    while (wanted > 0 && !sets.empty()) {
      size_t kept = 0;
      for (Set set : sets) {
        bool found = false;
        while (wanted > 0 && set.size > 0 && !found) {
          uint32_t& member = members_[set.begin + random.next_below(set.size)];
          found = !taken_[member];
          taken_[member] = true;
          wanted -= found ? 1 : 0;
          member = members_[set.begin + --set.size];
        }
        if (set.size > 0) sets[kept++] = set;
      }
      sets.resize(kept);
    }
  }

  std::vector<bool> taken_;  // by number of the positive
  size_t next_ = 0;
  Buffer<uint64_t> begin_;
  Buffer<uint32_t> members_;
};

/// Policy P2.
class BloomP2IndexCodec final : public BloomPolicyCodec {
 public:
  IndexCodecId id() const override { return IndexCodecId{16}; }
  std::string_view name() const override { return "bloom_p2"; }
  std::string_view paper() const override { return "DeepReduce 4, algorithm 1: Bloom filter, policy P2"; }

 protected:
  /// Conflict sets have positives * probes members. A filter that is half full has rate * d = d / 2^probes false positives,
  /// so that they are below count * probes + d / 2 with what is drawn; hostile ones that say more get no memory.
  std::unique_ptr<BloomPicker> picker(const BloomPickInput& input) const override {
    constexpr uint64_t kDrawn = 65'536;
    const uint64_t probes = input.filter.hashes.probes;
    if (input.positives * probes > input.count * probes + 2 * input.dimension + kDrawn) return nullptr;
    return std::make_unique<ConflictPicker>(input);
  }
};

}  // namespace

const IndexCodec& bloom_p2_index_codec() {
  static const BloomP2IndexCodec codec;
  return codec;
}

}  // namespace millrace
