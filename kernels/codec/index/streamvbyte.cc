#include <streamvbyte.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "kernels/base/check.h"
#include "kernels/codec/codec.h"

namespace millrace {
namespace {

constexpr size_t kBlock = 16'384;      // gaps that the library is given at once; a multiple of 4
constexpr size_t kReadBehindMax = 16;  // its decoder loads whole vectors

/// Bytes that the gaps behind these control bytes take: 1 to 4 each, 2 bits to say it.
uint64_t data_bytes(const uint8_t* control, size_t count) {
  uint64_t bytes = count;
  for (size_t j = 0; j < count; ++j) bytes += control[j / 4] >> (j % 4 * 2) & 3u;
  return bytes;
}

/// The library's format is that of streamvbyte_encode(): control bytes, then data, of all gaps at once. It is written
/// and read block by block through it, because its own sizes are 32 bits, and its decoder believes the control bytes.
class StreamVByteIndexCodec final : public IndexCodec {
 public:
  IndexCodecId id() const override { return IndexCodecId{13}; }
  std::string_view name() const override { return "streamvbyte"; }
  std::string_view paper() const override { return "[StreamVByte18]: Stream VByte, of gaps; libstreamvbyte"; }
  bool lossless() const override { return true; }

  uint64_t bytes_estimate(uint64_t count, uint64_t dimension, const CodecSpec&) const override {
    const double mean = count == 0 ? 1 : static_cast<double>(dimension) / static_cast<double>(count);
    double bytes = 1.25;  // and a byte more for every gap over 2^8, 2^16, 2^24
    for (const double limit : {256.0, 65'536.0, 16'777'216.0}) bytes += std::exp(-limit / mean);
    return static_cast<uint64_t>(bytes * static_cast<double>(count)) + 1;
  }

  Status encode(IndexSpan indices, uint64_t dimension, const EncodeOptions&, ByteBuffer& out,
                IndexBuffer*) const override {
    MILLRACE_CHECK(indices.empty() || indices.back() < dimension, dimension);
    Buffer<uint32_t> gaps(std::min(indices.size(), kBlock));
    uint64_t next = 0;
    for (size_t begin = 0; begin < indices.size(); begin += kBlock) {
      const size_t count = std::min(kBlock, indices.size() - begin);
      for (size_t j = 0; j < count; ++j) {
        gaps[j] = static_cast<uint32_t>(indices[begin + j] - next);
        next = uint64_t{indices[begin + j]} + 1;
      }
      const size_t used = out.size();
      out.resize(used + streamvbyte_max_compressedbytes(static_cast<uint32_t>(count)));
      out.resize(used + streamvbyte_encode(gaps.data(), static_cast<uint32_t>(count), out.data() + used));
    }
    return {};
  }

  Status decode(ByteSpan bytes, uint64_t dimension, uint64_t count, IndexBuffer& indices) const override {
    if (count > dimension || count > bytes.size()) return malformed();  // a byte each at least
    indices.resize(count);
    ByteBuffer last;  // a copy of the end of the bytes, with room to read behind it
    uint64_t next = 0;
    for (size_t begin = 0; begin < count; begin += kBlock) {
      const size_t block = std::min<size_t>(kBlock, count - begin);
      const size_t control = (block + 3) / 4;
      if (bytes.size() < control) return malformed();
      if (block % 4 != 0 && bytes[control - 1] >> (block % 4 * 2) != 0) return malformed();
      const uint64_t size = control + data_bytes(bytes.data(), block);
      if (size > bytes.size()) return malformed();
      const uint8_t* from = bytes.data();
      if (bytes.size() - size < kReadBehindMax) {
        last.assign(bytes.begin(), bytes.end());
        last.resize(bytes.size() + kReadBehindMax);
        std::memset(last.data() + bytes.size(), 0, kReadBehindMax);
        from = last.data();
      }
      const size_t read = streamvbyte_decode(from, indices.data() + begin, static_cast<uint32_t>(block));
      MILLRACE_CHECK(read == size, read, size);
      for (size_t j = begin; j < begin + block; ++j) {  // gaps of a block add up to less than 2^46
        next += indices[j];
        indices[j] = static_cast<uint32_t>(next++);
      }
      if (next > dimension) return malformed();
      bytes = bytes.subspan(size);
    }
    return bytes.empty() ? Status{} : malformed();
  }

 private:
  static Status malformed() {
    return fail(ErrorCode::kMalformed, "streamvbyte: cut off, out of range or with bytes left over");
  }
};

}  // namespace

const IndexCodec& streamvbyte_index_codec() {
  static const StreamVByteIndexCodec codec;
  return codec;
}

}  // namespace millrace
