#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <optional>

#include "kernels/base/bytes.h"
#include "kernels/base/check.h"
#include "kernels/codec/codec.h"
#include "kernels/magnitude/magnitude_scan.h"
#include "kernels/quantize/bucket_layout.h"
#include "kernels/quantize/half_kernels.h"

namespace millrace {
namespace {

constexpr size_t kF16HeaderBytes = 4;

/// Of a stream, so that its largest magnitude comes as near to f16's as it can: all 40 binades of f16 are below it.
/// Empty: the magnitude is beyond what f32 can hold in 11 bits.
std::optional<int> f16_exponent_of(float largest) {
  if (largest == 0) return 0;
  constexpr int kHighestPower = 15;
  int exponent = std::max(std::ilogb(largest) - kHighestPower, kF16ExponentMin);
  if (std::ldexp(largest, -exponent) > kF16Largest) ++exponent;
  if (exponent > kF16ExponentMax) return std::nullopt;
  return exponent;
}

/// Codes the binary16 of [IEEE754] of value * 2^-exponent, one exponent a stream. Nothing overflows, and values within
/// 2^-29 of the largest have 11 bits. Rounded at random, so that the mean is the value. A contraction: the error of a
/// value is below 2^-10 of it, or below 2^-39 of the largest. (Below 2^-125 in f32, so a stream of nothing but
/// denormals may grow.)
class F16ValueCodec final : public ValueCodec {
 public:
  ValueCodecId id() const override { return ValueCodecId::kF16; }
  std::string_view name() const override { return "f16"; }
  std::string_view paper() const override { return "[IEEE754] binary16, rounded at random; [SparCML19, 6]"; }
  bool lossless(const CodecSpec&) const override { return false; }
  bool contraction(const CodecSpec&) const override { return true; }
  bool unbiased(const CodecSpec&) const override { return true; }
  uint64_t bytes_max(uint64_t count, const CodecSpec&) const override {
    return kF16HeaderBytes + count * sizeof(uint16_t);
  }
  Status check(ByteSpan bytes, uint64_t count) const override {
    ByteReader reader(bytes);
    const auto exponent = reader.get<int16_t>();
    const auto zero = reader.get<uint16_t>();
    if (!exponent || !zero || *zero != 0 || count > kDimensionMax || reader.remaining() != count * sizeof(uint16_t)) {
      return fail(ErrorCode::kMalformed, "f16: the length is not that of the values");
    }
    if (*exponent < kF16ExponentMin || *exponent > kF16ExponentMax)
      return fail(ErrorCode::kMalformed, "f16: an exponent that is out of range");
    return {};
  }

  Status encode(IndexSpan, std::span<const float> values, const EncodeOptions& options, ByteBuffer& out,
                std::span<float> decoded) const override {
    MILLRACE_CHECK(values.size() == decoded.size(), values.size(), decoded.size());
    const MagnitudeKey largest = max_key(values);
    if (largest >= kInfinityKey) return fail(ErrorCode::kNonFinite, "f16: NaN or infinity among the values");
    const auto exponent = f16_exponent_of(magnitude_of_key(largest));
    if (!exponent) return fail(ErrorCode::kLimitExceeded, "f16: a value that cannot be rounded up without overflow");
    ByteWriter writer(out);
    writer.put(static_cast<int16_t>(*exponent));
    writer.put(uint16_t{0});
    const size_t begin = out.size();
    out.resize(begin + values.size() * sizeof(uint16_t));
    for_each_chunk(values.size(), [&](uint64_t first, uint64_t count) {
      std::array<uint32_t, kQuantizeChunk> words;
      std::array<uint16_t, kQuantizeChunk> codes;
      random_fill(options.random, options.index_base + first, std::span(words).first(count));
      f16_round(values.data() + first, words.data(), *exponent, count, codes.data(), decoded.data() + first);
      std::memcpy(out.data() + begin + first * sizeof(uint16_t), codes.data(), count * sizeof(uint16_t));
    });
    return {};
  }

  Status decode(ByteSpan bytes, IndexSpan, std::span<float> out) const override {
    if (const Status sized = check(bytes, out.size()); !sized) return sized;
    const int exponent = *ByteReader(bytes).get<int16_t>();
    std::atomic<bool> finite = true;
    for_each_chunk(out.size(), [&](uint64_t first, uint64_t count) {
      std::array<uint16_t, kQuantizeChunk> codes;
      std::memcpy(codes.data(), bytes.data() + kF16HeaderBytes + first * sizeof(uint16_t), count * sizeof(uint16_t));
      if (!f16_all_finite(codes.data(), count)) finite = false;
      f16_values(codes.data(), exponent, count, out.data() + first);
    });
    if (finite) return {};
    return fail(ErrorCode::kMalformed, "f16: a code that is NaN or infinity");
  }
};

}  // namespace

const ValueCodec& f16_value_codec() {
  static const F16ValueCodec codec;
  return codec;
}

}  // namespace millrace
