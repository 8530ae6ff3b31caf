#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>

#include "kernels/base/bytes.h"
#include "kernels/base/check.h"
#include "kernels/codec/bloom_scan.h"
#include "kernels/codec/codec_list.h"

namespace millrace {
namespace {

constexpr uint64_t kSeedStream = 0x626c6f6f6d;  // "bloom": apart from the quantizers' draws under the same key
constexpr size_t kHeaderBytes = 16;

/// Size and number of hash functions for a false positive rate, by the optimal formulas: m = n ln(1/rate) / (ln 2)^2,
/// k = m / n ln 2 (DeepReduce 4 and 9.2).
struct BloomShape {
  uint64_t bits = 0;
  uint32_t probes = 0;

  static BloomShape optimal(uint64_t count, double rate) {
    const double ln2 = std::log(2.0);
    const double n = static_cast<double>(std::max<uint64_t>(count, 1));
    const double bits = std::ceil(-n * std::log(rate) / (ln2 * ln2));
    BloomShape shape;
    shape.bits = (static_cast<uint64_t>(bits) + 31) / 32 * 32;
    const double probes = std::round(static_cast<double>(shape.bits) / n * ln2);
    // A filter that was rounded up is no reason for more hash functions than the rate asks for.
    const double wanted = std::max(1.0, std::round(-std::log2(rate)));
    shape.probes = static_cast<uint32_t>(std::clamp(std::min(probes, wanted), 1.0, double{kBloomProbesMax}));
    return shape;
  }
  uint64_t words() const { return bits / 32; }
};

/// The filter's header and its words, taken apart and checked.
struct BloomCode {
  BloomHashes hashes;
  Buffer<uint32_t> words;
};

std::optional<BloomCode> parse(ByteSpan bytes) {
  ByteReader reader(bytes);
  const auto seed = reader.get<uint64_t>();
  const auto bits = reader.get<uint32_t>();
  const auto probes = reader.get<uint32_t>();
  if (!seed || !bits || !probes) return std::nullopt;
  if (*bits == 0 || *bits % 32 != 0 || *probes == 0 || *probes > kBloomProbesMax) return std::nullopt;
  if (reader.remaining() != *bits / 8) return std::nullopt;
  BloomCode code{BloomHashes::from(*seed, *bits, *probes), {}};
  code.words.resize(*bits / 32);
  std::memcpy(code.words.data(), bytes.data() + kHeaderBytes, *bits / 8);
  return code;
}

/// Every index of [0, dimension) that the filter knows; stops once there are more than count_max. Memory grows with what is
/// found, to count_max entries and a constant.
void scan_all(const BloomCode& code, uint64_t dimension, uint64_t count_max, IndexBuffer& found) {
  constexpr uint64_t kRoom = kBloomStrip + kBloomScanSlack;
  found.clear();
  uint64_t count = 0;
  for (uint64_t begin = 0; begin < dimension && count <= count_max; begin += kBloomStrip) {
    if (found.capacity() < count + kRoom) found.reserve(std::min(count + count / 2, count_max) + kRoom);
    found.resize(count + kRoom);
    const auto length = static_cast<size_t>(std::min(kBloomStrip, dimension - begin));
    count += bloom_scan(code.hashes, code.words, static_cast<uint32_t>(begin), length, found.data() + count);
  }
  found.resize(count);
}

class BloomIndexCodec final : public IndexCodec {
 public:
  IndexCodecId id() const override { return IndexCodecId::kBloom; }
  std::string_view name() const override { return "bloom"; }
  std::string_view paper() const override { return "DeepReduce 4: Bloom filter, policy P0"; }
  bool lossless() const override { return false; }
  uint64_t dimension_max() const override { return kBloomDimensionMax; }
  bool takes_rate() const override { return true; }

  uint64_t bytes_estimate(uint64_t count, uint64_t, const CodecSpec& spec) const override {
    return kHeaderBytes + BloomShape::optimal(count, spec.bloom_false_positive_rate).bits / 8;
  }

  Status encode(IndexSpan indices, uint64_t dimension, const EncodeOptions& options, ByteBuffer& out,
                IndexBuffer* decoded) const override {
    MILLRACE_CHECK(decoded != nullptr && (indices.empty() || indices.back() < dimension), dimension);
    if (dimension > kBloomDimensionMax) {
      return fail(ErrorCode::kLimitExceeded,
                  "bloom: decoding asks the filter for every index, so dimensions end at 2^28; cut the tensor into "
                  "parts or use "
                  "another index codec (dimension " +
                      std::to_string(dimension) + ")");
    }
    const BloomShape shape = BloomShape::optimal(indices.size(), options.spec.bloom_false_positive_rate);
    if (shape.bits > UINT32_MAX) return fail(ErrorCode::kLimitExceeded, "bloom: the filter would be over 2^32 bits");
    const auto draw = random_words(options.random, options.index_base, kSeedStream);
    const uint64_t seed = draw[0] | uint64_t{draw[1]} << 32;
    BloomCode code{BloomHashes::from(seed, static_cast<uint32_t>(shape.bits), shape.probes), {}};
    code.words.resize(shape.words());
    std::fill(code.words.begin(), code.words.end(), 0);
    for (const uint32_t index : indices) {
      for (uint32_t p = 0; p < shape.probes; ++p) {
        const uint32_t bit = code.hashes.bit(index, p);
        code.words[bit / 32] |= uint32_t{1} << (bit % 32);
      }
    }
    ByteWriter writer(out);
    writer.put(seed);
    writer.put(code.hashes.bits);
    writer.put(code.hashes.probes);
    out.resize(out.size() + shape.bits / 8);
    std::memcpy(out.data() + out.size() - shape.bits / 8, code.words.data(), shape.bits / 8);
    decoded->reserve(indices.size() + indices.size() / 8 + kBloomStrip);
    scan_all(code, dimension, dimension, *decoded);
    return {};
  }

  Status decode(ByteSpan bytes, uint64_t dimension, uint64_t count, IndexBuffer& indices) const override {
    if (dimension > kBloomDimensionMax || count > dimension) {
      return fail(ErrorCode::kMalformed, "bloom: dimension over 2^28, or more indices than the dimension has");
    }
    const auto code = parse(bytes);
    if (!code) return fail(ErrorCode::kMalformed, "bloom: header and filter length disagree");
    scan_all(*code, dimension, count, indices);
    if (indices.size() != count) {
      return fail(ErrorCode::kMalformed, "bloom: the filter does not know exactly the stated number of indices");
    }
    return {};
  }
};

}  // namespace

const IndexCodec& bloom_index_codec() {
  static const BloomIndexCodec codec;
  return codec;
}

}  // namespace millrace
