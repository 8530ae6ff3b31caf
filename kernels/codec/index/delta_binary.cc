#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include "kernels/base/check.h"
#include "kernels/codec/codec.h"

namespace millrace {
namespace {

constexpr uint32_t kFlagsAByte = 4;

uint32_t bytes_of(uint32_t delta) { return delta == 0 ? 1 : (static_cast<uint32_t>(std::bit_width(delta)) + 7) / 8; }

std::unexpected<Error> malformed_delta_binary(const char* what) {
  return fail(ErrorCode::kMalformed, std::string("delta_binary: ") + what);
}

/// SketchML's delta-binary encoding of keys: 2 bits that say how many bytes the difference to the key before it takes,
/// and these bytes. Its authors' program never uses lengths of 3; the paper's four lengths do, and so does this. One
/// list of keys, not one for each group of buckets: what tells the groups apart is in the value code (sketchml).
class DeltaBinaryIndexCodec final : public IndexCodec {
 public:
  IndexCodecId id() const override { return IndexCodecId{21}; }
  std::string_view name() const override { return "delta_binary"; }
  std::string_view paper() const override { return "[SketchML18, 3.4]: delta-binary encoding"; }
  bool lossless() const override { return true; }

  uint64_t bytes_estimate(uint64_t count, uint64_t dimension, const CodecSpec&) const override {
    if (count == 0) return 0;
    // Geometric deltas: the share of those over 2^8, 2^16 and 2^24 takes a byte more each.
    const double mean = static_cast<double>(dimension) / static_cast<double>(count);
    double bytes = 1.25;
    for (const double limit : {0x1.0p8, 0x1.0p16, 0x1.0p24}) bytes += std::exp(-limit / mean);
    return static_cast<uint64_t>(bytes * static_cast<double>(count)) + 1;
  }

  Status encode(IndexSpan indices, uint64_t dimension, const EncodeOptions&, ByteBuffer& out,
                IndexBuffer*) const override {
    MILLRACE_CHECK(indices.empty() || indices.back() < dimension, dimension);
    const size_t flags = out.size();
    size_t at = flags + (indices.size() + kFlagsAByte - 1) / kFlagsAByte;
    out.resize(at);
    std::fill(out.begin() + static_cast<std::ptrdiff_t>(flags), out.end(), uint8_t{0});
    uint32_t last = 0;
    for (size_t i = 0; i < indices.size(); ++i) {
      if (out.size() - at < sizeof(uint32_t)) out.resize(at + at / 2 + 256);
      const uint32_t delta = indices[i] - last;
      const uint32_t length = bytes_of(delta);
      out[flags + i / kFlagsAByte] |= static_cast<uint8_t>((length - 1) << (i % kFlagsAByte * 2));
      std::memcpy(out.data() + at, &delta, sizeof(delta));
      at += length;
      last = indices[i];
    }
    out.resize(at);
    return {};
  }

  Status decode(ByteSpan bytes, uint64_t dimension, uint64_t count, IndexBuffer& indices) const override {
    if (count > dimension) return malformed_delta_binary("more indices than the dimension");
    const uint64_t flags = (count + kFlagsAByte - 1) / kFlagsAByte;
    if (bytes.size() < flags + count) return malformed_delta_binary("cut off");
    if (count % kFlagsAByte != 0 && bytes[flags - 1] >> (count % kFlagsAByte * 2) != 0)
      return malformed_delta_binary("padding that is not 0");
    indices.resize(count);
    uint64_t at = flags;
    uint64_t last = 0;
    for (uint64_t i = 0; i < count; ++i) {
      const uint32_t length = 1 + (bytes[i / kFlagsAByte] >> (i % kFlagsAByte * 2) & 3);
      if (bytes.size() - at < length) return malformed_delta_binary("cut off");
      uint32_t delta = 0;
      std::memcpy(&delta, bytes.data() + at, length);
      at += length;
      if ((delta == 0 && i > 0) || last + delta >= dimension)
        return malformed_delta_binary("not strictly increasing below the dimension");
      last += delta;
      indices[i] = static_cast<uint32_t>(last);
    }
    return at == bytes.size() ? Status{} : Status(malformed_delta_binary("bytes left over"));
  }
};

}  // namespace

const IndexCodec& delta_binary_index_codec() {
  static const DeltaBinaryIndexCodec codec;
  return codec;
}

}  // namespace millrace
