#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>

#include "kernels/base/bytes.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/index/gap_prefix_codec.h"

namespace millrace {
namespace {

/// quotient floor(gap / divisor) in unary, then the remainder in truncated binary: of the `bits` = ceil(log2(divisor))
/// that it needs, remainders below 2^bits - divisor take one less.
struct Golomb {
  uint32_t divisor = 1;
  uint32_t bits = 0;
  uint32_t shorter = 0;  // how many remainders take bits - 1

  static Golomb of(uint32_t divisor) {
    const auto bits = static_cast<uint32_t>(std::bit_width(divisor - 1));
    return {divisor, bits, static_cast<uint32_t>((uint64_t{1} << bits) - divisor)};
  }

  /// Returns the best divisor for geometric gaps of the same mean: the smallest m with q^m + q^(m+1) <= 1. Here q is
  /// the chance that a gap is longer by one [GallagerVanVoorhis75].
  static Golomb choose(IndexSpan indices) {
    const double gaps = static_cast<double>(uint64_t{indices.back()} + 1 - indices.size());
    const double q = gaps / (gaps + static_cast<double>(indices.size()));
    const double m = q == 0 ? 1 : std::ceil(-std::log1p(q) / std::log(q));
    return of(static_cast<uint32_t>(std::clamp(m, 1.0, static_cast<double>(kGapMax))));
  }
  void put_header(ByteBuffer& out) const { ByteWriter(out).put(divisor); }
  static std::optional<Golomb> take_header(ByteSpan& bytes) {
    const auto divisor = ByteReader(bytes).get<uint32_t>();
    if (!divisor || *divisor == 0) return std::nullopt;
    bytes = bytes.subspan(sizeof(*divisor));
    return of(*divisor);
  }
  void put(BitWriter& writer, uint32_t gap) const {
    const uint32_t remainder = gap % divisor;
    writer.put_unary(gap / divisor);
    if (bits == 0) return;
    if (remainder < shorter) return writer.put(remainder, bits - 1);
    const uint64_t moved = uint64_t{remainder} + shorter;
    writer.put(moved >> 1 | (moved & 1) << (bits - 1), bits);
  }
  uint64_t take(BitReader& reader) const {
    const uint64_t quotient = reader.take_unary(kGapMax);
    const uint64_t start = std::min(quotient, kGapMax) * divisor;
    if (quotient > kGapMax || start > kGapMax) return kGapMax + 1;
    if (bits == 0) return start;
    const uint64_t high = reader.window() & ((uint64_t{1} << (bits - 1)) - 1);
    reader.skip(bits - 1);
    if (high < shorter) return start + high;
    return start + (high << 1 | reader.take(1)) - shorter;
  }
};

class GolombIndexCodec final : public GapBitsCodec<Golomb> {
 public:
  IndexCodecId id() const override { return IndexCodecId{8}; }
  std::string_view name() const override { return "golomb"; }
  std::string_view paper() const override {
    return "[Golomb66]: one divisor for all gaps: optimal where they are geometric";
  }
  uint64_t bytes_estimate(uint64_t count, uint64_t dimension, const CodecSpec&) const override {
    const double bits = std::log2(1 + mean_gap(count, dimension)) + 1.55;
    return static_cast<uint64_t>(bits * static_cast<double>(count) / 8) + 5;
  }
};

}  // namespace

const IndexCodec& golomb_index_codec() {
  static const GolombIndexCodec codec;
  return codec;
}

}  // namespace millrace
