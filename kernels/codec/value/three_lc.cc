#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "kernels/base/bytes.h"
#include "kernels/base/check.h"
#include "kernels/base/words.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/value/three_lc_kernels.h"
#include "kernels/magnitude/magnitude_scan.h"

namespace millrace {
namespace {

// Bytes from 243 on stand for runs of 2 to 14 bytes of zeros.
constexpr uint32_t kRunFirst = 243;
constexpr uint32_t kRunMin = 2;
constexpr uint32_t kRunMax = 14;

/// 3LC's M: the sparsity multiplier times the largest magnitude. Where that rounds to twice the largest, or beyond the
/// range, it is the largest number below. So the largest magnitude is never rounded to 0, and the code stays a
/// contraction.
float scale_of(float largest, double multiplier) {
  const float product = static_cast<float>(
      std::min(multiplier * static_cast<double>(largest), static_cast<double>(std::numeric_limits<float>::max())));
  return std::min(product, std::nextafter(2 * largest, 0.0F));
}

/// Zero-run encoding of `bytes`, in place. Returns how many are left.
size_t code_runs(std::span<uint8_t> bytes) {
  size_t used = 0;
  for (size_t i = 0; i < bytes.size();) {
    size_t run = 0;
    while (run < kRunMax && i + run < bytes.size() && bytes[i + run] == kQuarticZeros) ++run;
    if (run < kRunMin) {
      bytes[used++] = bytes[i++];
    } else {
      bytes[used++] = static_cast<uint8_t>(kRunFirst + run - kRunMin);
      i += run;
    }
  }
  return used;
}

Status encode_three_lc_values(std::span<const float> values, double multiplier, ByteBuffer& out,
                              std::span<float> decoded) {
  MILLRACE_CHECK(values.size() == decoded.size(), values.size(), decoded.size());
  const MagnitudeKey largest = max_key(values);
  if (largest >= kInfinityKey) return fail(ErrorCode::kNonFinite, "three_lc: NaN or infinity among the values");
  if (values.empty()) return {};
  const float scale = scale_of(magnitude_of_key(largest), multiplier);
  ByteWriter(out).put(scale);
  const size_t begin = out.size();
  out.resize(begin + quartic_bytes(values.size()));
  if (largest == 0) {
    std::fill(out.begin() + static_cast<std::ptrdiff_t>(begin), out.end(), kQuarticZeros);
    std::ranges::fill(decoded, 0.0F);
  } else {
    quartic_pack(values, scale, out.data() + begin, decoded.data());
  }
  out.resize(begin + code_runs(std::span(out).subspan(begin)));
  return {};
}

std::unexpected<Error> malformed_three_lc(const char* what) {
  return fail(ErrorCode::kMalformed, std::string("three_lc: ") + what);
}

/// Returns the values of the five digits of every byte below 243.
std::array<std::array<float, kQuarticDigits>, kRunFirst> digit_values(float scale) {
  std::array<std::array<float, kQuarticDigits>, kRunFirst> values;
  const std::array<float, 3> of_digit = {-scale, 0.0F, scale};
  for (uint32_t byte = 0; byte < kRunFirst; ++byte) {
    uint32_t rest = byte;
    for (size_t piece = kQuarticDigits; piece > 0; --piece, rest /= 3) values[byte][piece - 1] = of_digit[rest % 3];
  }
  return values;
}

/// Writes the five values of each byte: one to each of five contiguous pieces of `out`.
class Unpacker {
 public:
  Unpacker(float scale, std::span<float> out)
      : table_(digit_values(scale)), out_(out), length_(quartic_bytes(out.size())) {}

  size_t left() const { return length_ - at_; }
  bool put(uint8_t byte) {
    const auto& digits = table_[byte];
    for (size_t piece = 0; piece < kQuarticDigits; ++piece) {
      const size_t at = piece * length_ + at_;
      if (at < out_.size()) [[likely]] {
        out_[at] = digits[piece];
      } else if (digits[piece] != 0) {
        return false;
      }
    }
    ++at_;
    return true;
  }
  void put_zeros(size_t run) {
    for (size_t piece = 0; piece < kQuarticDigits; ++piece) {
      const size_t first = std::min(piece * length_ + at_, out_.size());
      std::fill_n(out_.data() + first, std::min(run, out_.size() - first), 0.0F);
    }
    at_ += run;
  }

 private:
  std::array<std::array<float, kQuarticDigits>, kRunFirst> table_;
  std::span<float> out_;
  size_t length_;
  size_t at_ = 0;
};

Status decode_three_lc_values(ByteSpan bytes, std::span<float> out) {
  if (out.empty()) return bytes.empty() ? Status{} : Status(malformed_three_lc("bytes for no values"));
  const auto scale = ByteReader(bytes).get<float>();
  if (!scale || !std::isfinite(*scale) || std::signbit(*scale))
    return malformed_three_lc("a scale that is no magnitude");
  Unpacker unpacker(*scale, out);
  for (const uint8_t byte : bytes.subspan(sizeof(float))) {
    const size_t run = byte < kRunFirst ? 1 : byte - kRunFirst + kRunMin;
    if (run > unpacker.left()) return malformed_three_lc("more digits than values");
    if (byte >= kRunFirst) {
      unpacker.put_zeros(run);
    } else if (*scale == 0 && byte != kQuarticZeros) {
      return malformed_three_lc("digits without a scale");
    } else if (!unpacker.put(byte)) {
      return malformed_three_lc("padding that is not 0");
    }
  }
  return unpacker.left() == 0 ? Status{} : Status(malformed_three_lc("cut off"));
}

/// 3LC, made for dense streams and for codec_error retain, which is its error accumulation buffer. With M the scale,
/// values of at least M / 2 become +-M, the others 0. No entry's error is over its magnitude or over M / 2; that of the
/// largest is below its magnitude. So it is a contraction: by 1 - s (2 - s) / n of the squared norm in the worst case.
/// It contracts the largest magnitude by s / 2 for any n. This bounds a residual at s / (2 - s) times the largest
/// gradient.
///
/// The paper pads before it cuts the digits into five pieces, so that a byte's digits lie count / 5 apart; so does
/// this.
class ThreeLcValueCodec final : public ValueCodec {
 public:
  ValueCodecId id() const override { return ValueCodecId{14}; }
  std::string_view name() const override { return "three_lc"; }
  std::string_view paper() const override { return "[ThreeLC19]: ternary, five a byte, runs of zeros"; }
  bool lossless(const CodecSpec&) const override { return false; }
  bool contraction(const CodecSpec&) const override { return true; }
  bool unbiased(const CodecSpec&) const override { return false; }
  bool parse(std::string_view text, CodecSpec& spec) const override {
    const auto parts = split(text, ':');
    if (parts[0] != name() || parts.size() > 2) return false;
    return parts.size() == 1 || assign_number(parts[1], spec.sparsity_multiplier);
  }
  std::string text(const CodecSpec& spec) const override {
    if (spec.sparsity_multiplier == CodecSpec().sparsity_multiplier) return std::string(name());
    char number[32];
    const auto [end, error] = std::to_chars(number, number + sizeof(number), spec.sparsity_multiplier);
    MILLRACE_CHECK(error == std::errc());
    return std::string(name()) + ':' + std::string(number, end);
  }
  std::string help_text() const override { return "three_lc[:MULTIPLIER]"; }
  Status validate(const CodecSpec& spec) const override {
    if (spec.sparsity_multiplier >= 1 && spec.sparsity_multiplier < 2) return {};
    return fail(ErrorCode::kInvalidArgument, "the sparsity multiplier of three_lc must be in [1, 2)");
  }
  uint64_t bytes_max(uint64_t count, const CodecSpec&) const override {
    return count == 0 ? 0 : sizeof(float) + quartic_bytes(count);
  }
  Status check(ByteSpan bytes, uint64_t count) const override {
    if (count == 0) return bytes.empty() ? Status{} : Status(malformed_three_lc("bytes for no values"));
    const uint64_t digits = quartic_bytes(count);
    if (bytes.size() <= sizeof(float) || bytes.size() - sizeof(float) > digits ||
        (bytes.size() - sizeof(float)) * kRunMax < digits) {
      return malformed_three_lc("the length is not that of the values");
    }
    return {};
  }

  Status encode(IndexSpan, std::span<const float> values, const EncodeOptions& options, ByteBuffer& out,
                std::span<float> decoded) const override {
    return encode_three_lc_values(values, options.spec.sparsity_multiplier, out, decoded);
  }
  Status decode(ByteSpan bytes, IndexSpan, std::span<float> out) const override {
    return decode_three_lc_values(bytes, out);
  }
};

}  // namespace

const ValueCodec& three_lc_value_codec() {
  static const ThreeLcValueCodec codec;
  return codec;
}

}  // namespace millrace
