#include <cmath>
#include <optional>

#include "kernels/codec/bits/elias.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/index/gap_prefix_codec.h"

namespace millrace {
namespace {

struct EliasGamma {
  static EliasGamma choose(IndexSpan) { return {}; }
  void put_header(ByteBuffer&) const {}
  static std::optional<EliasGamma> take_header(ByteSpan&) { return EliasGamma{}; }
  void put(BitWriter& writer, uint32_t gap) const { put_elias_gamma(writer, uint64_t{gap} + 1); }
  uint64_t take(BitReader& reader) const {
    const uint64_t value = take_elias_gamma(reader, 32);
    return value == 0 ? kGapMax + 1 : value - 1;
  }
};

class EliasGammaIndexCodec final : public GapBitsCodec<EliasGamma> {
 public:
  IndexCodecId id() const override { return IndexCodecId{5}; }
  std::string_view name() const override { return "elias_gamma"; }
  std::string_view paper() const override { return "[Elias75]: gamma code, of gaps"; }
  uint64_t bytes_estimate(uint64_t count, uint64_t dimension, const CodecSpec&) const override {
    const double bits = 2 * std::log2(1 + mean_gap(count, dimension)) + 1;
    return static_cast<uint64_t>(bits * static_cast<double>(count) / 8) + 1;
  }
};

}  // namespace

const IndexCodec& elias_gamma_index_codec() {
  static const EliasGammaIndexCodec codec;
  return codec;
}

}  // namespace millrace
