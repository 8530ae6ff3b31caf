#include "kernels/codec/bloom/bloom_policy.h"
#include "kernels/codec/codec.h"

namespace millrace {
namespace {

/// The first of the positives. Lemma 7 (ii) gives all deterministic policies the error (1 - r/d) ||g||^2. This is a
/// mean over drawn sets, and no equality for a given gradient: this policy always omits the last ones.
class BloomLeftIndexCodec final : public BloomPolicyCodec {
 public:
  IndexCodecId id() const override { return IndexCodecId{17}; }
  std::string_view name() const override { return "bloom_left"; }
  std::string_view paper() const override { return "[DeepReduce21, 10.4]: deterministic policy, leftmost"; }

 protected:
  std::unique_ptr<BloomPicker> picker(const BloomPickInput& input) const override {
    return std::make_unique<RangePicker>(0, input.count);
  }
};

}  // namespace

const IndexCodec& bloom_left_index_codec() {
  static const BloomLeftIndexCodec codec;
  return codec;
}

}  // namespace millrace
