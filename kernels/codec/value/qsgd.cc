#include <string>

#include "kernels/base/check.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/value/bucket_size_text.h"
#include "kernels/codec/value/qsgd_header.h"
#include "kernels/quantize/qsgd.h"

namespace millrace {
namespace {

class QsgdValueCodec final : public ValueCodec {
 public:
  ValueCodecId id() const override { return ValueCodecId::kQsgd; }
  std::string_view name() const override { return "qsgd"; }
  std::string_view paper() const override { return "[SparCML19, 6]: QSGD"; }
  bool lossless(const CodecSpec&) const override { return false; }
  bool contraction(const CodecSpec& spec) const override { return is_qsgd_contraction(spec); }
  bool unbiased(const CodecSpec&) const override { return true; }
  bool parse(std::string_view text, CodecSpec& spec) const override { return parse_qsgd_text(text, name(), spec); }
  std::string text(const CodecSpec& spec) const override { return qsgd_text(name(), spec); }
  std::string help_text() const override { return "qsgd{2..8}[:max|:l2][:BUCKET]"; }
  Status validate(const CodecSpec& spec) const override {
    if (spec.qsgd_bits >= kQsgdBitsMin && spec.qsgd_bits <= kQsgdBitsMax) return {};
    return fail(ErrorCode::kInvalidArgument, "QSGD takes 2 to 8 bits");
  }
  uint64_t bytes_max(uint64_t count, const CodecSpec& spec) const override {
    return QsgdHeader::kBytes + qsgd_encoded_bytes(count, spec.qsgd_bits, spec.bucket_size);
  }
  Status check(ByteSpan bytes, uint64_t count) const override {
    const auto header = QsgdHeader::parse(bytes);
    if (!header) return fail(ErrorCode::kMalformed, "qsgd: unknown parameters");
    if (count > kDimensionMax ||
        bytes.size() - QsgdHeader::kBytes != qsgd_encoded_bytes(count, header->bits, header->bucket_size)) {
      return fail(ErrorCode::kMalformed, "qsgd: the length is not that of the values");
    }
    return {};
  }

  Status encode(IndexSpan, std::span<const float> values, const EncodeOptions& options, ByteBuffer& out,
                std::span<float> decoded) const override {
    MILLRACE_CHECK(values.size() == decoded.size(), values.size(), decoded.size());
    const CodecSpec& spec = options.spec;
    QsgdHeader::put(spec, out);
    // Positions of a sparse stream stay below the part's dimension, so that no two parts draw the same words.
    return qsgd_encode(
        values, {spec.qsgd_bits, spec.bucket_size, QsgdHeader::scale_of(spec), options.random, options.index_base}, out,
        decoded);
  }

  Status decode(ByteSpan bytes, IndexSpan, std::span<float> out) const override {
    const auto header = QsgdHeader::parse(bytes);
    if (!header) return fail(ErrorCode::kMalformed, "qsgd: unknown parameters");
    return qsgd_decode(bytes.subspan(QsgdHeader::kBytes), header->bits, header->bucket_size, out);
  }
};

}  // namespace

const ValueCodec& qsgd_value_codec() {
  static const QsgdValueCodec codec;
  return codec;
}

}  // namespace millrace
