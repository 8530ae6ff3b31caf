#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>

#include "kernels/codec/codec.h"
#include "kernels/codec/index/gap_prefix_codec.h"

namespace millrace {
namespace {

constexpr uint32_t kShiftMax = 31;

/// Bits of the gaps under parameter `shift`, without the terminators that every parameter needs.
uint64_t rice_cost(IndexSpan indices, uint32_t shift) {
  uint64_t quotients = indices[0] >> shift;
  for (size_t j = 1; j < indices.size(); ++j) quotients += (indices[j] - indices[j - 1] - 1) >> shift;
  return quotients + uint64_t{shift} * indices.size();
}

/// quotient floor(gap / 2^shift) in unary, then the `shift` bits below it: one parameter for all gaps.
struct Rice {
  uint32_t shift = 0;

  /// The smallest parameter of the least cost. The cost is convex in it: downhill from the mean's guess.
  static Rice choose(IndexSpan indices) {
    const uint64_t mean = (uint64_t{indices.back()} + 1 - indices.size()) / indices.size();
    auto shift = std::min<uint32_t>(static_cast<uint32_t>(std::bit_width(mean)), kShiftMax);
    uint64_t least = rice_cost(indices, shift);
    const uint32_t guess = shift;
    for (; shift > 0; --shift) {
      const uint64_t below = rice_cost(indices, shift - 1);
      if (below > least) break;
      least = below;
    }
    for (; shift >= guess && shift < kShiftMax; ++shift) {
      const uint64_t above = rice_cost(indices, shift + 1);
      if (above >= least) break;
      least = above;
    }
    return {shift};
  }
  void put_header(ByteBuffer& out) const { out.push_back(static_cast<uint8_t>(shift)); }
  static std::optional<Rice> take_header(ByteSpan& bytes) {
    if (bytes.empty() || bytes[0] > kShiftMax) return std::nullopt;
    const Rice code{bytes[0]};
    bytes = bytes.subspan(1);
    return code;
  }
  void put(BitWriter& writer, uint32_t gap) const {
    writer.put_unary(gap >> shift);
    writer.put(gap & ((uint64_t{1} << shift) - 1), shift);
  }
  uint64_t take(BitReader& reader) const {
    const uint64_t quotient = reader.take_unary(kGapMax);
    return quotient > kGapMax ? quotient : quotient << shift | reader.take(shift);
  }
};

class RiceIndexCodec final : public GapBitsCodec<Rice> {
 public:
  IndexCodecId id() const override { return IndexCodecId{7}; }
  std::string_view name() const override { return "rice"; }
  std::string_view paper() const override { return "[Rice79]: one parameter for all gaps"; }
  uint64_t bytes_estimate(uint64_t count, uint64_t dimension, const CodecSpec&) const override {
    const double bits = std::log2(1 + mean_gap(count, dimension)) + 1.6;
    return static_cast<uint64_t>(bits * static_cast<double>(count) / 8) + 2;
  }
};

}  // namespace

const IndexCodec& rice_index_codec() {
  static const RiceIndexCodec codec;
  return codec;
}

}  // namespace millrace
