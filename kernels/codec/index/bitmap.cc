#include <cstring>

#include "kernels/base/check.h"
#include "kernels/codec/bits/bitmap_words.h"
#include "kernels/codec/codec.h"

namespace millrace {
namespace {

class BitmapIndexCodec final : public IndexCodec {
 public:
  IndexCodecId id() const override { return IndexCodecId::kBitmap; }
  std::string_view name() const override { return "bitmap"; }
  std::string_view paper() const override { return "[DeepReduce21, 3]: bit string of the dimension"; }
  bool lossless() const override { return true; }

  uint64_t bytes_estimate(uint64_t, uint64_t dimension, const CodecSpec&) const override { return (dimension + 7) / 8; }

  Status encode(IndexSpan indices, uint64_t dimension, const EncodeOptions&, ByteBuffer& out,
                IndexBuffer*) const override {
    MILLRACE_CHECK(indices.empty() || indices.back() < dimension, dimension);
    const size_t start = out.size();
    const size_t words = (dimension + 63) / 64;
    out.resize(start + words * 8);
    uint8_t* bits = out.data() + start;
    std::memset(bits, 0, words * 8);
    uint64_t word = 0;
    uint64_t word_index = 0;
    // Each index stores its whole word again: no load, and no branch on whether the word changes.
    for (const uint32_t index : indices) {
      word = (index / 64 == word_index ? word : 0) | uint64_t{1} << (index % 64);
      word_index = index / 64;
      std::memcpy(bits + word_index * 8, &word, sizeof(word));
    }
    out.resize(start + (dimension + 7) / 8);
    return {};
  }

  Status decode(ByteSpan bytes, uint64_t dimension, uint64_t count, IndexBuffer& indices) const override {
    if (bytes.size() != (dimension + 7) / 8)
      return fail(ErrorCode::kMalformed, "bitmap: not one bit an index of the dimension");
    if (dimension % 8 != 0 && bytes.back() >> (dimension % 8) != 0) {
      return fail(ErrorCode::kMalformed, "bitmap: a bit behind the dimension is set");
    }
    if (count_bits(bytes) != count)
      return fail(ErrorCode::kMalformed, "bitmap: set bits and number of indices disagree");
    indices.resize(count + kExpandSlack);
    expand_bits(bytes, indices.data());
    indices.resize(count);
    return {};
  }
};

}  // namespace

const IndexCodec& bitmap_index_codec() {
  static const BitmapIndexCodec codec;
  return codec;
}

}  // namespace millrace
