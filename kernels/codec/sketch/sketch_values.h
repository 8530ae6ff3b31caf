#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "kernels/codec/codec.h"
#include "kernels/codec/sketch/min_max_sketch.h"

namespace millrace {

/// Describes the cells of a code: known before they are read.
struct SketchCells {
  SketchBuckets buckets;
  std::array<uint64_t, kSketchTags> members{};  ///< values of each tag

  uint64_t count() const;
  /// Bits that say any bucket of a group of this tag's sign. REQUIRES: the sign has buckets.
  uint32_t bits(uint32_t tag) const;
};

/// Says how a bucket decodes to a value.
enum class BucketValue : uint8_t {
  kSmallest = 1,  ///< the bucket's smallest magnitude: magnitudes shrink
  kMean = 2,  ///< the mean of the bucket's bounds, as published; the last bucket's upper bound is the largest magnitude
};

/// Codes values as quantile buckets, looked up by index in a MinMaxSketch (protocol/wire/sketch_codecs.md). A codec is
/// a file that turns cells into bytes. Choices that SketchML's text leaves open, and differences from it:
///
/// - Quantiles are exact, of all magnitudes of a sign: they are sorted. Its sketch only makes finding them cheaper.
/// - 256 buckets are 128 a sign, and at most one for 16 values: a small stream's buckets would take more than its
///   values.
/// - Under kSmallest a bucket decodes to its smallest magnitude; the paper takes the mean of its bounds (kMean), which
///   enlarges small values. Fifteen values of 0.01 and one of 1 decode to 16 times 0.505, an error over the values' own
///   norm. Under kSmallest every magnitude shrinks and none vanishes: 0 < |decoded| <= |value|. The bytes have the same
///   form, and a reader sees no difference.
/// - That is no contraction with one c < 1 for all values: the largest decodes to the smallest of its bucket, however
///   small that is. An entry whose gradients are far larger than all others would never be sent. So the error is
///   dropped.
/// - Zeros are coded separately: the paper's gradients have none.
/// - In the paper, the list that holds a key gives the group of its value. Here the value has 3 bits for it, and all
///   keys are in one list, with deltas that are 3 bits shorter.
class SketchValueCodec : public ValueCodec {
 public:
  explicit SketchValueCodec(BucketValue value) : value_(value) {}
  bool lossless(const CodecSpec&) const final { return false; }
  bool contraction(const CodecSpec&) const final { return false; }
  bool unbiased(const CodecSpec&) const final { return false; }
  uint64_t bytes_max(uint64_t count, const CodecSpec& spec) const final;
  Status check(ByteSpan bytes, uint64_t count) const final;

  Status encode(IndexSpan indices, std::span<const float> values, const EncodeOptions& options, ByteBuffer& out,
                std::span<float> decoded) const final;
  Status decode(ByteSpan bytes, IndexSpan indices, std::span<float> out) const final;

 protected:
  /// Returns the largest number of bytes that this number of cells can take.
  virtual uint64_t cell_bytes_max(uint64_t cells) const = 0;
  virtual void put_cells(const SketchCells& cells, MinMaxSketch& sketch, ByteBuffer& out) const = 0;
  /// Returns whether hostile bytes may be those of the cells, by their length; asked before memory for cells is taken.
  virtual bool cells_fit(const SketchCells& cells, ByteSpan bytes) const = 0;
  /// Reads hostile bytes that may be them. False: they are not. A cell may be over what its group has.
  virtual bool take_cells(const SketchCells& cells, ByteSpan bytes, MinMaxSketch& sketch) const = 0;

 private:
  std::unexpected<Error> malformed(const char* what) const;

  BucketValue value_;
};

/// Return the codecs of sketchml.cc and skcompress.cc under a number and a name. `name` outlives the codec.
std::unique_ptr<const ValueCodec> sketchml_codec(ValueCodecId id, std::string_view name, BucketValue value);
std::unique_ptr<const ValueCodec> skcompress_codec(ValueCodecId id, std::string_view name, BucketValue value);

}  // namespace millrace
