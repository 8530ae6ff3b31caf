#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <optional>

#include "kernels/base/bytes.h"
#include "kernels/codec/codec_list.h"
#include "kernels/codec/typed_value_codec.h"
#include "kernels/quantize/bucket_layout.h"
#include "kernels/quantize/half_kernels.h"
#include "kernels/select/magnitude_scan.h"

namespace millrace {
namespace {

constexpr size_t kF16HeaderBytes = 4;

/// Exponents for which what a half stands for is a value of the type, exactly and without overflow; of f32 a normal one, since
/// arithmetic with others is many times slower, and whoever writes the bytes could ask for it.
template <typename T>
constexpr int kExponentMin = sizeof(T) == 4 ? kF16ExponentMin : -1050;
template <typename T>
constexpr int kExponentMax = sizeof(T) == 4 ? kF16ExponentMax : 1008;

/// Of a stream, so that its largest magnitude comes as near to f16's as it can: all 40 binades of f16 are below it. Empty: the
/// magnitude is beyond what the type can hold in 11 bits.
template <typename T>
std::optional<int> f16_exponent_of(T largest) {
  if (largest == 0) return 0;
  constexpr int kHighestPower = 15;
  int exponent = std::max(std::ilogb(largest) - kHighestPower, kExponentMin<T>);
  if (std::ldexp(largest, -exponent) > static_cast<T>(kF16Largest)) ++exponent;
  if (exponent > kExponentMax<T>) return std::nullopt;
  return exponent;
}

template <typename T>
void round_chunk(std::span<const T> values, int exponent, const uint32_t* words, uint16_t* codes, T* decoded) {
  if constexpr (sizeof(T) == sizeof(float)) {
    f16_round(values.data(), words, exponent, values.size(), codes, decoded);
  } else {
    std::array<float, kQuantizeChunk> scaled;
    std::ranges::transform(values, scaled.begin(),
                           [exponent](T value) { return static_cast<float>(std::ldexp(value, -exponent)); });
    f16_round(scaled.data(), words, 0, values.size(), codes, scaled.data());
    std::transform(scaled.begin(), scaled.begin() + static_cast<ptrdiff_t>(values.size()), decoded,
                   [exponent](float half) { return std::ldexp(static_cast<T>(half), exponent); });
  }
}

template <typename T>
void values_chunk(const uint16_t* codes, int exponent, std::span<T> values) {
  if constexpr (sizeof(T) == sizeof(float)) {
    f16_values(codes, exponent, values.size(), values.data());
  } else {
    std::array<float, kQuantizeChunk> halves;
    f16_values(codes, 0, values.size(), halves.data());
    std::transform(halves.begin(), halves.begin() + static_cast<ptrdiff_t>(values.size()), values.begin(),
                   [exponent](float half) { return std::ldexp(static_cast<T>(half), exponent); });
  }
}

/// IEEE 754's 16 bits of value * 2^-exponent, one exponent a stream: nothing overflows, and what is within 2^-29 of the largest
/// has 11 bits. Rounded at random, so that the mean is the value (f64: rounded to f32 first). A contraction: the error of a
/// value is below 2^-10 of it, or below 2^-39 of the largest (of f32 2^-125, so that a stream of nothing but denormals may grow).
class F16ValueCodec final : public TypedValueCodec<F16ValueCodec> {
 public:
  ValueCodecId id() const override { return ValueCodecId{3}; }
  std::string_view name() const override { return "f16"; }
  std::string_view paper() const override { return "IEEE 754 binary16, rounded at random; SparCML 6"; }
  bool lossless(const CodecSpec&) const override { return false; }
  bool contraction(const CodecSpec&) const override { return true; }
  bool unbiased(const CodecSpec&) const override { return true; }
  uint64_t bytes_max(uint64_t count, ValueType, const CodecSpec&) const override {
    return kF16HeaderBytes + count * sizeof(uint16_t);
  }
  Status check(ByteSpan bytes, uint64_t count, ValueType type) const override {
    ByteReader reader(bytes);
    const auto exponent = reader.get<int16_t>();
    const auto zero = reader.get<uint16_t>();
    if (!exponent || !zero || *zero != 0 || count > kDimensionMax || reader.remaining() != count * sizeof(uint16_t)) {
      return fail(ErrorCode::kMalformed, "f16: the length is not that of the values");
    }
    const bool known = type == ValueType::kF32 ? is_exponent_of<float>(*exponent) : is_exponent_of<double>(*exponent);
    if (!known) return fail(ErrorCode::kMalformed, "f16: an exponent that is out of range");
    return {};
  }

  template <typename T>
  Status encode_values(std::span<const T> values, const EncodeOptions& options, ByteBuffer& out,
                       std::span<T> decoded) const {
    const MagnitudeKey<T> largest = max_key(values);
    if (largest >= kInfinityKey<T>) return fail(ErrorCode::kNonFinite, "f16: NaN or infinity among the values");
    const auto exponent = f16_exponent_of(magnitude_of_key<T>(largest));
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
      round_chunk(values.subspan(first, count), *exponent, words.data(), codes.data(), decoded.data() + first);
      std::memcpy(out.data() + begin + first * sizeof(uint16_t), codes.data(), count * sizeof(uint16_t));
    });
    return {};
  }

  template <typename T>
  Status decode_values(ByteSpan bytes, std::span<T> out) const {
    if (const Status sized = check(bytes, out.size(), kValueTypeOf<T>); !sized) return sized;
    const int exponent = *ByteReader(bytes).get<int16_t>();
    std::atomic<bool> finite = true;
    for_each_chunk(out.size(), [&](uint64_t first, uint64_t count) {
      std::array<uint16_t, kQuantizeChunk> codes;
      std::memcpy(codes.data(), bytes.data() + kF16HeaderBytes + first * sizeof(uint16_t), count * sizeof(uint16_t));
      if (!f16_all_finite(codes.data(), count)) finite = false;
      values_chunk(codes.data(), exponent, out.subspan(first, count));
    });
    if (finite) return {};
    return fail(ErrorCode::kMalformed, "f16: a code that is NaN or infinity");
  }

 private:
  template <typename T>
  static bool is_exponent_of(int exponent) {
    return exponent >= kExponentMin<T> && exponent <= kExponentMax<T>;
  }
};

}  // namespace

const ValueCodec& f16_value_codec() {
  static const F16ValueCodec codec;
  return codec;
}

}  // namespace millrace
