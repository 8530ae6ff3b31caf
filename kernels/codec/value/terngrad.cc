#include <array>
#include <cstring>
#include <string>

#include "kernels/base/bytes.h"
#include "kernels/base/check.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/value/bucket_size_text.h"
#include "kernels/quantize/bucket_layout.h"
#include "kernels/quantize/qsgd_levels.h"

namespace millrace {
namespace {

constexpr size_t kTerngradHeaderBytes = 4;
constexpr uint32_t kSignAndLevel = 2;  // bits of the code of one level
constexpr size_t kDigits = 5;          // base 3, a byte: 3^5 = 243
constexpr uint32_t kDigitsEnd = 243;

BucketLayout terngrad_layout_of(uint64_t count, uint32_t bucket_size) {
  return {.count = count,
          .bucket_size = bucket_size,
          .head_bytes = sizeof(float),
          .codes_bits = 8,
          .codes_values = kDigits};
}

/// Codes 0, 1 (positive) and 3 (negative) as digits 0, 1 and 2, the first one lowest.
void pack_digits(uint8_t* codes, size_t count, uint8_t* bytes) {
  const size_t whole = (count + kDigits - 1) / kDigits * kDigits;
  std::fill(codes + count, codes + whole, uint8_t{0});
  const auto digit = [](uint32_t code) { return code - (code >> 1); };
  for (size_t i = 0; i < whole; i += kDigits) {
    const uint8_t* c = codes + i;
    bytes[i / kDigits] =
        static_cast<uint8_t>(digit(c[0]) + 3 * digit(c[1]) + 9 * digit(c[2]) + 27 * digit(c[3]) + 81 * digit(c[4]));
  }
}

/// The five codes of every byte, in eight bytes.
constexpr std::array<uint64_t, 256> kCodesOfByte = [] {
  std::array<uint64_t, 256> table{};
  for (uint32_t byte = 0; byte < kDigitsEnd; ++byte) {
    uint32_t rest = byte;
    for (uint32_t i = 0; i < kDigits; ++i, rest /= 3) {
      const uint64_t digit = rest % 3;
      table[byte] |= (digit + (digit >> 1)) << (8 * i);
    }
  }
  return table;
}();

/// codes   room for count + 8.
void unpack_digits(const uint8_t* bytes, size_t count, uint8_t* codes) {
  for (size_t i = 0; i < count; i += kDigits) {
    std::memcpy(codes + i, &kCodesOfByte[bytes[i / kDigits]], sizeof(uint64_t));
  }
}

Status check_terngrad_buckets(ByteSpan bytes, const BucketLayout& layout) {
  for (uint64_t bucket = 0; bucket < layout.buckets(); ++bucket) {
    const ByteSpan digits = bytes.subspan(layout.byte(bucket) + sizeof(float), layout.code_bytes(layout.size(bucket)));
    float scale;
    std::memcpy(&scale, bytes.data() + layout.byte(bucket), sizeof(scale));
    if (!qsgd_is_scale(scale, kSignAndLevel)) {
      return fail(ErrorCode::kMalformed, "terngrad: a scale that is negative, infinite, NaN or too small");
    }
    uint32_t largest = 0;
    for (const uint8_t byte : digits) largest = std::max<uint32_t>(largest, byte);
    if (largest >= kDigitsEnd) return fail(ErrorCode::kMalformed, "terngrad: a byte that is no five digits");
    const size_t used = layout.size(bucket) % kDigits;
    if (used != 0 && (kCodesOfByte[digits.back()] >> (8 * used)) != 0) {
      return fail(ErrorCode::kMalformed, "terngrad: padding that is not 0");
    }
  }
  return {};
}

void encode_terngrad_bucket(std::span<const float> values, const EncodeOptions& options, uint64_t word, uint8_t* bytes,
                            float* decoded) {
  const QsgdBucket bucket = qsgd_bucket_of_values(values, kSignAndLevel, QsgdBucketScale::kMax);
  std::memcpy(bytes, &bucket.scale, sizeof(float));
  bytes += sizeof(float);
  std::array<uint8_t, kQuantizeChunk> codes;
  for (size_t at = 0; at < values.size(); at += kQuantizeChunk) {
    const size_t count = std::min(kQuantizeChunk, values.size() - at);
    qsgd_round(bucket, values.subspan(at, count), options.random, word + at, codes.data(), decoded + at);
    pack_digits(codes.data(), count, bytes + at / kDigits);
  }
}

void decode_bucket(const uint8_t* bytes, std::span<float> values) {
  float scale;
  std::memcpy(&scale, bytes, sizeof(scale));
  bytes += sizeof(scale);
  const QsgdBucket bucket = qsgd_bucket_of_scale(scale, kSignAndLevel);
  std::array<uint8_t, kQuantizeChunk + sizeof(uint64_t)> codes;
  for (size_t at = 0; at < values.size(); at += kQuantizeChunk) {
    const size_t count = std::min(kQuantizeChunk, values.size() - at);
    unpack_digits(bytes + at / kDigits, count, codes.data());
    qsgd_values(bucket, codes.data(), values.subspan(at, count));
  }
}

/// A value is sent as the largest magnitude of its bucket, with its sign, with the probability of their ratio, else as
/// 0. These are the values of QSGD with 2 bits and the maximum. The paper's scale is one of each layer; buckets have
/// smaller ones. Its clipping at 2.5 standard deviations is left out: it would bias the expectation.
///
/// Five values are in a byte, 1.6 bits each. 2 bits would take a quarter more, and reading is bound by the values all
/// the same.
///
/// No contraction: a value may move by nearly the maximum, fed back errors settle at about eight gradients.
class TernGradValueCodec final : public ValueCodec {
 public:
  ValueCodecId id() const override { return ValueCodecId::kTernGrad; }
  std::string_view name() const override { return "terngrad"; }
  std::string_view paper() const override { return "[TernGrad17]: TernGrad"; }
  bool lossless(const CodecSpec&) const override { return false; }
  bool unbiased(const CodecSpec&) const override { return true; }
  bool parse(std::string_view text, CodecSpec& spec) const override { return parse_bucket_size(text, name(), spec); }
  std::string text(const CodecSpec& spec) const override { return bucket_text(name(), spec); }
  std::string help_text() const override { return "terngrad[:BUCKET]"; }
  uint64_t bytes_max(uint64_t count, const CodecSpec& spec) const override {
    return kTerngradHeaderBytes + terngrad_layout_of(count, spec.bucket_size).bytes();
  }
  Status check(ByteSpan bytes, uint64_t count) const override {
    const auto bucket_size = ByteReader(bytes).get<uint32_t>();
    if (!bucket_size || *bucket_size == 0 || *bucket_size > kBucketSizeMax) {
      return fail(ErrorCode::kMalformed, "terngrad: no bucket size");
    }
    if (count > kDimensionMax ||
        bytes.size() - kTerngradHeaderBytes != terngrad_layout_of(count, *bucket_size).bytes()) {
      return fail(ErrorCode::kMalformed, "terngrad: the length is not that of the values");
    }
    return {};
  }

  Status encode(IndexSpan, std::span<const float> values, const EncodeOptions& options, ByteBuffer& out,
                std::span<float> decoded) const override {
    MILLRACE_CHECK(values.size() == decoded.size(), values.size(), decoded.size());
    if (const Status valid = qsgd_check_values(values, name()); !valid) return valid;
    const uint32_t bucket_size = options.spec.bucket_size;
    const BucketLayout layout = terngrad_layout_of(values.size(), bucket_size);
    ByteWriter(out).put(bucket_size);
    const size_t begin = out.size();
    out.resize(begin + layout.bytes());
    for_each_bucket(layout, [&](uint64_t bucket) {
      const uint64_t first = layout.first(bucket);
      encode_terngrad_bucket(values.subspan(first, layout.size(bucket)), options, options.index_base + first,
                             out.data() + begin + layout.byte(bucket), decoded.data() + first);
    });
    return {};
  }

  Status decode(ByteSpan bytes, IndexSpan, std::span<float> out) const override {
    if (const Status sized = check(bytes, out.size()); !sized) return sized;
    const BucketLayout layout = terngrad_layout_of(out.size(), *ByteReader(bytes).get<uint32_t>());
    bytes = bytes.subspan(kTerngradHeaderBytes);
    if (const Status valid = check_terngrad_buckets(bytes, layout); !valid) return valid;
    for_each_bucket(layout, [&](uint64_t bucket) {
      decode_bucket(bytes.data() + layout.byte(bucket), out.subspan(layout.first(bucket), layout.size(bucket)));
    });
    return {};
  }
};

}  // namespace

const ValueCodec& terngrad_value_codec() {
  static const TernGradValueCodec codec;
  return codec;
}

}  // namespace millrace
