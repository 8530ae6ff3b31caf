#include <optional>
#include <string>

#include "kernels/base/bytes.h"
#include "kernels/base/check.h"
#include "kernels/base/words.h"
#include "kernels/codec/codec_list.h"
#include "kernels/quantize/qsgd.h"

namespace millrace {
namespace {

constexpr size_t kHeaderBytes = 8;

/// Header: bits u8, scale u8, zero u16, bucket size u32.
struct QsgdHeader {
  uint32_t bits = 0;
  uint32_t bucket_size = 0;

  static std::optional<QsgdHeader> parse(ByteSpan bytes) {
    ByteReader reader(bytes);
    const auto bits = reader.get<uint8_t>();
    const auto scale = reader.get<uint8_t>();
    const auto zero = reader.get<uint16_t>();
    const auto bucket_size = reader.get<uint32_t>();
    if (!bits || !scale || !zero || !bucket_size) return std::nullopt;
    const bool known_scale =
        *scale == static_cast<uint8_t>(QsgdScale::kL2) || *scale == static_cast<uint8_t>(QsgdScale::kMax);
    if ((*bits != 2 && *bits != 4 && *bits != 8) || !known_scale || *zero != 0) return std::nullopt;
    if (*bucket_size == 0 || *bucket_size > kBucketSizeMax) return std::nullopt;
    return QsgdHeader{*bits, *bucket_size};
  }
};

template <typename T>
Status encode_values(std::span<const T> values, const EncodeOptions& options, ByteBuffer& out, std::span<T> decoded) {
  MILLRACE_CHECK(values.size() == decoded.size(), values.size(), decoded.size());
  const CodecSpec& spec = options.spec;
  const QsgdScale scale = spec.qsgd_scale_max ? QsgdScale::kMax : QsgdScale::kL2;
  ByteWriter writer(out);
  writer.put(static_cast<uint8_t>(spec.qsgd_bits));
  writer.put(static_cast<uint8_t>(scale));
  writer.put(uint16_t{0});
  writer.put(spec.bucket_size);
  // Positions of a sparse stream stay below the part's dimension, so that no two parts draw the same words.
  return qsgd_encode<T>(values, {spec.qsgd_bits, spec.bucket_size, scale, options.random, options.index_base}, out,
                        decoded);
}

template <typename T>
Status decode_values(ByteSpan bytes, std::span<T> out) {
  const auto header = QsgdHeader::parse(bytes);
  if (!header) return fail(ErrorCode::kMalformed, "qsgd: unknown parameters");
  return qsgd_decode<T>(bytes.subspan(kHeaderBytes), header->bits, header->bucket_size, out);
}

class QsgdValueCodec final : public ValueCodec {
 public:
  ValueCodecId id() const override { return ValueCodecId::kQsgd; }
  std::string_view name() const override { return "qsgd"; }
  std::string_view paper() const override { return "SparCML 6: QSGD"; }
  bool lossless(const CodecSpec&) const override { return false; }
  bool contraction(const CodecSpec& spec) const override { return spec.qsgd_scale_max; }
  bool unbiased(const CodecSpec&) const override { return true; }
  bool parse(std::string_view text, CodecSpec& spec) const override;
  std::string text(const CodecSpec& spec) const override;
  std::string words() const override { return "qsgd{2,4,8}[:max|:l2][:BUCKET]"; }
  Status validate(const CodecSpec& spec) const override {
    if (spec.qsgd_bits == 2 || spec.qsgd_bits == 4 || spec.qsgd_bits == 8) return {};
    return fail(ErrorCode::kInvalidArgument, "QSGD takes 2, 4 or 8 bits");
  }
  uint64_t bytes_max(uint64_t count, ValueType, const CodecSpec& spec) const override {
    return kHeaderBytes + qsgd_encoded_bytes(count, spec.qsgd_bits, spec.bucket_size);
  }
  Status check(ByteSpan bytes, uint64_t count, ValueType) const override {
    const auto header = QsgdHeader::parse(bytes);
    if (!header) return fail(ErrorCode::kMalformed, "qsgd: unknown parameters");
    if (count > kDimensionMax ||
        bytes.size() - kHeaderBytes != qsgd_encoded_bytes(count, header->bits, header->bucket_size)) {
      return fail(ErrorCode::kMalformed, "qsgd: the length is not that of the values");
    }
    return {};
  }

  Status encode(IndexSpan, std::span<const float> values, const EncodeOptions& options, ByteBuffer& out,
                std::span<float> decoded) const override {
    return encode_values(values, options, out, decoded);
  }
  Status encode(IndexSpan, std::span<const double> values, const EncodeOptions& options, ByteBuffer& out,
                std::span<double> decoded) const override {
    return encode_values(values, options, out, decoded);
  }
  Status decode(ByteSpan bytes, IndexSpan, std::span<float> out) const override { return decode_values(bytes, out); }
  Status decode(ByteSpan bytes, IndexSpan, std::span<double> out) const override { return decode_values(bytes, out); }
};

bool QsgdValueCodec::parse(std::string_view text, CodecSpec& spec) const {
  if (!text.starts_with(name())) return false;
  const auto parts = split(text.substr(name().size()), ':');
  if (!assign_number(parts[0], spec.qsgd_bits)) return false;
  size_t next = 1;
  if (next < parts.size() && (parts[next] == "max" || parts[next] == "l2")) {
    spec.qsgd_scale_max = parts[next] == "max";
    ++next;
  }
  if (next == parts.size()) return true;
  return next + 1 == parts.size() && assign_number(parts[next], spec.bucket_size);
}

std::string QsgdValueCodec::text(const CodecSpec& spec) const {
  std::string text = "qsgd" + std::to_string(spec.qsgd_bits);
  const bool other_bucket = spec.bucket_size != CodecSpec().bucket_size;
  if (!spec.qsgd_scale_max) {
    text += ":l2";
  } else if (other_bucket) {
    text += ":max";
  }
  if (other_bucket) text += ':' + std::to_string(spec.bucket_size);
  return text;
}

}  // namespace

const ValueCodec& qsgd_value_codec() {
  static const QsgdValueCodec codec;
  return codec;
}

}  // namespace millrace
