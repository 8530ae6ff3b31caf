#include <algorithm>
#include <cmath>

#include "kernels/base/check.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/index/adaptive_blocks.h"

namespace millrace {
namespace {

/// No index takes less than log2(8 / 7) of a bit: what says more of them than that lets is refused before memory is
/// taken.
constexpr uint64_t kIndicesPerBitMax = 8;

class AdaptiveIndexCodec final : public IndexCodec {
 public:
  IndexCodecId id() const override { return IndexCodecId{9}; }
  std::string_view name() const override { return "adaptive"; }
  std::string_view paper() const override {
    return "ours: gaps, predicted from the gaps before them, in asymmetric numeral systems [ANS13]";
  }
  bool lossless() const override { return true; }

  /// Uniform indices take 1.01 to 1.03 of their entropy, about log2(n / k) + 1.44 bits.
  uint64_t bytes_estimate(uint64_t count, uint64_t dimension, const CodecSpec&) const override {
    if (count == 0) return 0;
    const double bits = std::log2(static_cast<double>(dimension) / static_cast<double>(count)) + 1.65;
    return static_cast<uint64_t>(bits * static_cast<double>(count) / 8.0) + 8 * (count / kAdaptiveBlock + 1);
  }

  Status encode(IndexSpan indices, uint64_t dimension, const EncodeOptions&, ByteBuffer& out,
                IndexBuffer*) const override {
    if (indices.empty()) return {};
    MILLRACE_CHECK(indices.back() < dimension, indices.back(), dimension);
    const size_t block_max = std::min(indices.size(), kAdaptiveBlock);
    Buffer<uint32_t> gaps(block_max);
    Buffer<uint16_t> bins(block_max);
    ByteBuffer code(adaptive_bytes_max(block_max));
    const AdaptiveScratch scratch{gaps.data(), bins.data(), code.data() + code.size()};
    AdaptiveStreamLevels levels;
    levels.fill(AdaptiveLevels::from(indices.size(), dimension));
    uint64_t next = 0;
    for (size_t at = 0; at < indices.size(); at += kAdaptiveBlock) {
      const IndexSpan block = indices.subspan(at, std::min(kAdaptiveBlock, indices.size() - at));
      const uint8_t* const begin = adaptive_encode_block(block, next, levels, scratch);
      out.insert(out.end(), begin, static_cast<const uint8_t*>(scratch.code_end));
      next = uint64_t{block.back()} + 1;
    }
    return {};
  }

  Status decode(ByteSpan bytes, uint64_t dimension, uint64_t count, IndexBuffer& indices) const override {
    if (count > dimension || count / (8 * kIndicesPerBitMax) > bytes.size()) return malformed();
    indices.resize(count);
    const uint8_t* at = bytes.data();
    const uint8_t* const end = at + bytes.size();
    AdaptiveStreamLevels levels;
    if (count > 0) levels.fill(AdaptiveLevels::from(count, dimension));
    uint64_t next = 0;
    for (size_t done = 0; done < count; done += kAdaptiveBlock) {
      const std::span<uint32_t> block = std::span(indices).subspan(done, std::min(kAdaptiveBlock, count - done));
      at = adaptive_decode_block(at, end, levels, block);
      if (at == nullptr) return malformed();
      for (uint32_t& index : block) {  // a block's gaps add up to less than 2^46
        next += index;
        index = static_cast<uint32_t>(next++);
      }
      if (next > dimension) return malformed();
    }
    return at == end ? Status{} : malformed();
  }

 private:
  static Status malformed() {
    return fail(ErrorCode::kMalformed, "adaptive code: cut off, out of range or with bytes left over");
  }
};

}  // namespace

const IndexCodec& adaptive_index_codec() {
  static const AdaptiveIndexCodec codec;
  return codec;
}

}  // namespace millrace
