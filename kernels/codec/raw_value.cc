#include <cstring>

#include "kernels/base/check.h"
#include "kernels/codec/codec_list.h"

namespace millrace {
namespace {

template <typename T>
void append_raw_value(std::span<const T> values, ByteBuffer& out) {
  const size_t at = out.size();
  out.resize(at + values.size_bytes());
  if (!values.empty()) std::memcpy(out.data() + at, values.data(), values.size_bytes());
}

template <typename T>
Status take(ByteSpan bytes, std::span<T> out) {
  if (bytes.size() != out.size_bytes())
    return fail(ErrorCode::kMalformed, "raw values: the length is not that of the values");
  if (!out.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
  return {};
}

/// NaN and infinity pass: whether they may is the container's policy.
class RawValueCodec final : public ValueCodec {
 public:
  ValueCodecId id() const override { return ValueCodecId::kRaw; }
  std::string_view name() const override { return "raw"; }
  std::string_view paper() const override { return "SparCML 5.1"; }
  bool lossless(const CodecSpec&) const override { return true; }
  bool parse(std::string_view text, CodecSpec&) const override { return text == name() || text == "f32"; }
  uint64_t bytes_max(uint64_t count, ValueType type, const CodecSpec&) const override {
    return count * value_bytes(type);
  }
  Status check(ByteSpan bytes, uint64_t count, ValueType type) const override {
    if (bytes.size() / value_bytes(type) != count || bytes.size() % value_bytes(type) != 0) {
      return fail(ErrorCode::kMalformed, "raw values: the length is not that of the values");
    }
    return {};
  }

  Status encode(IndexSpan, std::span<const float> values, const EncodeOptions&, ByteBuffer& out,
                std::span<float>) const override {
    append_raw_value(values, out);
    return {};
  }
  Status encode(IndexSpan, std::span<const double> values, const EncodeOptions&, ByteBuffer& out,
                std::span<double>) const override {
    append_raw_value(values, out);
    return {};
  }
  Status decode(ByteSpan bytes, IndexSpan, std::span<float> out) const override { return take(bytes, out); }
  Status decode(ByteSpan bytes, IndexSpan, std::span<double> out) const override { return take(bytes, out); }

 private:
  static uint64_t value_bytes(ValueType type) { return type == ValueType::kF32 ? 4 : 8; }
};

}  // namespace

const ValueCodec& raw_value_codec() {
  static const RawValueCodec codec;
  return codec;
}

}  // namespace millrace
