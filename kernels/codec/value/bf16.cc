#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "kernels/base/check.h"
#include "kernels/codec/codec.h"
#include "kernels/magnitude/magnitude_scan.h"
#include "kernels/quantize/bucket_layout.h"
#include "kernels/quantize/half_kernels.h"

namespace millrace {
namespace {

/// The upper half of an f32, rounded at random, so that the mean is the value. All of f32's range with 8 bits. A
/// contraction: the error of a value is below 2^-7 of it (of denormals below 2^-133). Only a stream of nothing but
/// values below that may grow.
class Bf16ValueCodec final : public ValueCodec {
 public:
  ValueCodecId id() const override { return ValueCodecId::kBf16; }
  std::string_view name() const override { return "bf16"; }
  std::string_view paper() const override { return "bfloat16, rounded at random; [SparCML19, 6]"; }
  bool lossless(const CodecSpec&) const override { return false; }
  bool contraction(const CodecSpec&) const override { return true; }
  bool unbiased(const CodecSpec&) const override { return true; }
  uint64_t bytes_max(uint64_t count, const CodecSpec&) const override { return count * sizeof(uint16_t); }
  Status check(ByteSpan bytes, uint64_t count) const override {
    if (count <= kDimensionMax && bytes.size() == count * sizeof(uint16_t)) return {};
    return fail(ErrorCode::kMalformed, "bf16: the length is not that of the values");
  }

  Status encode(IndexSpan, std::span<const float> values, const EncodeOptions& options, ByteBuffer& out,
                std::span<float> decoded) const override {
    MILLRACE_CHECK(values.size() == decoded.size(), values.size(), decoded.size());
    const MagnitudeKey largest = max_key(values);
    if (largest >= kInfinityKey) return fail(ErrorCode::kNonFinite, "bf16: NaN or infinity among the values");
    if (magnitude_of_key(largest) > kBf16Largest) {
      return fail(ErrorCode::kLimitExceeded, "bf16: a value that cannot be rounded up without overflow");
    }
    const size_t begin = out.size();
    out.resize(begin + values.size() * sizeof(uint16_t));
    for_each_chunk(values.size(), [&](uint64_t first, uint64_t count) {
      std::array<uint32_t, kQuantizeChunk> words;
      std::array<uint16_t, kQuantizeChunk> codes;
      random_fill(options.random, options.index_base + first, std::span(words).first(count));
      bf16_round(values.data() + first, words.data(), count, codes.data(), decoded.data() + first);
      std::memcpy(out.data() + begin + first * sizeof(uint16_t), codes.data(), count * sizeof(uint16_t));
    });
    return {};
  }

  Status decode(ByteSpan bytes, IndexSpan, std::span<float> out) const override {
    if (const Status sized = check(bytes, out.size()); !sized) return sized;
    std::atomic<bool> finite = true;
    for_each_chunk(out.size(), [&](uint64_t first, uint64_t count) {
      std::array<uint16_t, kQuantizeChunk> codes;
      std::memcpy(codes.data(), bytes.data() + first * sizeof(uint16_t), count * sizeof(uint16_t));
      if (!bf16_all_finite(codes.data(), count)) finite = false;
      bf16_values(codes.data(), count, out.data() + first);
    });
    if (finite) return {};
    return fail(ErrorCode::kMalformed, "bf16: a code that is NaN or infinity");
  }
};

}  // namespace

const ValueCodec& bf16_value_codec() {
  static const Bf16ValueCodec codec;
  return codec;
}

}  // namespace millrace
