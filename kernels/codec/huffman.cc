#include <algorithm>
#include <array>
#include <bit>
#include <queue>
#include <string>
#include <tuple>

#include "kernels/base/check.h"
#include "kernels/codec/bit_stream.h"
#include "kernels/codec/codec_list.h"

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

/// Code lengths of Huffman's algorithm for the symbols that occur; equal weights: who was first goes first, symbols by value.
std::array<uint32_t, kSymbols> code_lengths(const std::array<uint64_t, kSymbols>& counts) {
  struct Node {
    uint64_t weight;
    uint32_t number;
    bool operator>(const Node& other) const { return std::tie(weight, number) > std::tie(other.weight, other.number); }
  };
  std::priority_queue<Node, std::vector<Node>, std::greater<>> open;
  std::array<uint32_t, 2 * kSymbols> parent{};
  for (uint32_t v = 0; v < kSymbols; ++v) {
    if (counts[v] > 0) open.push({counts[v], v});
  }
  std::array<uint32_t, kSymbols> lengths{};
  if (open.size() == 1) {  // dimension 1: a code of no bits would not say that an index is there
    lengths[open.top().number] = 1;
    return lengths;
  }
  uint32_t next = kSymbols;
  while (open.size() > 1) {
    const Node one = open.top();
    open.pop();
    const Node two = open.top();
    open.pop();
    parent[one.number] = parent[two.number] = next;
    open.push({one.weight + two.weight, next++});
  }
  for (uint32_t v = 0; v < kSymbols; ++v) {
    if (counts[v] == 0) continue;
    for (uint32_t node = v; node != next - 1; node = parent[node]) ++lengths[v];
  }
  return lengths;
}

/// The canonical code of a dimension: shorter codes first, of one length by value; the first bit of a code is its highest.
struct HuffmanCode {
  std::array<uint32_t, kSymbols> lengths{};
  std::array<uint32_t, kSymbols> codes{};  // as they are written: first bit lowest
  uint32_t longest = 0;

  explicit HuffmanCode(uint64_t dimension) : lengths(code_lengths(byte_counts(dimension))) {
    longest = *std::max_element(lengths.begin(), lengths.end());
    MILLRACE_CHECK(longest <= kLengthMax, longest, dimension);
    uint32_t code = 0;
    for (uint32_t length = 1; length <= longest; ++length) {
      for (size_t v = 0; v < kSymbols; ++v) {
        if (lengths[v] != length) continue;
        for (uint32_t bit = 0; bit < length; ++bit) codes[v] |= (code >> (length - 1 - bit) & 1) << bit;
        ++code;
      }
      code <<= 1;
    }
  }
};

/// By the next kTableBits bits: the symbol and its length; 0: no code, or a longer one.
class HuffmanTable {
 public:
  explicit HuffmanTable(const HuffmanCode& code) : code_(code) {
    bits_ = std::min(code.longest, kTableBits);
    table_.resize(size_t{1} << bits_, 0);
    std::fill(table_.begin(), table_.end(), uint16_t{0});
    for (uint32_t v = 0; v < kSymbols; ++v) {
      if (code.lengths[v] == 0 || code.lengths[v] > bits_) continue;
      for (size_t at = code.codes[v]; at < table_.size(); at += size_t{1} << code.lengths[v]) {
        table_[at] = static_cast<uint16_t>(v | code.lengths[v] << 8);
      }
    }
  }

  /// The next symbol; over 255: there is none.
  uint32_t take(BitReader& reader) const {
    const uint64_t window = reader.window();
    const uint32_t found = table_[window & (table_.size() - 1)];
    if (found != 0) [[likely]] {
      reader.skip(found >> 8);
      return found & 0xff;
    }
    for (uint32_t v = 0; v < kSymbols; ++v) {
      const uint32_t length = code_.lengths[v];
      if (length <= bits_ || (window & ((uint64_t{1} << length) - 1)) != code_.codes[v]) continue;
      reader.skip(length);
      return v;
    }
    return kSymbols;
  }

 private:
  static constexpr uint32_t kTableBits = 14;
  const HuffmanCode& code_;
  uint32_t bits_ = 0;
  Buffer<uint16_t> table_;
};

/// Huffman as the paper has it: a code of bytes "constructed from all possible indices of the target model", and the four bytes
/// of every index in it. It drops the zeros that are common to all indices, and does not see that they increase. The paper
/// leaves the order of the bytes open: the lowest first here.
class HuffmanIndexCodec final : public IndexCodec {
 public:
  IndexCodecId id() const override { return IndexCodecId{11}; }
  std::string_view name() const override { return "huffman"; }
  std::string_view paper() const override { return "DeepReduce 11: Huffman code of the bytes of indices"; }
  bool lossless() const override { return true; }

  /// The mean over all indices of the dimension.
  uint64_t bytes_estimate(uint64_t count, uint64_t dimension, const CodecSpec&) const override {
    if (count == 0) return 0;
    const auto counts = byte_counts(dimension);
    const auto lengths = code_lengths(counts);
    double bits = 0;
    for (size_t v = 0; v < kSymbols; ++v) bits += static_cast<double>(counts[v]) * lengths[v];
    return static_cast<uint64_t>(bits / static_cast<double>(dimension) * static_cast<double>(count) / 8) + 1;
  }

  Status encode(IndexSpan indices, uint64_t dimension, const EncodeOptions&, ByteBuffer& out,
                IndexBuffer*) const override {
    MILLRACE_CHECK(indices.empty() || indices.back() < dimension, dimension);
    if (indices.empty()) return {};
    const HuffmanCode code(dimension);
    BitWriter writer(out);
    for (uint32_t index : indices) {
      for (size_t byte = 0; byte < kKeyBytes; ++byte, index >>= 8) {
        writer.put(code.codes[index & 0xff], code.lengths[index & 0xff]);
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
    const HuffmanCode code(dimension);
    const HuffmanTable table(code);
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
