#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "kernels/codec/bloom/bloom_scan.h"
#include "kernels/codec/codec.h"

/// Codes of Bloom filters: made, and read bit by bit.
namespace millrace::testing {

inline EncodeOptions bloom_options(double rate, uint64_t seed = 5) {
  EncodeOptions options;
  options.spec.bloom_false_positive_rate = rate;
  options.random = RandomKey::from(seed);
  return options;
}

struct BloomCode {
  ByteBuffer bytes;
  IndexBuffer decoded;  ///< as the encoder says
};

inline BloomCode bloom_code(const IndexCodec& codec, IndexSpan indices, uint64_t dimension,
                            const EncodeOptions& options) {
  BloomCode code;
  const Status status = codec.encode(indices, dimension, options, code.bytes, &code.decoded);
  EXPECT_TRUE(status) << status.error().message;
  return code;
}

/// The little-endian number at byte `at`.
template <typename T>
T field(const ByteBuffer& bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

/// A code's filter: its hash functions, and its answer for every index, one bit at a time.
struct BloomOracle {
  uint64_t seed;
  BloomHashes hashes;
  IndexBuffer positives;

  /// `shape_at`: where its bits u32, probes u32 and the filter are, behind the seed and what else the codec says.
  BloomOracle(const ByteBuffer& bytes, uint64_t dimension, size_t shape_at)
      : seed(field<uint64_t>(bytes, 0)),
        hashes(BloomHashes::from(seed, field<uint32_t>(bytes, shape_at), field<uint32_t>(bytes, shape_at + 4))) {
    for (uint32_t index = 0; index < dimension; ++index) {
      bool all = true;
      for (uint32_t p = 0; p < hashes.probes; ++p) {
        const uint32_t bit = hashes.bit(index, p);
        all = all && (bytes[shape_at + 8 + bit / 8] >> (bit % 8) & 1) != 0;
      }
      if (all) positives.push_back(index);
    }
  }
};

}  // namespace millrace::testing
