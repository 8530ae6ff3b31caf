#include <libdeflate.h>

#include <array>
#include <cmath>
#include <memory>
#include <optional>
#include <string>

#include "kernels/base/bytes.h"
#include "kernels/base/check.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/value/byte_planes.h"

namespace millrace {
namespace {

constexpr int kLevel = 1;           // higher ones take 0 to 2 % less of the traces, at half the speed and below
constexpr double kNoiseBits = 7.9;  // a byte: such a plane is not tried
constexpr uint64_t kDeflateRatioMax = 1032;  // a match of 258 bytes takes 2 bits at least

/// Which planes are deflated, and to how many bytes; the others are as they are.
struct DeflateHeader {
  static constexpr size_t kPlanes = sizeof(float);
  std::array<std::optional<uint32_t>, kPlanes> deflated;

  /// Takes the header off `bytes`. Empty: no code of `count` values.
  static std::optional<DeflateHeader> take(ByteSpan& bytes, uint64_t count) {
    ByteReader reader(bytes);
    const auto planes = reader.get<uint8_t>();
    if (!planes || *planes >> (kPlanes - 1) > 1 || count > kDimensionMax) return std::nullopt;
    DeflateHeader header;
    uint64_t code_bytes = 0;
    for (size_t plane = 0; plane < kPlanes; ++plane) {
      code_bytes += count;
      if ((*planes >> plane & 1) == 0) continue;
      header.deflated[plane] = reader.get<uint32_t>();
      const auto& length = header.deflated[plane];
      if (!length || *length >= count || *length * kDeflateRatioMax < count) return std::nullopt;
      code_bytes -= count - *length;
    }
    if (reader.remaining() != code_bytes) return std::nullopt;
    bytes = bytes.subspan(bytes.size() - reader.remaining());
    return header;
  }
};

struct FreeCompressor {
  void operator()(libdeflate_compressor* compressor) const { libdeflate_free_compressor(compressor); }
};
struct FreeDecompressor {
  void operator()(libdeflate_decompressor* decompressor) const { libdeflate_free_decompressor(decompressor); }
};

/// Bits a byte by how often each occurs.
double entropy_of(ByteSpan plane) {
  std::array<uint64_t, 256> counts{};
  for (const uint8_t byte : plane) ++counts[byte];
  double bits = 0;
  for (const uint64_t count : counts) {
    if (count > 0)
      bits -= static_cast<double>(count) * std::log2(static_cast<double>(count) / static_cast<double>(plane.size()));
  }
  return bits / static_cast<double>(plane.size());
}

Status malformed_deflate() {
  return fail(ErrorCode::kMalformed, "deflate: cut off, no Deflate code, or not as long as the values");
}

/// The values' bytes, plane by plane, each by itself in Deflate [RFC1951] where that is shorter. The paper deflates
/// values as they lie. The largest 1 % of the traces then take 27 bits a value, measured offline; planes take 22.5 to
/// 22.9. The lower bytes of a mantissa are noise, that of the exponent takes a bit or two. Lossless: NaN and infinity
/// pass, as with raw.
class DeflateValueCodec final : public ValueCodec {
 public:
  ValueCodecId id() const override { return ValueCodecId{9}; }
  std::string_view name() const override { return "deflate"; }
  std::string_view paper() const override {
    return "[DeepReduce21, 11]: Deflate of values; libdeflate, by planes of bytes";
  }
  bool lossless(const CodecSpec&) const override { return true; }
  uint64_t bytes_max(uint64_t count, const CodecSpec&) const override {
    // A deflated plane is shorter than it was, but has a length.
    return 1 + DeflateHeader::kPlanes * (sizeof(uint32_t) + count);
  }
  Status check(ByteSpan bytes, uint64_t count) const override {
    return DeflateHeader::take(bytes, count) ? Status{} : malformed_deflate();
  }

  Status encode(IndexSpan, std::span<const float> values, const EncodeOptions&, ByteBuffer& out,
                std::span<float>) const override {
    const std::unique_ptr<libdeflate_compressor, FreeCompressor> compressor(libdeflate_alloc_compressor(kLevel));
    if (compressor == nullptr) return fail(ErrorCode::kLimitExceeded, "deflate: no memory for the compressor");
    const size_t count = values.size();
    ByteBuffer planes(values.size_bytes());
    to_planes(values, planes.data());
    ByteBuffer codes;
    std::array<size_t, DeflateHeader::kPlanes> lengths{};
    uint32_t flags = 0;
    for (size_t plane = 0; plane < DeflateHeader::kPlanes && count > 1; ++plane) {
      const ByteSpan of_plane = ByteSpan(planes).subspan(plane * count, count);
      if (entropy_of(of_plane) > kNoiseBits) continue;
      const size_t begin = codes.size();
      codes.resize(begin + count);
      const size_t room = std::min<size_t>(count - 1, UINT32_MAX);
      lengths[plane] = libdeflate_deflate_compress(compressor.get(), planes.data() + plane * count, count,
                                                   codes.data() + begin, room);
      codes.resize(begin + lengths[plane]);
      flags |= (lengths[plane] > 0 ? 1u : 0u) << plane;
    }
    ByteWriter writer(out);
    writer.put(static_cast<uint8_t>(flags));
    for (const size_t length : lengths) {
      if (length > 0) writer.put(static_cast<uint32_t>(length));
    }
    size_t at = 0;
    for (size_t plane = 0; plane < DeflateHeader::kPlanes; ++plane) {
      writer.put_bytes(lengths[plane] > 0 ? ByteSpan(codes).subspan(at, lengths[plane])
                                          : ByteSpan(planes).subspan(plane * count, count));
      at += lengths[plane];
    }
    return {};
  }

  Status decode(ByteSpan bytes, IndexSpan, std::span<float> out) const override {
    const auto header = DeflateHeader::take(bytes, out.size());
    if (!header) return malformed_deflate();
    const std::unique_ptr<libdeflate_decompressor, FreeDecompressor> decompressor(libdeflate_alloc_decompressor());
    if (decompressor == nullptr) return fail(ErrorCode::kLimitExceeded, "deflate: no memory for the decompressor");
    std::array<ByteBuffer, DeflateHeader::kPlanes> inflated;
    std::array<const uint8_t*, DeflateHeader::kPlanes> planes{};
    for (size_t plane = 0; plane < DeflateHeader::kPlanes; ++plane) {
      const ByteSpan code = bytes.first(header->deflated[plane].value_or(out.size()));
      bytes = bytes.subspan(code.size());
      planes[plane] = code.data();
      if (!header->deflated[plane]) continue;
      inflated[plane].resize(out.size());
      planes[plane] = inflated[plane].data();
      size_t read = 0;
      // Without a place for the output's length, the output must have exactly the length of the buffer.
      if (libdeflate_deflate_decompress_ex(decompressor.get(), code.data(), code.size(), inflated[plane].data(),
                                           out.size(), &read, nullptr) != LIBDEFLATE_SUCCESS ||
          read != code.size()) {
        return malformed_deflate();
      }
    }
    from_planes(planes.data(), out);
    return {};
  }
};

}  // namespace

const ValueCodec& deflate_value_codec() {
  static const DeflateValueCodec codec;
  return codec;
}

}  // namespace millrace
