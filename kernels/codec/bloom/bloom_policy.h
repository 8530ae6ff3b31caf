#pragma once

#include <memory>

#include "kernels/codec/bloom/bloom_filter.h"
#include "kernels/codec/lossy_index_codec.h"

namespace millrace {

/// Chooses the positives of a filter that are decoded: asked about each of them once, in increasing order.
class BloomPicker {
 public:
  virtual ~BloomPicker() = default;
  virtual bool takes_next() = 0;
};

/// Holds the inputs of a picker: both sides know them.
struct BloomPickInput {
  const BloomFilter& filter;
  uint64_t seed = 0;
  uint64_t dimension = 0;
  uint64_t positives = 0;  ///< indices that the filter knows
  uint64_t count = 0;      ///< to take of them, at most all
};

/// Codes indices by a Bloom filter, and decodes as many indices as were encoded [DeepReduce21, 4, 10.4]: a policy is a
/// file with the choice. The code is seed u64, positives u32 and the filter. The number of positives saves the decoder
/// a scan, and gives it the size of its buffer.
class BloomPolicyCodec : public PickingIndexCodec {
 public:
  uint64_t dimension_max() const final { return kBloomDimensionMax; }
  bool takes_rate() const final { return true; }
  uint64_t bytes_estimate(uint64_t count, uint64_t dimension, const CodecSpec& spec) const final;
  Status encode(IndexSpan indices, uint64_t dimension, const EncodeOptions& options, ByteBuffer& out,
                IndexBuffer* decoded) const final;
  Status decode(ByteSpan bytes, uint64_t dimension, uint64_t count, IndexBuffer& indices) const final;
  uint64_t decode_scratch_bytes(ByteSpan bytes, uint64_t dimension, uint64_t count) const final;

 protected:
  /// Makes the picker; null: no encoder writes such a filter.
  virtual std::unique_ptr<BloomPicker> picker(const BloomPickInput& input) const = 0;

  /// Holds the numbers of a code that a picker's memory depends on.
  struct PickSizes {
    BloomShape shape;
    uint64_t dimension = 0;
    uint64_t positives = 0;
    uint64_t count = 0;
  };
  /// Returns a bound of the memory of picker(); 0 where that is null.
  virtual uint64_t picker_bytes(const PickSizes&) const { return 0; }

 private:
  Status pick(const BloomPickInput& input, IndexBuffer& indices) const;
};

/// Takes the positives with numbers [begin, begin + count).
class RangePicker final : public BloomPicker {
 public:
  RangePicker(uint64_t begin, uint64_t count) : begin_(begin), end_(begin + count) {}
  bool takes_next() override {
    const uint64_t number = next_++;
    return number >= begin_ && number < end_;
  }

 private:
  uint64_t begin_;
  uint64_t end_;
  uint64_t next_ = 0;
};

}  // namespace millrace
