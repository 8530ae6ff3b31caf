#include "kernels/codec/bloom/bloom_policy.h"
#include "kernels/codec/codec.h"

namespace millrace {
namespace {

/// The values go to the first indices that the filter knows, in order: from the first false positive on each is at
/// another's place. It is no contraction [DeepReduce21, figure 13]; here to compare with.
class BloomNaiveIndexCodec final : public BloomPolicyCodec {
 public:
  IndexCodecId id() const override { return IndexCodecId{14}; }
  std::string_view name() const override { return "bloom_naive"; }
  std::string_view paper() const override { return "[DeepReduce21, 4]: naive Bloom filter"; }
  bool by_position() const override { return true; }

 protected:
  std::unique_ptr<BloomPicker> picker(const BloomPickInput& input) const override {
    return std::make_unique<RangePicker>(0, input.count);
  }
};

}  // namespace

const IndexCodec& bloom_naive_index_codec() {
  static const BloomNaiveIndexCodec codec;
  return codec;
}

}  // namespace millrace
