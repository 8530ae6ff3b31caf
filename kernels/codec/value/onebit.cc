#include <array>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>

#include "kernels/base/bytes.h"
#include "kernels/base/check.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/value/bucket_size_text.h"
#include "kernels/magnitude/magnitude_scan.h"
#include "kernels/quantize/bucket_layout.h"
#include "kernels/quantize/sign_means.h"

namespace millrace {
namespace {

constexpr size_t kOnebitHeaderBytes = 4;

/// Holds the decoded values of a bucket's bits: the mean of those that are not below 0, and the mean magnitude of those
/// that are.
struct Means {
  float positive = 0;
  float negative = 0;

  bool hold() const {
    return std::isfinite(positive) && !std::signbit(positive) && std::isfinite(negative) && !std::signbit(negative);
  }
};

BucketLayout onebit_layout_of(uint64_t count, uint32_t bucket_size) {
  return {.count = count, .bucket_size = bucket_size, .head_bytes = sizeof(Means), .codes_bits = 1};
}

Means means_at(const uint8_t* bytes) {
  Means means;
  std::memcpy(&means, bytes, sizeof(means));
  return means;
}

Status check_onebit_code(ByteSpan bytes, uint64_t count) {
  const auto bucket_size = ByteReader(bytes).get<uint32_t>();
  if (!bucket_size || *bucket_size == 0 || *bucket_size > kBucketSizeMax) {
    return fail(ErrorCode::kMalformed, "onebit: no bucket size");
  }
  if (count > kDimensionMax || bytes.size() - kOnebitHeaderBytes != onebit_layout_of(count, *bucket_size).bytes()) {
    return fail(ErrorCode::kMalformed, "onebit: the length is not that of the values");
  }
  return {};
}

Status check_onebit_buckets(ByteSpan bytes, const BucketLayout& layout) {
  for (uint64_t bucket = 0; bucket < layout.buckets(); ++bucket) {
    const uint8_t* at = bytes.data() + layout.byte(bucket);
    if (!means_at(at).hold()) {
      return fail(ErrorCode::kMalformed, "onebit: a mean that is negative, infinite or NaN");
    }
    const uint64_t size = layout.size(bucket);
    if (size % 8 != 0 && at[layout.head_bytes + size / 8] >> (size % 8) != 0) {
      return fail(ErrorCode::kMalformed, "onebit: padding that is not 0");
    }
  }
  return {};
}

void encode_onebit_bucket(std::span<const float> values, uint8_t* bytes, float* decoded) {
  const float largest = magnitude_of_key(max_key(values));
  const auto sign_means = SignMeans::of(values);
  const SignSums& sums = sign_means.sums;
  Means means;
  const uint64_t others = values.size() - sums.negatives;
  if (others > 0) means.positive = SignMeans::mean(sums.positive, others, largest);
  if (sums.negatives > 0) means.negative = SignMeans::mean(sums.negative, sums.negatives, largest);
  std::memcpy(bytes, &means, sizeof(means));
  sign_round(values.data(), values.size(), means.positive, -means.negative, bytes + sizeof(means), decoded);
}

/// A bit a value, and the two means of each bucket. The paper's means are those of a column of the gradient's matrix,
/// and its threshold is 0: zeros count as positive.
///
/// |v - decoded|^2 = |v|^2 - p m^2 - q l^2 for p values of mean m and q of mean -l, in each bucket. So it is a
/// contraction, by at most sqrt(1 - 1 / bucket). The error must be kept: without it training diverges, says the paper
/// (codec_error retain).
class OneBitValueCodec final : public ValueCodec {
 public:
  ValueCodecId id() const override { return ValueCodecId::kOneBit; }
  std::string_view name() const override { return "onebit"; }
  std::string_view paper() const override { return "[OneBit14]: 1-bit SGD"; }
  bool lossless(const CodecSpec&) const override { return false; }
  bool contraction(const CodecSpec&) const override { return true; }
  bool parse(std::string_view text, CodecSpec& spec) const override { return parse_bucket_size(text, name(), spec); }
  std::string text(const CodecSpec& spec) const override { return bucket_text(name(), spec); }
  std::string help_text() const override { return "onebit[:BUCKET]"; }
  uint64_t bytes_max(uint64_t count, const CodecSpec& spec) const override {
    return kOnebitHeaderBytes + onebit_layout_of(count, spec.bucket_size).bytes();
  }
  Status check(ByteSpan bytes, uint64_t count) const override { return check_onebit_code(bytes, count); }

  Status encode(IndexSpan, std::span<const float> values, const EncodeOptions& options, ByteBuffer& out,
                std::span<float> decoded) const override {
    MILLRACE_CHECK(values.size() == decoded.size(), values.size(), decoded.size());
    if (max_key(values) >= kInfinityKey) {
      return fail(ErrorCode::kNonFinite, "onebit: NaN or infinity among the values");
    }
    const uint32_t bucket_size = options.spec.bucket_size;
    const BucketLayout layout = onebit_layout_of(values.size(), bucket_size);
    ByteWriter(out).put(bucket_size);
    const size_t begin = out.size();
    out.resize(begin + layout.bytes());
    for_each_bucket(layout, [&](uint64_t bucket) {
      const uint64_t first = layout.first(bucket);
      encode_onebit_bucket(values.subspan(first, layout.size(bucket)), out.data() + begin + layout.byte(bucket),
                           decoded.data() + first);
    });
    return {};
  }

  Status decode(ByteSpan bytes, IndexSpan, std::span<float> out) const override {
    if (const Status sized = check_onebit_code(bytes, out.size()); !sized) return sized;
    const BucketLayout layout = onebit_layout_of(out.size(), *ByteReader(bytes).get<uint32_t>());
    bytes = bytes.subspan(kOnebitHeaderBytes);
    if (const Status valid = check_onebit_buckets(bytes, layout); !valid) return valid;
    for_each_bucket(layout, [&](uint64_t bucket) {
      const uint8_t* at = bytes.data() + layout.byte(bucket);
      const auto means = means_at(at);
      sign_values(at + sizeof(means), layout.size(bucket), means.positive, -means.negative,
                  out.data() + layout.first(bucket));
    });
    return {};
  }
};

}  // namespace

const ValueCodec& onebit_value_codec() {
  static const OneBitValueCodec codec;
  return codec;
}

}  // namespace millrace
