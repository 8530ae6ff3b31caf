#include <algorithm>
#include <array>
#include <string>

#include "kernels/base/check.h"
#include "kernels/codec/bits/bit_stream.h"
#include "kernels/codec/bits/huffman_code.h"
#include "kernels/codec/codec.h"

namespace millrace {
namespace {

constexpr size_t kSymbols = 256;
constexpr size_t kKeyBytes = sizeof(uint32_t);
constexpr uint32_t kLengthMax = 24;

/// How often each byte value occurs in the u32 of all of [0, dimension).
std::array<uint64_t, kSymbols> byte_counts(uint64_t dimension) {
  std::array<uint64_t, kSymbols> counts{};
  for (uint32_t byte = 0; byte < kKeyBytes; ++byte) {
    // This byte is v for 2^(8 byte) numbers in a row, again after 256 times as many.
    const uint64_t row = uint64_t{1} << (8 * byte);
    const uint64_t whole = dimension / (row * kSymbols);
    const uint64_t rest = dimension % (row * kSymbols);
    for (uint64_t v = 0; v < kSymbols; ++v) {
      counts[v] += whole * row + std::clamp<int64_t>(static_cast<int64_t>(rest) - static_cast<int64_t>(v * row), 0,
                                                     static_cast<int64_t>(row));
    }
  }
  return counts;
}

/// The code of a dimension.
HuffmanCode code_of(uint64_t dimension) {
  std::array<uint8_t, kSymbols> lengths;
  huffman_lengths(byte_counts(dimension), lengths);
  HuffmanCode code(lengths);
  MILLRACE_CHECK(code.longest <= kLengthMax, code.longest, dimension);
  return code;
}

/// Huffman as the paper has it: a code of bytes "constructed from all possible indices of the target model". Every
/// index is its four bytes in this code. It drops the zeros that are common to all indices, and does not see that they
/// increase. The paper leaves the order of the bytes open: the lowest first here.
class HuffmanIndexCodec final : public IndexCodec {
 public:
  IndexCodecId id() const override { return IndexCodecId{11}; }
  std::string_view name() const override { return "huffman"; }
  std::string_view paper() const override { return "[DeepReduce21, 11]: Huffman code of the bytes of indices"; }
  bool lossless() const override { return true; }

  /// The mean over all indices of the dimension.
  uint64_t bytes_estimate(uint64_t count, uint64_t dimension, const CodecSpec&) const override {
    if (count == 0) return 0;
    const auto counts = byte_counts(dimension);
    const HuffmanCode code = code_of(dimension);
    double bits = 0;
    for (size_t v = 0; v < kSymbols; ++v) bits += static_cast<double>(counts[v]) * code.lengths[v];
    return static_cast<uint64_t>(bits / static_cast<double>(dimension) * static_cast<double>(count) / 8) + 1;
  }

  Status encode(IndexSpan indices, uint64_t dimension, const EncodeOptions&, ByteBuffer& out,
                IndexBuffer*) const override {
    MILLRACE_CHECK(indices.empty() || indices.back() < dimension, dimension);
    if (indices.empty()) return {};
    const HuffmanCode code = code_of(dimension);
    BitWriter writer(out);
    for (uint32_t index : indices) {
      for (size_t byte = 0; byte < kKeyBytes; ++byte, index >>= 8) {
        code.put(writer, index & 0xff);
      }
    }
    writer.finish();
    return {};
  }

  Status decode(ByteSpan bytes, uint64_t dimension, uint64_t count, IndexBuffer& indices) const override {
    // Four codes of a bit each at least.
    if (count > dimension || count / 2 > bytes.size()) return malformed();
    indices.resize(count);
    if (count == 0) return bytes.empty() ? Status{} : malformed();
    const HuffmanTable table(code_of(dimension));
    BitReader reader(bytes);
    uint64_t next = 0;
    for (uint32_t& index : indices) {
      uint64_t value = 0;
      for (uint32_t byte = 0; byte < kKeyBytes; ++byte) {
        const uint32_t symbol = table.take(reader);
        if (symbol >= kSymbols) return malformed();
        value |= uint64_t{symbol} << (8 * byte);
      }
      if (value < next || value >= dimension || reader.overrun()) return malformed();
      index = static_cast<uint32_t>(value);
      next = value + 1;
    }
    return reader.at_end() ? Status{} : malformed();
  }

 private:
  static Status malformed() {
    return fail(ErrorCode::kMalformed,
                "huffman: cut off, not strictly increasing below the dimension or with bytes left over");
  }
};

}  // namespace

const IndexCodec& huffman_index_codec() {
  static const HuffmanIndexCodec codec;
  return codec;
}

}  // namespace millrace
