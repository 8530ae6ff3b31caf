#include <algorithm>
#include <array>
#include <bit>
#include <string>

#include "kernels/base/check.h"
#include "kernels/codec/bits/bit_stream.h"
#include "kernels/codec/bits/elias.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/value/bucket_size_text.h"
#include "kernels/codec/value/qsgd_header.h"
#include "kernels/quantize/bucket_layout.h"
#include "kernels/quantize/qsgd_levels.h"

namespace millrace {
namespace {

constexpr uint32_t kScaleBits = 32;
constexpr uint32_t kGapBitsMax = 25;  // bits below the highest of the largest gap in a bucket, and one more

/// Bits of a code, lowest first.
struct Word {
  uint32_t bits = 0;
  uint32_t count = 0;
};

constexpr uint32_t gamma_bits(uint64_t value) { return 2 * static_cast<uint32_t>(std::bit_width(value)) - 1; }

/// By a code of sign and level: Elias gamma of level + `more`, and the sign of levels over 0.
std::array<Word, 256> words_of(uint32_t bits, uint32_t more) {
  std::array<Word, 256> words{};
  const uint32_t sign = 1u << (bits - 1);
  for (uint32_t code = 0; code < 2 * sign; ++code) {
    const uint32_t level = code & (sign - 1);
    const uint32_t value = level + more;
    if (value == 0) continue;
    const auto n = static_cast<uint32_t>(std::bit_width(value)) - 1;
    Word& word = words[code];
    word.bits = 1u << n | (value - (1u << n)) << (n + 1);
    word.count = 2 * n + 1;
    if (level == 0) continue;
    word.bits |= ((code & sign) != 0 ? 1u : 0u) << word.count;
    ++word.count;
  }
  return words;
}

/// The codes of a bucket in the shorter of two forms.
class BucketWriter {
 public:
  explicit BucketWriter(uint32_t bits) : all_(words_of(bits, 1)), sent_(words_of(bits, 0)) {}

  void put(float scale, std::span<const uint8_t> codes, BitWriter& writer) const {
    writer.put(std::bit_cast<uint32_t>(scale), kScaleBits);
    const bool gaps = bits_of_gaps(codes) < bits_of_all(codes);
    writer.put(gaps ? 1 : 0, 1);
    if (gaps) return put_gaps(codes, writer);
    for (const uint8_t code : codes) writer.put(all_[code].bits, all_[code].count);
  }

 private:
  uint64_t bits_of_all(std::span<const uint8_t> codes) const {
    uint64_t bits = 0;
    for (const uint8_t code : codes) bits += all_[code].count;
    return bits;
  }
  uint64_t bits_of_gaps(std::span<const uint8_t> codes) const {
    uint64_t bits = 0;
    size_t next = 0;  // position behind the last that is not 0
    for (size_t i = 0; i < codes.size(); ++i) {
      if (codes[i] == 0) continue;
      bits += gamma_bits(i - next + 1) + sent_[codes[i]].count;
      next = i + 1;
    }
    return next == codes.size() ? bits : bits + gamma_bits(codes.size() - next + 1);
  }
  void put_gaps(std::span<const uint8_t> codes, BitWriter& writer) const {
    size_t next = 0;
    for (size_t i = 0; i < codes.size(); ++i) {
      if (codes[i] == 0) continue;
      put_elias_gamma(writer, i - next + 1);
      writer.put(sent_[codes[i]].bits, sent_[codes[i]].count);
      next = i + 1;
    }
    if (next != codes.size()) put_elias_gamma(writer, codes.size() - next + 1);
  }

  std::array<Word, 256> all_;
  std::array<Word, 256> sent_;
};

/// Reads the codes of a bucket, chunk by chunk. False: they are none.
class BucketReader {
 public:
  BucketReader(BitReader& reader, uint32_t bits, uint64_t size)
      : reader_(reader), bits_(bits), sign_(1u << (bits - 1)), left_(size) {
    scale_ = std::bit_cast<float>(static_cast<uint32_t>(reader.take(kScaleBits)));
    gaps_ = reader.take(1) != 0;
  }
  float scale() const { return scale_; }

  bool take(std::span<uint8_t> codes) { return gaps_ ? take_gaps(codes) : take_all(codes); }

 private:
  /// A level from `less` on, and its sign.
  bool take_code(uint32_t less, uint8_t& code) {
    const uint64_t value = take_elias_gamma(reader_, bits_ - 1);
    if (value == 0 || value - less >= sign_) return false;
    const auto level = static_cast<uint32_t>(value - less);
    code = static_cast<uint8_t>(level == 0 ? 0 : level | (reader_.take(1) != 0 ? sign_ : 0));
    return true;
  }
  bool take_all(std::span<uint8_t> codes) {
    for (uint8_t& code : codes) {
      if (!take_code(1, code)) return false;
    }
    return !reader_.overrun();
  }
  bool take_gaps(std::span<uint8_t> codes) {
    std::ranges::fill(codes, uint8_t{0});
    for (uint64_t at = 0; at < codes.size();) {
      if (gap_ == 0) {
        gap_ = take_elias_gamma(reader_, kGapBitsMax);
        if (gap_ == 0 || gap_ > left_ + 1 || reader_.overrun()) return false;
      }
      const uint64_t zeros = std::min(gap_ - 1, codes.size() - at);
      at += zeros, left_ -= zeros, gap_ -= zeros;
      if (left_ == 0) gap_ = 0;  // it ended the bucket
      if (at == codes.size()) break;
      if (!take_code(0, codes[at])) return false;
      ++at, --left_, gap_ = 0;
    }
    return !reader_.overrun();
  }

  BitReader& reader_;
  uint32_t bits_;
  uint32_t sign_;
  uint64_t left_;     // of the bucket's values
  uint64_t gap_ = 0;  // remainder of it; 0: to be read
  float scale_ = 0;
  bool gaps_ = false;
};

/// QSGD's levels in Elias codes. The paper [QSGD17, 3.2 and appendix] codes either every level, or those that are not 0
/// and the gaps between them. Here each bucket is in the shorter form. Its Elias code is the recursive one (omega):
/// gamma, taken here, is no longer for numbers below 128. [SparCML19, 6] packs levels and has no Elias codes;
/// [DeepReduce21, 7] names them.
///
/// Of Gaussian values in buckets of 512, 4 bits scaled by the maximum stay 4.0 bits. Scaled by the L2 norm most levels
/// are 0. The codec is for these, for few levels and for streams of which most values are small.
class QsgdEliasValueCodec final : public ValueCodec {
 public:
  ValueCodecId id() const override { return ValueCodecId{8}; }
  std::string_view name() const override { return "qsgd_elias"; }
  std::string_view paper() const override { return "[QSGD17]: QSGD, Elias coding; [SparCML19, 6]"; }
  bool lossless(const CodecSpec&) const override { return false; }
  bool contraction(const CodecSpec& spec) const override { return is_qsgd_contraction(spec); }
  bool unbiased(const CodecSpec&) const override { return true; }
  bool parse(std::string_view text, CodecSpec& spec) const override { return parse_qsgd_text(text, name(), spec); }
  std::string text(const CodecSpec& spec) const override { return qsgd_text(name(), spec); }
  std::string help_text() const override { return "qsgd_elias{2..8}[:max|:l2][:BUCKET]"; }
  uint64_t bytes_max(uint64_t count, const CodecSpec& spec) const override {
    // Level s + 1 = 2^(bits-1) in 2 bits - 1 bits, and a sign.
    const uint64_t bits = layout_of(count, spec.bucket_size).buckets() * (kScaleBits + 1) + count * 2 * spec.qsgd_bits;
    return QsgdHeader::kBytes + (bits + 7) / 8;
  }
  Status check(ByteSpan bytes, uint64_t count) const override {
    const auto header = QsgdHeader::parse(bytes);
    if (!header) return fail(ErrorCode::kMalformed, "qsgd_elias: unknown parameters");
    if (count > kDimensionMax) return truncated();
    const uint64_t buckets = layout_of(count, header->bucket_size).buckets();
    // At least: a scale, a form and a bit; at most: as bytes_max().
    const uint64_t code_bits = uint64_t{bytes.size() - QsgdHeader::kBytes} * 8;
    if (code_bits < buckets * (kScaleBits + 2)) return truncated();
    if (code_bits / 8 > (buckets * (kScaleBits + 1) + count * 2 * header->bits + 7) / 8) return truncated();
    return {};
  }

  Status encode(IndexSpan, std::span<const float> values, const EncodeOptions& options, ByteBuffer& out,
                std::span<float> decoded) const override {
    MILLRACE_CHECK(values.size() == decoded.size(), values.size(), decoded.size());
    if (const Status valid = qsgd_check_values(values, name()); !valid) return valid;
    const CodecSpec& spec = options.spec;
    QsgdHeader::put(spec, out);
    const BucketLayout layout = layout_of(values.size(), spec.bucket_size);
    const BucketWriter bucket_writer(spec.qsgd_bits);
    Buffer<uint8_t> codes(std::min<uint64_t>(spec.bucket_size, values.size()) + 8);
    BitWriter writer(out);
    for (uint64_t at = 0; at < layout.buckets(); ++at) {
      const uint64_t first = layout.first(at);
      const auto of_bucket = values.subspan(first, layout.size(at));
      const QsgdBucket bucket = qsgd_bucket_of_values(of_bucket, spec.qsgd_bits, QsgdHeader::scale_of(spec));
      for (size_t i = 0; i < of_bucket.size(); i += kQuantizeChunk) {
        const size_t count = std::min(kQuantizeChunk, of_bucket.size() - i);
        qsgd_round(bucket, of_bucket.subspan(i, count), options.random, options.index_base + first + i,
                   codes.data() + i, decoded.data() + first + i);
      }
      bucket_writer.put(bucket.scale, std::span(codes).first(of_bucket.size()), writer);
    }
    writer.finish();
    return {};
  }

  Status decode(ByteSpan bytes, IndexSpan, std::span<float> out) const override {
    if (const Status sized = check(bytes, out.size()); !sized) return sized;
    const QsgdHeader header = *QsgdHeader::parse(bytes);
    const BucketLayout layout = layout_of(out.size(), header.bucket_size);
    BitReader reader(bytes.subspan(QsgdHeader::kBytes));
    for (uint64_t at = 0; at < layout.buckets(); ++at) {
      BucketReader codes_of(reader, header.bits, layout.size(at));
      if (!qsgd_is_scale(codes_of.scale(), header.bits)) {
        return fail(ErrorCode::kMalformed, "qsgd_elias: a scale that is negative, infinite, NaN or too small");
      }
      const QsgdBucket bucket = qsgd_bucket_of_scale(codes_of.scale(), header.bits);
      for (uint64_t i = 0; i < layout.size(at); i += kQuantizeChunk) {
        std::array<uint8_t, kQuantizeChunk> codes;
        const uint64_t count = std::min<uint64_t>(kQuantizeChunk, layout.size(at) - i);
        if (!codes_of.take(std::span(codes).first(count))) return truncated();
        qsgd_values(bucket, codes.data(), out.subspan(layout.first(at) + i, count));
      }
    }
    return reader.at_end() ? Status{} : truncated();
  }

 private:
  static BucketLayout layout_of(uint64_t count, uint32_t bucket_size) {
    return {.count = count, .bucket_size = bucket_size};
  }
  static Status truncated() {
    return fail(ErrorCode::kMalformed, "qsgd_elias: cut off, a code that is none, or bytes left over");
  }
};

}  // namespace

const ValueCodec& qsgd_elias_value_codec() {
  static const QsgdEliasValueCodec codec;
  return codec;
}

}  // namespace millrace
