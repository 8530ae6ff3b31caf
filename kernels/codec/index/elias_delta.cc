#include <cmath>
#include <optional>

#include "kernels/codec/bits/elias.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/index/gap_prefix_codec.h"

namespace millrace {
namespace {

/// The gamma code of n + 1, n = floor(log2(gap + 1)), and the n bits of gap + 1 below its highest.
struct EliasDelta {
  static EliasDelta choose(IndexSpan) { return {}; }
  void put_header(ByteBuffer&) const {}
  static std::optional<EliasDelta> take_header(ByteSpan&) { return EliasDelta{}; }
  void put(BitWriter& writer, uint32_t gap) const {
    const uint64_t value = uint64_t{gap} + 1;
    const auto n = static_cast<uint32_t>(std::bit_width(value)) - 1;
    put_elias_gamma(writer, n + 1);
    writer.put(value - (uint64_t{1} << n), n);
  }
  uint64_t take(BitReader& reader) const {
    const uint64_t n_and_1 = take_elias_gamma(reader, 5);
    if (n_and_1 == 0 || n_and_1 > 33) return kGapMax + 1;
    const auto n = static_cast<uint32_t>(n_and_1 - 1);
    return (uint64_t{1} << n | reader.take(n)) - 1;
  }
};

class EliasDeltaIndexCodec final : public GapBitsCodec<EliasDelta> {
 public:
  IndexCodecId id() const override { return IndexCodecId{6}; }
  std::string_view name() const override { return "elias_delta"; }
  std::string_view paper() const override { return "[Elias75]: delta code, of gaps"; }
  uint64_t bytes_estimate(uint64_t count, uint64_t dimension, const CodecSpec&) const override {
    const double n = std::log2(1 + mean_gap(count, dimension));
    return static_cast<uint64_t>((n + 2 * std::log2(1 + n) + 1) * static_cast<double>(count) / 8) + 1;
  }
};

}  // namespace

const IndexCodec& elias_delta_index_codec() {
  static const EliasDeltaIndexCodec codec;
  return codec;
}

}  // namespace millrace
