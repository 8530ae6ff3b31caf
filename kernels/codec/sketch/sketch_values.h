#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "kernels/codec/codec.h"
#include "kernels/codec/sketch/min_max_sketch.h"

namespace millrace {

/// What the cells of a code are: known before they are read.
struct SketchCells {
  SketchBuckets buckets;
  std::array<uint64_t, kSketchTags> members{};  ///< values of each tag

  uint64_t count() const;
  /// Bits that say any bucket of a group of this tag's sign. REQUIRES: the sign has buckets.
  uint32_t bits(uint32_t tag) const;
};

/// What a bucket's values become.
enum class BucketValue : uint8_t {
  kSmallest = 1,  ///< the bucket's smallest magnitude: magnitudes shrink
  kMean = 2,  ///< the mean of the bucket's bounds, as published; the last bucket's upper bound is the largest magnitude
};

/// Values as quantile buckets that are looked up by index in a MinMaxSketch (protocol/wire/sketch_codecs.md). A codec
/// is a file with how cells become bytes.
///
/// What SketchML's text leaves open or has otherwise:
/// - Quantiles are exact, of all magnitudes of a sign: they are sorted. Its sketch only makes finding them cheaper.
/// - 256 buckets are 128 a sign, and at most one for 16 values: a small stream's buckets would take more than its
///   values.
/// - Under kSmallest a bucket stands for its smallest magnitude; the paper takes the mean of its bounds (kMean), which
///   enlarges small values: 15 values 0.01 and one 1 come back as 16 times 0.505, an error over the values' own norm.
///   Under kSmallest every magnitude shrinks and none vanishes: 0 < |decoded| <= |value|. The bytes are of one form, a
///   reader sees no difference.
/// - That is no contraction with one c < 1 for all values: the largest comes back as the smallest of its bucket,
///   however small that is. An entry whose gradients are far larger than all others would never be sent: the error is
///   dropped.
/// - Zeros are told apart: the paper's gradients have none.
/// - In the paper a value's group is said by which list of keys it is in. Here it is 3 bits with the value, for which
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
  /// Bytes of so many cells at most.
  virtual uint64_t cell_bytes_max(uint64_t cells) const = 0;
  virtual void put_cells(const SketchCells& cells, MinMaxSketch& sketch, ByteBuffer& out) const = 0;
  /// Whether hostile bytes may be those of the cells, by their length; asked before memory for cells is taken.
  virtual bool cells_fit(const SketchCells& cells, ByteSpan bytes) const = 0;
  /// Reads hostile bytes that may be them. False: they are not. A cell may be over what its group has.
  virtual bool take_cells(const SketchCells& cells, ByteSpan bytes, MinMaxSketch& sketch) const = 0;

 private:
  std::unexpected<Error> malformed(const char* what) const;

  BucketValue value_;
};

}  // namespace millrace
