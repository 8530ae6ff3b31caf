#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "kernels/base/check.h"
#include "kernels/codec/bits/elias.h"
#include "kernels/codec/codec.h"

namespace millrace {
namespace {

/// Runs of the bitmap. The paper counts bits in <frequency, symbol> pairs and does not define the width of a frequency.
/// Runs of a bitmap alternate, so that no symbol is needed. A frequency is an Elias gamma code here.
class RunLengthIndexCodec final : public IndexCodec {
 public:
  IndexCodecId id() const override { return IndexCodecId{10}; }
  std::string_view name() const override { return "run_length"; }
  std::string_view paper() const override {
    return "[DeepReduce21, 2, 11]: bit-level run lengths of the bitmap; Elias gamma";
  }
  bool lossless() const override { return true; }

  /// Of uniform indices a run of ones has 1 / (1 - density) of them.
  uint64_t bytes_estimate(uint64_t count, uint64_t dimension, const CodecSpec&) const override {
    if (count == 0) return 0;
    const double density = static_cast<double>(count) / static_cast<double>(dimension);
    const double runs = static_cast<double>(count) * (1 - density) + 1;
    const double bits = 2 * std::log2(1 / density) + 1 + 2 * std::log2(1 / (1 - std::min(density, 0.999))) + 1;
    return static_cast<uint64_t>(runs * bits / 8) + 1;
  }

  Status encode(IndexSpan indices, uint64_t dimension, const EncodeOptions&, ByteBuffer& out,
                IndexBuffer*) const override {
    MILLRACE_CHECK(indices.empty() || indices.back() < dimension, dimension);
    if (indices.empty()) return {};
    BitWriter writer(out);
    uint64_t next = 0;  // behind the last run of ones
    for (size_t j = 0; j < indices.size();) {
      size_t end = j + 1;
      while (end < indices.size() && indices[end] == indices[end - 1] + 1) ++end;
      put_elias_gamma(writer, indices[j] - next + (j == 0 ? 1 : 0));  // only the first run of zeros may be empty
      put_elias_gamma(writer, end - j);
      next = uint64_t{indices[end - 1]} + 1;
      j = end;
    }
    writer.finish();
    return {};
  }

  /// A run's ones may be many: memory grows with those that are there, at most to twice as many.
  Status decode(ByteSpan bytes, uint64_t dimension, uint64_t count, IndexBuffer& indices) const override {
    indices.clear();
    if (count > dimension) return malformed();
    BitReader reader(bytes);
    uint64_t next = 0;
    while (indices.size() < count) {
      const size_t done = indices.size();
      const uint64_t zeros = take_elias_gamma(reader, kBitsMax);
      const uint64_t ones = take_elias_gamma(reader, kBitsMax);
      if (zeros == 0 || ones == 0 || ones > count - done) return malformed();
      next += zeros - (done == 0 ? 1 : 0);
      if (next + ones > dimension) return malformed();
      if (indices.capacity() < done + ones) indices.reserve(std::min(count, std::max(done + ones, 2 * done)));
      indices.resize(done + ones);
      std::iota(indices.begin() + static_cast<std::ptrdiff_t>(done), indices.end(), static_cast<uint32_t>(next));
      next += ones;
    }
    return reader.at_end() ? Status{} : malformed();
  }

 private:
  static constexpr uint32_t kBitsMax = 32;
  static Status malformed() {
    return fail(ErrorCode::kMalformed, "run lengths: cut off, out of range or with bytes left over");
  }
};

}  // namespace

const IndexCodec& run_length_index_codec() {
  static const RunLengthIndexCodec codec;
  return codec;
}

}  // namespace millrace
