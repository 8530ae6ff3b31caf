#include <array>
#include <bit>
#include <cmath>
#include <optional>

#include "kernels/base/bytes.h"
#include "kernels/codec/bits/huffman_code.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/index/gap_prefix_codec.h"

namespace millrace {
namespace {

// floor(log2) of 1 to 2^32.
constexpr size_t kPrefixes = 33;
constexpr uint32_t kDeltaHuffmanLengthBits = 6;

uint32_t prefix_of(uint64_t delta) { return static_cast<uint32_t>(std::bit_width(delta)) - 1; }

/// Which of the intervals [2^n, 2^(n+1)) the delta is in, in a Huffman code of how often each is met; then the place in
/// it.
struct DeltaHuffman {
  HuffmanCode code;
  std::optional<HuffmanTable> table = std::nullopt;  // for reading

  static DeltaHuffman choose(IndexSpan indices) {
    std::array<uint64_t, kPrefixes> counts{};
    uint64_t next = 0;
    for (const uint32_t index : indices) {
      ++counts[prefix_of(index - next + 1)];
      next = uint64_t{index} + 1;
    }
    size_t used = kPrefixes;
    while (counts[used - 1] == 0) --used;
    std::array<uint8_t, kPrefixes> lengths;
    const auto of_used = std::span(lengths).first(used);
    huffman_lengths(std::span(counts).first(used), of_used);
    return {HuffmanCode(of_used)};
  }
  void put_header(ByteBuffer& out) const {
    ByteWriter(out).put(static_cast<uint8_t>(code.symbols));
    BitWriter writer(out);
    for (uint32_t n = 0; n < code.symbols; ++n) writer.put(code.lengths[n], kDeltaHuffmanLengthBits);
    writer.finish();
  }
  static std::optional<DeltaHuffman> take_header(ByteSpan& bytes) {
    if (bytes.empty() || bytes[0] == 0 || bytes[0] > kPrefixes) return std::nullopt;
    const uint32_t symbols = bytes[0];
    const size_t length_bytes = (symbols * kDeltaHuffmanLengthBits + 7) / 8;
    if (bytes.size() - 1 < length_bytes) return std::nullopt;
    BitReader reader(bytes.subspan(1, length_bytes));
    std::array<uint8_t, kPrefixes> lengths;
    for (uint32_t n = 0; n < symbols; ++n) lengths[n] = static_cast<uint8_t>(reader.take(kDeltaHuffmanLengthBits));
    const auto used = std::span(lengths).first(symbols);
    if (!reader.at_end() || used.back() == 0 || !huffman_lengths_hold(used)) return std::nullopt;
    bytes = bytes.subspan(1 + length_bytes);
    const HuffmanCode code(used);
    return DeltaHuffman{code, HuffmanTable(code)};
  }
  void put(BitWriter& writer, uint32_t gap) const {
    const uint64_t delta = uint64_t{gap} + 1;
    const uint32_t prefix = prefix_of(delta);
    code.put(writer, prefix);
    writer.put(delta ^ uint64_t{1} << prefix, prefix);
  }
  uint64_t take(BitReader& reader) const {
    const uint32_t prefix = table->take(reader);
    if (prefix >= kPrefixes) return kGapMax + 1;
    return (uint64_t{1} << prefix | reader.take(prefix)) - 1;
  }
};

/// SKCompress's keys: deltas whose prefix, which is their length, is Huffman-coded. The prefixes of its delta-adaptive
/// encoding mean lengths in steps of 2 to 16 bits, as chosen for the keys. With a Huffman code steps of 1 bit are the
/// best, and are the only ones here. A first key has its delta to -1.
class DeltaHuffmanIndexCodec final : public GapBitsCodec<DeltaHuffman> {
 public:
  IndexCodecId id() const override { return IndexCodecId{22}; }
  std::string_view name() const override { return "delta_huffman"; }
  std::string_view paper() const override { return "[SKCompress20]: deltas with Huffman-coded prefixes"; }
  uint64_t bytes_estimate(uint64_t count, uint64_t dimension, const CodecSpec&) const override {
    const double bits = std::log2(1 + mean_gap(count, dimension)) + 1.6;
    return static_cast<uint64_t>(bits * static_cast<double>(count) / 8) + 26;
  }
};

}  // namespace

const IndexCodec& delta_huffman_index_codec() {
  static const DeltaHuffmanIndexCodec codec;
  return codec;
}

}  // namespace millrace
