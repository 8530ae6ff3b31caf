#include "kernels/codec/bloom/bloom_policy.h"
#include "kernels/codec/codec.h"

namespace millrace {
namespace {

/// Those in the middle of the positives: as many are left out before as behind, or one less.
class BloomMiddleIndexCodec final : public BloomPolicyCodec {
 public:
  IndexCodecId id() const override { return IndexCodecId{18}; }
  std::string_view name() const override { return "bloom_middle"; }
  std::string_view paper() const override { return "[DeepReduce21, 10.4]: deterministic policy, middle"; }

 protected:
  std::unique_ptr<BloomPicker> picker(const BloomPickInput& input) const override {
    return std::make_unique<RangePicker>((input.positives - input.count) / 2, input.count);
  }
};

}  // namespace

const IndexCodec& bloom_middle_index_codec() {
  static const BloomMiddleIndexCodec codec;
  return codec;
}

}  // namespace millrace
