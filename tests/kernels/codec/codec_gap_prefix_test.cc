// Elias gamma and delta, Rice and Golomb codes of gaps: against bit strings written out by the definitions, and by
// their lengths.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>
#include <functional>
#include <string>

#include "kernels/codec/bits/bit_stream.h"
#include "kernels/codec/codec_list.h"
#include "kernels/codec/entropy_bound.h"
#include "tests/support/index_sets.h"

namespace millrace {
namespace {

std::vector<uint64_t> gaps_of(IndexSpan indices) {
  std::vector<uint64_t> gaps;
  uint64_t next = 0;
  for (const uint32_t index : indices) {
    gaps.push_back(index - next);
    next = uint64_t{index} + 1;
  }
  return gaps;
}

/// The lowest `count` bits as text, the lowest first.
std::string bits_of(uint64_t value, uint64_t count) {
  std::string text;
  for (uint64_t i = 0; i < count; ++i) text += (value >> i & 1) != 0 ? '1' : '0';
  return text;
}

uint64_t floor_log2(uint64_t value) {
  uint64_t n = 0;
  while (value >> (n + 1) != 0) ++n;
  return n;
}

std::string gamma_text(uint64_t value) {
  const uint64_t n = floor_log2(value);
  return std::string(n, '0') + '1' + bits_of(value, n);
}

std::string delta_text(uint64_t value) {
  const uint64_t n = floor_log2(value);
  return gamma_text(n + 1) + bits_of(value, n);
}

std::string rice_text(uint64_t gap, uint64_t shift) {
  return std::string(gap >> shift, '0') + '1' + bits_of(gap, shift);
}

/// Truncated binary as it is defined: of ceil(log2 m) bits, the highest first there; here the one that only longer
/// words have is the last.
std::string golomb_text(uint64_t gap, uint64_t divisor) {
  uint64_t bits = 0;
  while ((uint64_t{1} << bits) < divisor) ++bits;
  const uint64_t shorter = (uint64_t{1} << bits) - divisor;
  const uint64_t remainder = gap % divisor;
  std::string text = std::string(gap / divisor, '0') + '1';
  if (bits == 0) return text;
  if (remainder < shorter) return text + bits_of(remainder, bits - 1);
  return text + bits_of((remainder + shorter) / 2, bits - 1) + bits_of((remainder + shorter) % 2, 1);
}

ByteBuffer gap_bits_bytes_of(const std::string& bits, ByteBuffer header) {
  for (size_t i = 0; i < bits.size(); i += 8) {
    uint8_t byte = 0;
    for (size_t b = 0; b < 8 && i + b < bits.size(); ++b) byte = static_cast<uint8_t>(byte | (bits[i + b] - '0') << b);
    header.push_back(byte);
  }
  return header;
}

ByteBuffer gap_bits_encoded(const IndexCodec& codec, IndexSpan indices, uint64_t dimension) {
  ByteBuffer bytes;
  EXPECT_TRUE(codec.encode(indices, dimension, {}, bytes, nullptr));
  return bytes;
}

/// The code by the definitions, with the parameter that the encoder wrote.
ByteBuffer reference(const IndexCodec& codec, IndexSpan indices, const ByteBuffer& written) {
  if (indices.empty()) return {};
  std::string bits;
  ByteBuffer header;
  uint64_t parameter = 0;
  if (codec.name() == "rice") {
    header.assign(written.begin(), written.begin() + 1);
    parameter = header[0];
  } else if (codec.name() == "golomb") {
    header.assign(written.begin(), written.begin() + 4);
    for (size_t i = 0; i < 4; ++i) parameter |= uint64_t{header[i]} << (8 * i);
  }
  for (const uint64_t gap : gaps_of(indices)) {
    if (codec.name() == "elias_gamma") bits += gamma_text(gap + 1);
    if (codec.name() == "elias_delta") bits += delta_text(gap + 1);
    if (codec.name() == "rice") bits += rice_text(gap, parameter);
    if (codec.name() == "golomb") bits += golomb_text(gap, parameter);
  }
  return gap_bits_bytes_of(bits, std::move(header));
}

class GapBits : public ::testing::TestWithParam<const IndexCodec*> {};

TEST_P(GapBits, BytesAreThoseOfTheDefinition) {
  std::vector<testing::IndexSet> sets = testing::awkward_index_sets(uint64_t{1} << 32);
  for (auto& set : testing::random_index_sets(20'000, 5)) sets.push_back(std::move(set));
  for (const testing::IndexSet& set : sets) {
    const ByteBuffer bytes = gap_bits_encoded(*GetParam(), set.indices, set.dimension);
    EXPECT_EQ(bytes, reference(*GetParam(), set.indices, bytes)) << set.name;
  }
}

TEST_P(GapBits, AnySetSurvivesARoundTrip) {
  const auto holds = [](const std::vector<uint32_t>& gaps, uint8_t spread) {
    IndexBuffer indices;
    uint64_t next = 0;
    for (const uint32_t gap : gaps) {
      next += gap >> (spread % 32);
      if (next >= kDimensionMax) break;
      indices.push_back(static_cast<uint32_t>(next++));
    }
    const uint64_t dimension = indices.empty() ? 1 : uint64_t{indices.back()} + 1;
    const ByteBuffer bytes = gap_bits_encoded(*GetParam(), indices, dimension);
    IndexBuffer decoded;
    RC_ASSERT(GetParam()->decode(bytes, dimension, indices.size(), decoded).has_value());
    RC_ASSERT(decoded == indices);
    RC_ASSERT(bytes == reference(*GetParam(), indices, bytes));
  };
  EXPECT_TRUE(rc::check("any strictly increasing set survives a round trip", holds));
}

TEST_P(GapBits, TheEstimateIsNearTheSizeOfUniformIndices) {
  const uint64_t n = 1 << 22;
  for (const double density : {0.0001, 0.001, 0.01, 0.1}) {
    const IndexBuffer indices = testing::uniform_indices(n, density, 3);
    const auto bytes = static_cast<double>(gap_bits_encoded(*GetParam(), indices, n).size());
    const auto estimate = static_cast<double>(GetParam()->bytes_estimate(indices.size(), n, {}));
    EXPECT_GE(estimate, 0.99 * bytes) << density;
    EXPECT_LE(estimate, 1.5 * bytes + 16) << density;
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, GapBits,
                         ::testing::Values(&elias_gamma_index_codec(), &elias_delta_index_codec(), &rice_index_codec(),
                                           &golomb_index_codec()),
                         [](const auto& param) { return std::string(param.param->name()); });

TEST(EliasCodes, ShortOnesAreAsInThePaper) {
  // 1, 2, 4, 8 and 17: gaps 0, 1, 3, 7, 16. Lengths 1, 3, 5, 7, 9 (gamma); 1, 4, 5, 8, 9 (delta).
  const IndexBuffer indices{0, 2, 6, 14, 31};
  EXPECT_EQ(gamma_text(17),
            "0000110"
            "00");
  EXPECT_EQ(gap_bits_encoded(elias_gamma_index_codec(), indices, 32).size(), (1 + 3 + 5 + 7 + 9 + 7) / 8u);
  EXPECT_EQ(delta_text(17).size(), 9u);
  EXPECT_EQ(gap_bits_encoded(elias_delta_index_codec(), indices, 32).size(), (1 + 4 + 5 + 8 + 9 + 7) / 8u);
}

TEST(RiceCode, TakesTheBestParameter) {
  for (const testing::IndexSet& set : testing::random_index_sets(50'000, 9)) {
    const ByteBuffer bytes = gap_bits_encoded(rice_index_codec(), set.indices, set.dimension);
    uint64_t best = ~uint64_t{0};
    for (uint32_t shift = 0; shift < 32; ++shift) {
      uint64_t bits = 0;
      for (const uint64_t gap : gaps_of(set.indices)) bits += (gap >> shift) + 1 + shift;
      best = std::min(best, bits);
    }
    EXPECT_EQ(bytes.size(), 1 + (best + 7) / 8) << set.name;
  }
}

TEST(GolombCode, StaysWithinTwoPercentOfTheEntropyOfUniformIndices) {
  const uint64_t n = 1 << 24;
  for (const double density : {0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1}) {
    const IndexBuffer indices = testing::uniform_indices(n, density, 17);
    const auto k = static_cast<double>(indices.size());
    const double bits = 8.0 * static_cast<double>(gap_bits_encoded(golomb_index_codec(), indices, n).size()) / k;
    EXPECT_LE(bits, 1.02 * entropy_bits_per_index(n, indices.size())) << density;
  }
}

TEST(GapBits, HostileNumbersThatWouldWrapAreErrors) {
  IndexBuffer decoded;
  const auto refused = [&](const IndexCodec& codec, const std::string& bits, ByteBuffer header, uint64_t count) {
    const ByteBuffer bytes = gap_bits_bytes_of(bits, std::move(header));
    const Status status = codec.decode(bytes, uint64_t{1} << 32, count, decoded);
    EXPECT_FALSE(status) << codec.name();
    EXPECT_EQ(status.error().code, ErrorCode::kMalformed);
  };
  // What stands for 2^33 - 1, 2^32 and nothing at all, behind an index that a wrapped sum would step back to.
  refused(elias_gamma_index_codec(), gamma_text(9) + std::string(32, '0') + '1' + std::string(32, '1'), {}, 2);
  refused(elias_gamma_index_codec(), gamma_text(9) + gamma_text((uint64_t{1} << 32) + 1), {}, 2);
  refused(elias_gamma_index_codec(), gamma_text(9) + std::string(70, '0') + '1', {}, 2);
  refused(elias_delta_index_codec(), delta_text(9) + gamma_text(34) + std::string(33, '1'), {}, 2);
  refused(elias_delta_index_codec(), delta_text(9) + std::string(6, '0') + '1' + std::string(60, '1'), {}, 2);
  refused(rice_index_codec(), rice_text(9, 31) + std::string(3, '0') + '1' + std::string(31, '1'), {31}, 2);
  refused(golomb_index_codec(), golomb_text(9, 0xffffffff) + "01" + std::string(32, '1'), {255, 255, 255, 255}, 2);
  refused(rice_index_codec(), "1", {32}, 1);
  refused(golomb_index_codec(), "1", {0, 0, 0, 0}, 1);
  refused(golomb_index_codec(), "1", {1, 0}, 1);
}

TEST(BitStream, TheReaderReturnsTheWrittenFieldsOfEveryLength) {
  RandomSequence random(RandomKey::from(3));
  std::vector<std::pair<uint64_t, uint32_t>> fields;
  for (uint32_t i = 0; i < 3000; ++i) {
    const auto count = static_cast<uint32_t>(random.next_below(57));
    fields.emplace_back(random.next_u64() & ((uint64_t{1} << count) - 1), count);
  }
  ByteBuffer bytes{7};
  BitWriter writer(bytes);
  for (const auto& [bits, count] : fields) {
    writer.put(bits, count);
    writer.put_unary(count * 5);
  }
  writer.finish();
  EXPECT_EQ(bytes[0], 7);
  BitReader reader(ByteSpan(bytes).subspan(1));
  for (const auto& [bits, count] : fields) {
    ASSERT_EQ(reader.take(count), bits);
    ASSERT_EQ(reader.take_unary(1000), count * 5u);
  }
  EXPECT_TRUE(reader.at_end());
  EXPECT_GT(reader.take_unary(1000), 1000u);
  EXPECT_TRUE(reader.overrun() || !reader.at_end());
}

}  // namespace
}  // namespace millrace
