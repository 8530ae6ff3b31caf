#include "kernels/codec/bloom/bloom_policy.h"
#include "kernels/codec/codec.h"

namespace millrace {
namespace {

/// The last of the positives.
class BloomRightIndexCodec final : public BloomPolicyCodec {
 public:
  IndexCodecId id() const override { return IndexCodecId{19}; }
  std::string_view name() const override { return "bloom_right"; }
  std::string_view paper() const override { return "[DeepReduce21, 10.4]: deterministic policy, rightmost"; }

 protected:
  std::unique_ptr<BloomPicker> picker(const BloomPickInput& input) const override {
    return std::make_unique<RangePicker>(input.positives - input.count, input.count);
  }
};

}  // namespace

const IndexCodec& bloom_right_index_codec() {
  static const BloomRightIndexCodec codec;
  return codec;
}

}  // namespace millrace
