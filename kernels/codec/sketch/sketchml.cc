#include <memory>

#include "kernels/codec/bits/bit_stream.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/sketch/sketch_values.h"

namespace millrace {
namespace {

constexpr uint32_t kCellBitsMax = 5;

uint64_t cell_bytes(const SketchCells& cells) {
  uint64_t bits = 0;
  for (uint32_t tag = 0; tag < kSketchTags; ++tag) {
    if (cells.members[tag] > 0) bits += MinMaxSketch::cells_of(cells.members[tag]) * cells.bits(tag);
  }
  return (bits + 7) / 8;
}

/// SketchML: all but what sketch_values.h says is as in the paper. A cell has the bits of a bucket of its group:
/// grouping saves two of seven. The authors' program takes a whole byte. sketchml_mean has buckets' means, as
/// published.
class SketchmlValueCodec final : public SketchValueCodec {
 public:
  SketchmlValueCodec(ValueCodecId id, std::string_view name, BucketValue value)
      : SketchValueCodec(value), id_(id), name_(name) {}

  ValueCodecId id() const override { return id_; }
  std::string_view name() const override { return name_; }
  std::string_view paper() const override { return "[SketchML18]: quantile buckets, MinMaxSketch"; }

 protected:
  uint64_t cell_bytes_max(uint64_t cells) const override { return (cells * kCellBitsMax + 7) / 8; }
  void put_cells(const SketchCells& cells, MinMaxSketch& sketch, ByteBuffer& out) const override {
    BitWriter writer(out);
    for (uint32_t tag = 0; tag < kSketchTags; ++tag) {
      if (cells.members[tag] == 0) continue;
      const uint32_t bits = cells.bits(tag);
      for (const uint8_t cell : sketch.table(tag)) writer.put(cell, bits);
    }
    writer.finish();
  }
  bool cells_fit(const SketchCells& cells, ByteSpan bytes) const override { return bytes.size() == cell_bytes(cells); }
  bool take_cells(const SketchCells& cells, ByteSpan bytes, MinMaxSketch& sketch) const override {
    BitReader reader(bytes);
    for (uint32_t tag = 0; tag < kSketchTags; ++tag) {
      if (cells.members[tag] == 0) continue;
      const uint32_t bits = cells.bits(tag);
      for (uint8_t& cell : sketch.table(tag)) cell = static_cast<uint8_t>(reader.take(bits));
    }
    return reader.at_end();
  }

 private:
  ValueCodecId id_;
  std::string_view name_;
};

}  // namespace

std::unique_ptr<const ValueCodec> sketchml_codec(ValueCodecId id, std::string_view name, BucketValue value) {
  return std::make_unique<SketchmlValueCodec>(id, name, value);
}

const ValueCodec& sketchml_value_codec() {
  static const auto codec = sketchml_codec(ValueCodecId{15}, "sketchml", BucketValue::kSmallest);
  return *codec;
}

}  // namespace millrace
