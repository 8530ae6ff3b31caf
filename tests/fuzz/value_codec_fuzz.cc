// Feeds hostile bytes to the value codecs: check() and decode() agree about sizes. Decoded values equal those that the
// encoder announced.
#include <cmath>
#include <cstring>

#include "kernels/base/bytes.h"
#include "kernels/base/check.h"
#include "kernels/codec/codec.h"

namespace millrace {
namespace {

void decode_hostile(const ValueCodec& codec, ByteSpan bytes, uint64_t count) {
  Buffer<float> values(count);
  const bool sized = codec.check(bytes, count).has_value();
  const bool decoded = codec.decode(bytes, {}, std::span<float>(values)).has_value();
  MILLRACE_CHECK(sized || !decoded, count);
  if (!decoded || codec.lossless({})) return;  // those pass NaN and infinity
  for (const float value : values) MILLRACE_CHECK(std::isfinite(value), value);
}

void round_trip(const ValueCodec& codec, const CodecSpec& spec, ByteSpan bytes) {
  Buffer<float> values(bytes.size() / sizeof(float));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  EncodeOptions options{spec, RandomKey::from(bytes.size()), 0};
  ByteBuffer code;
  Buffer<float> said = values;
  const bool lossless = codec.lossless(spec);
  if (!codec.encode({}, std::span<const float>(values), options, code,
                    lossless ? std::span<float>() : std::span<float>(said)))
    return;
  MILLRACE_CHECK(code.size() <= codec.bytes_max(values.size(), spec), code.size());
  Buffer<float> decoded(values.size());
  MILLRACE_CHECK(codec.check(code, values.size()).has_value(), code.size());
  MILLRACE_CHECK(codec.decode(code, {}, std::span<float>(decoded)).has_value(), code.size());
  MILLRACE_CHECK(values.empty() || std::memcmp(decoded.data(), said.data(), said.size() * sizeof(float)) == 0,
                 said.size());
}

void fuzz(ByteSpan bytes) {
  ByteReader reader(bytes);
  const auto choice = reader.get<uint8_t>();
  const auto count = reader.get<uint16_t>();
  if (!choice || !count) return;
  const auto codecs = value_codecs();
  const ValueCodec& codec = *codecs[*choice % codecs.size()];
  CodecSpec spec;
  spec.value = codec.id();
  spec.qsgd_bits = 2 + *count % 7;
  spec.bucket_size = 1 + *count % 600;
  spec.qsgd_scale_max = (*choice & 8) != 0;
  spec.sparsity_multiplier = 1 + *count % 1000 * 1e-3;
  const ByteSpan rest = *reader.get_bytes(reader.remaining());
  const ByteBuffer exact(rest.begin(), rest.end());  // the sanitizer sees a read behind the end
  if (*choice & 0x80) {
    round_trip(codec, spec, exact);
  } else {
    decode_hostile(codec, exact, *count);
  }
}

}  // namespace
}  // namespace millrace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  millrace::fuzz({data, size});
  return 0;
}
