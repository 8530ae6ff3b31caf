#include <cmath>
#include <optional>

#include "kernels/base/bytes.h"
#include "kernels/base/check.h"
#include "kernels/codec/codec.h"
#include "kernels/magnitude/magnitude_scan.h"
#include "kernels/quantize/bucket_layout.h"
#include "kernels/quantize/sign_means.h"

namespace millrace {
namespace {

enum class Signs : uint8_t { kPositive = 0, kNegative = 1, kMixed = 2 };

/// signs u8, zeros to the size of a value, the mean.
struct SignMeanHeader {
  Signs signs = Signs::kPositive;
  float mean = 0;

  static constexpr size_t kBytes = 2 * sizeof(float);

  static std::optional<SignMeanHeader> parse(ByteSpan bytes) {
    ByteReader reader(bytes);
    const auto signs = reader.get<uint8_t>();
    const auto zeros = reader.get_bytes(sizeof(float) - 1);
    const auto mean = reader.get<float>();
    if (!signs || !zeros || !mean || *signs > static_cast<uint8_t>(Signs::kMixed)) return std::nullopt;
    for (const uint8_t zero : *zeros) {
      if (zero != 0) return std::nullopt;
    }
    if (!std::isfinite(*mean) || std::signbit(*mean)) return std::nullopt;
    return SignMeanHeader{static_cast<Signs>(*signs), *mean};
  }
  void put(ByteBuffer& out) const {
    const size_t begin = out.size();
    out.resize(begin + sizeof(float));
    std::fill(out.begin() + static_cast<ptrdiff_t>(begin), out.end(), uint8_t{0});
    out[begin] = static_cast<uint8_t>(signs);
    ByteWriter(out).put(mean);
  }
};

uint64_t sign_bytes(uint64_t count, Signs signs) { return signs == Signs::kMixed ? (count + 7) / 8 : 0; }

Status check_sign_mean_code(ByteSpan bytes, uint64_t count) {
  const auto header = SignMeanHeader::parse(bytes);
  if (!header) return fail(ErrorCode::kMalformed, "sign_mean: no mean, or signs that are unknown");
  if (count > kDimensionMax || bytes.size() - SignMeanHeader::kBytes != sign_bytes(count, header->signs)) {
    return fail(ErrorCode::kMalformed, "sign_mean: the length is not that of the values");
  }
  if (header->signs == Signs::kMixed && count % 8 != 0 && bytes.back() >> (count % 8) != 0) {
    return fail(ErrorCode::kMalformed, "sign_mean: padding that is not 0");
  }
  return {};
}

/// Every value becomes the mean magnitude of all, with its own sign. Where all have one sign (RedSync selects so that
/// they do) a stream is that mean and nothing else. RedSync does not define the code of a stream of both signs: a bit
/// each here.
///
/// |v - decoded|^2 = |v|^2 - n mean^2 for any v, since the sum of v times its sign is n mean. So it is a contraction,
/// by sqrt(1 - (sum |v|)^2 / (n |v|^2)): 0.6 for Gaussian values, next to 1 where one value outweighs all others.
class SignMeanValueCodec final : public ValueCodec {
 public:
  ValueCodecId id() const override { return ValueCodecId{5}; }
  std::string_view name() const override { return "sign_mean"; }
  std::string_view paper() const override { return "[RedSync19, 2.1.1]: quantization to the mean of one sign"; }
  bool lossless(const CodecSpec&) const override { return false; }
  bool contraction(const CodecSpec&) const override { return true; }
  uint64_t bytes_max(uint64_t count, const CodecSpec&) const override {
    return SignMeanHeader::kBytes + sign_bytes(count, Signs::kMixed);
  }
  Status check(ByteSpan bytes, uint64_t count) const override { return check_sign_mean_code(bytes, count); }

  Status encode(IndexSpan, std::span<const float> values, const EncodeOptions&, ByteBuffer& out,
                std::span<float> decoded) const override {
    MILLRACE_CHECK(values.size() == decoded.size(), values.size(), decoded.size());
    const MagnitudeKey key = max_key(values);
    if (key >= kInfinityKey) return fail(ErrorCode::kNonFinite, "sign_mean: NaN or infinity among the values");
    const float largest = magnitude_of_key(key);
    const auto means = SignMeans::of(values);
    SignMeanHeader header;
    if (means.sums.negatives > 0) header.signs = means.sums.positives > 0 ? Signs::kMixed : Signs::kNegative;
    if (!values.empty())
      header.mean = SignMeans::mean(means.sums.positive + means.sums.negative, values.size(), largest);
    header.put(out);
    if (header.signs != Signs::kMixed) {
      std::ranges::fill(decoded, header.signs == Signs::kNegative ? -header.mean : header.mean);
      return {};
    }
    const size_t begin = out.size();
    out.resize(begin + sign_bytes(values.size(), header.signs));
    for_each_chunk(values.size(), [&](uint64_t first, uint64_t count) {
      sign_round(values.data() + first, count, header.mean, -header.mean, out.data() + begin + first / 8,
                 decoded.data() + first);
    });
    return {};
  }

  Status decode(ByteSpan bytes, IndexSpan, std::span<float> out) const override {
    if (const Status sized = check_sign_mean_code(bytes, out.size()); !sized) return sized;
    const SignMeanHeader header = *SignMeanHeader::parse(bytes);
    if (header.signs != Signs::kMixed) {
      std::ranges::fill(out, header.signs == Signs::kNegative ? -header.mean : header.mean);
      return {};
    }
    const uint8_t* signs = bytes.data() + SignMeanHeader::kBytes;
    for_each_chunk(out.size(), [&](uint64_t first, uint64_t count) {
      sign_values(signs + first / 8, count, header.mean, -header.mean, out.data() + first);
    });
    return {};
  }
};

}  // namespace

const ValueCodec& sign_mean_value_codec() {
  static const SignMeanValueCodec codec;
  return codec;
}

}  // namespace millrace
