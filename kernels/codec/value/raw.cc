#include <cstring>

#include "kernels/base/check.h"
#include "kernels/codec/codec.h"

namespace millrace {
namespace {

/// NaN and infinity pass: whether they may is the container's policy.
class RawValueCodec final : public ValueCodec {
 public:
  ValueCodecId id() const override { return ValueCodecId::kRaw; }
  std::string_view name() const override { return "raw"; }
  std::string_view paper() const override { return "[SparCML19, 5.1]"; }
  bool lossless(const CodecSpec&) const override { return true; }
  bool parse(std::string_view text, CodecSpec&) const override { return text == name() || text == "f32"; }
  uint64_t bytes_max(uint64_t count, const CodecSpec&) const override { return count * sizeof(float); }
  Status check(ByteSpan bytes, uint64_t count) const override {
    if (bytes.size() / sizeof(float) != count || bytes.size() % sizeof(float) != 0) {
      return fail(ErrorCode::kMalformed, "raw values: the length is not that of the values");
    }
    return {};
  }

  Status encode(IndexSpan, std::span<const float> values, const EncodeOptions&, ByteBuffer& out,
                std::span<float>) const override {
    const size_t at = out.size();
    out.resize(at + values.size_bytes());
    if (!values.empty()) std::memcpy(out.data() + at, values.data(), values.size_bytes());
    return {};
  }
  Status decode(ByteSpan bytes, IndexSpan, std::span<float> out) const override {
    if (const Status sized = check(bytes, out.size()); !sized) return sized;
    if (!out.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
    return {};
  }
};

}  // namespace

const ValueCodec& raw_value_codec() {
  static const RawValueCodec codec;
  return codec;
}

}  // namespace millrace
