#include <algorithm>
#include <array>
#include <memory>

#include "kernels/base/bytes.h"
#include "kernels/codec/bits/bit_stream.h"
#include "kernels/codec/bits/huffman_code.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/sketch/sketch_values.h"

namespace millrace {
namespace {

constexpr uint32_t kSymbolsMax = 32;
constexpr uint32_t kSkcompressLengthBits = 5;

uint64_t length_bytes(uint32_t symbols) { return (symbols * kSkcompressLengthBits + 7) / 8; }

/// SKCompress: SketchML's values with the cells of the sketch in a Huffman code. Quantile buckets are all equally
/// frequent, and would have no use for one. The smallest of those that meet in a cell is mostly a small one. One code
/// for all groups, since the buckets of each are counted from 0; its lengths travel. skcompress_mean has buckets'
/// means, as published.
class SkcompressValueCodec final : public SketchValueCodec {
 public:
  SkcompressValueCodec(ValueCodecId id, std::string_view name, BucketValue value)
      : SketchValueCodec(value), id_(id), name_(name) {}

  ValueCodecId id() const override { return id_; }
  std::string_view name() const override { return name_; }
  std::string_view paper() const override { return "[SKCompress20]: SketchML with a Huffman-coded sketch"; }

 protected:
  // No Huffman code takes more than one of five bits each.
  uint64_t cell_bytes_max(uint64_t cells) const override {
    return 1 + length_bytes(kSymbolsMax) + (cells * kSkcompressLengthBits + 7) / 8;
  }
  void put_cells(const SketchCells&, MinMaxSketch& sketch, ByteBuffer& out) const override {
    std::array<uint64_t, kSymbolsMax> counts{};
    uint32_t symbols = 0;
    for (uint32_t tag = 0; tag < kSketchTags; ++tag) {
      for (const uint8_t cell : sketch.table(tag)) {
        ++counts[cell];
        symbols = std::max<uint32_t>(symbols, cell + 1);
      }
    }
    std::array<uint8_t, kSymbolsMax> lengths;
    const auto used = std::span(lengths).first(symbols);
    huffman_lengths(std::span(counts).first(symbols), used);
    ByteWriter(out).put(static_cast<uint8_t>(symbols));
    BitWriter length_writer(out);
    for (uint32_t symbol = 0; symbol < symbols; ++symbol) length_writer.put(lengths[symbol], kSkcompressLengthBits);
    length_writer.finish();
    const HuffmanCode code(used);
    BitWriter writer(out);
    for (uint32_t tag = 0; tag < kSketchTags; ++tag) {
      for (const uint8_t cell : sketch.table(tag)) code.put(writer, cell);
    }
    writer.finish();
  }
  bool cells_fit(const SketchCells& cells, ByteSpan bytes) const override {
    if (bytes.empty() || bytes[0] > kSymbolsMax || (bytes[0] == 0) != (cells.count() == 0)) return false;
    const uint64_t before = 1 + length_bytes(bytes[0]);
    return bytes.size() >= before && bytes.size() - before >= (cells.count() + 7) / 8;
  }
  bool take_cells(const SketchCells& cells, ByteSpan bytes, MinMaxSketch& sketch) const override {
    const uint32_t symbols = bytes[0];
    if (symbols == 0) return bytes.size() == 1;
    BitReader length_reader(bytes.subspan(1, length_bytes(symbols)));
    std::array<uint8_t, kSymbolsMax> lengths;
    for (uint32_t symbol = 0; symbol < symbols; ++symbol) {
      lengths[symbol] = static_cast<uint8_t>(length_reader.take(kSkcompressLengthBits));
    }
    const auto used = std::span(lengths).first(symbols);
    if (!length_reader.at_end() || used.back() == 0 || !huffman_lengths_hold(used)) return false;
    const HuffmanTable table{HuffmanCode(used)};
    BitReader reader(bytes.subspan(1 + length_bytes(symbols)));
    for (uint32_t tag = 0; tag < kSketchTags; ++tag) {
      if (cells.members[tag] == 0) continue;
      for (uint8_t& cell : sketch.table(tag)) {
        const uint32_t symbol = table.take(reader);
        if (symbol >= kSymbolsMax) return false;
        cell = static_cast<uint8_t>(symbol);
      }
    }
    return reader.at_end();
  }

 private:
  ValueCodecId id_;
  std::string_view name_;
};

}  // namespace

std::unique_ptr<const ValueCodec> skcompress_codec(ValueCodecId id, std::string_view name, BucketValue value) {
  return std::make_unique<SkcompressValueCodec>(id, name, value);
}

const ValueCodec& skcompress_value_codec() {
  static const auto codec = skcompress_codec(ValueCodecId{16}, "skcompress", BucketValue::kSmallest);
  return *codec;
}

}  // namespace millrace
