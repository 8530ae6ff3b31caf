#include "kernels/base/random.h"
#include "kernels/codec/bloom/bloom_policy.h"
#include "kernels/codec/codec.h"

namespace millrace {
namespace {

constexpr uint64_t kBloomP1PickStream = 0x7031;  // "p1": apart from the hash functions, which the same seed draws

/// Takes each of the positives with the chance (still to take) / (still to see) [Knuth97, 3.4.2, algorithm S]. Every
/// set of `count` is equally likely, and one pass and no memory suffice.
class RandomPicker final : public BloomPicker {
 public:
  explicit RandomPicker(const BloomPickInput& input)
      : random_(RandomKey::from(input.seed), kBloomP1PickStream), left_(input.positives), wanted_(input.count) {}
  bool takes_next() override {
    const bool taken = random_.next_below(left_--) < wanted_;
    wanted_ -= taken ? 1 : 0;
    return taken;
  }

 private:
  RandomSequence random_;
  uint64_t left_;
  uint64_t wanted_;
};

/// Policy P1: a random choice of the positives, by the seed that travels. Lemma 8 (i) is no equality. The error over
/// g_P is (1 - k1/r) ||g_P||^2 only where the rest of P is zeros, as of gradients that are sparse by themselves.
class BloomP1IndexCodec final : public BloomPolicyCodec {
 public:
  IndexCodecId id() const override { return IndexCodecId{15}; }
  std::string_view name() const override { return "bloom_p1"; }
  std::string_view paper() const override { return "[DeepReduce21, 4]: Bloom filter, policy P1"; }

 protected:
  std::unique_ptr<BloomPicker> picker(const BloomPickInput& input) const override {
    return std::make_unique<RandomPicker>(input);
  }
};

}  // namespace

const IndexCodec& bloom_p1_index_codec() {
  static const BloomP1IndexCodec codec;
  return codec;
}

}  // namespace millrace
