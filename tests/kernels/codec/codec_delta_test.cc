// SketchML's and SKCompress's codes of keys: bytes against the definitions in protocol/wire/index_codecs.md, and their
// sizes.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/codec/bits/huffman_code.h"
#include "kernels/codec/codec.h"
#include "tests/support/index_sets.h"
#include "tests/support/oracles/huffman_oracle.h"

namespace millrace {
namespace {

using testing::HuffmanOracle;
using testing::low_bits;
using testing::packed;

constexpr IndexCodecId kBinary{21};
constexpr IndexCodecId kHuffman{22};

std::vector<uint8_t> encode_delta(IndexCodecId id, IndexSpan indices) {
  ByteBuffer bytes;
  EXPECT_TRUE(find_index_codec(id)->encode(indices, uint64_t{1} << 32, {}, bytes, nullptr));
  return {bytes.begin(), bytes.end()};
}

Status decode_delta(IndexCodecId id, const std::vector<uint8_t>& bytes, uint64_t dimension, uint64_t count) {
  IndexBuffer indices;
  return find_index_codec(id)->decode(bytes, dimension, count, indices);
}

std::vector<uint8_t> binary_oracle(IndexSpan indices) {
  std::string flags;
  std::vector<uint8_t> bytes;
  uint32_t last = 0;
  for (const uint32_t index : indices) {
    const uint32_t delta = index - last;
    const uint32_t length = delta < 1u << 8 ? 1 : delta < 1u << 16 ? 2 : delta < 1u << 24 ? 3 : 4;
    flags += low_bits(length - 1, 2);
    for (uint32_t byte = 0; byte < length; ++byte) bytes.push_back(static_cast<uint8_t>(delta >> (8 * byte)));
    last = index;
  }
  auto code = packed(flags);
  code.insert(code.end(), bytes.begin(), bytes.end());
  return code;
}

std::vector<uint8_t> huffman_oracle(IndexSpan indices) {
  if (indices.empty()) return {};
  std::vector<uint64_t> counts;
  std::vector<std::pair<uint64_t, uint64_t>> split;  // prefix, value
  uint64_t next = 0;
  for (const uint32_t index : indices) {
    const uint64_t v = index - next + 1;
    uint64_t n = 0;
    while (v >> (n + 1) != 0) ++n;
    if (n >= counts.size()) counts.resize(n + 1, 0);
    ++counts[n];
    split.emplace_back(n, v);
    next = uint64_t{index} + 1;
  }
  const HuffmanOracle huffman(counts);
  std::vector<uint8_t> code = {static_cast<uint8_t>(counts.size())};
  std::string lengths;
  for (const uint32_t length : huffman.lengths) lengths += low_bits(length, 6);
  std::string bits;
  for (const auto& [n, v] : split) bits += huffman.codes[n] + low_bits(v, n);
  for (const std::string& part : {lengths, bits}) {
    const auto bytes = packed(part);
    code.insert(code.end(), bytes.begin(), bytes.end());
  }
  return code;
}

std::vector<IndexBuffer> sets() {
  std::vector<IndexBuffer> sets = {{},
                                   {0},
                                   {UINT32_MAX},
                                   {0, UINT32_MAX},
                                   {7},
                                   {0, 1, 2, 3, 4},
                                   {255, 511, 767, 66'302, 66'303},
                                   {256, 65'791, 131'327, 16'908'543, 33'685'759}};
  for (const double density : {1e-8, 1e-6, 1e-4, 0.01, 0.3}) {
    for (const uint64_t dimension : {uint64_t{1} << 16, uint64_t{1} << 32}) {
      if (static_cast<double>(dimension) * density < 50'000) {
        sets.push_back(testing::uniform_indices(dimension, density, 3));
      }
    }
  }
  sets.push_back(testing::clustered_indices(1 << 24, 20'000, 3));
  return sets;
}

TEST(DeltaCodes, BytesAreThoseOfTheDefinitions) {
  for (const IndexBuffer& indices : sets()) {
    SCOPED_TRACE("count " + std::to_string(indices.size()));
    EXPECT_EQ(encode_delta(kBinary, indices), binary_oracle(indices));
    EXPECT_EQ(encode_delta(kHuffman, indices), huffman_oracle(indices));
  }
}

TEST(DeltaCodes, GoldenBytes) {
  EXPECT_EQ(encode_delta(kBinary, IndexBuffer{3, 4, 300}), (std::vector<uint8_t>{0x10, 3, 1, 0x28, 0x01}));
  // v = 4, 1, 1: prefix 2 once, 0 twice. Lengths 1, 0, 1: codes 0 and 1. Bits 1 00, 0, 0.
  EXPECT_EQ(encode_delta(kHuffman, IndexBuffer{3, 4, 5}), (std::vector<uint8_t>{3, 0x01, 0x10, 0x00, 0x01}));
}

TEST(DeltaCodes, UniformKeys_SizesAsEstimatedAndPrefixNearTheEntropy) {
  for (const double density : {1e-4, 1e-3, 0.01, 0.1}) {
    const uint64_t dimension = 1 << 24;
    const IndexBuffer indices = testing::uniform_indices(dimension, density, 5);
    const auto count = static_cast<double>(indices.size());
    const double entropy =
        (-std::log2(density) * density - std::log2(1 - density) * (1 - density)) / density;  // bits a key
    for (const IndexCodecId id : {kBinary, kHuffman}) {
      const auto bytes = static_cast<double>(encode_delta(id, indices).size());
      const auto estimate = static_cast<double>(find_index_codec(id)->bytes_estimate(indices.size(), dimension, {}));
      EXPECT_NEAR(bytes / estimate, 1, 0.06) << static_cast<int>(id) << ' ' << density;
      if (id == kHuffman) {
        EXPECT_LT(bytes * 8 / count, 1.1 * entropy);
      } else {
        EXPECT_GE(bytes * 8 / count, 10);  // the paper's 1.25 bytes at best
      }
    }
  }
}

TEST(DeltaCodes, WhatCannotBeIsMalformed) {
  const auto binary = encode_delta(kBinary, IndexBuffer{3, 4, 300});
  EXPECT_TRUE(decode_delta(kBinary, binary, 301, 3));
  EXPECT_FALSE(decode_delta(kBinary, binary, 300, 3)) << "past the dimension";
  EXPECT_FALSE(decode_delta(kBinary, {0x50, 3, 1, 0x28, 0x01}, 301, 3)) << "padding of the flags";
  EXPECT_FALSE(decode_delta(kBinary, {0x10, 3, 0, 0x28, 0x01}, 301, 3)) << "twice the same";
  EXPECT_TRUE(decode_delta(kBinary, {0x01, 0, 0}, 301, 1)) << "longer than need be";
  EXPECT_FALSE(decode_delta(kBinary, {0x01, 0}, 301, 1));
  const std::vector<uint8_t> huffman = encode_delta(kHuffman, IndexBuffer{3, 4, 5});
  EXPECT_TRUE(decode_delta(kHuffman, huffman, 6, 3));
  EXPECT_FALSE(decode_delta(kHuffman, huffman, 5, 3));
  for (const std::vector<uint8_t>& bad :
       std::vector<std::vector<uint8_t>>{{0, 0x01},                          // no prefixes
                                         {34, 0x01, 0x10, 0x00, 0x01},       // too many
                                         {3, 0x01, 0x00, 0x00, 0x01},        // the last one has no code
                                         {3, 0x41, 0x10, 0x00, 0x01},        // bits over: lengths 1, 1, 1
                                         {3, 0x02, 0x20, 0x00, 0x01},        // bits left over: lengths 2, 0, 2
                                         {3, 0x01, 0x10, 0x04, 0x01},        // padding of the lengths
                                         {3, 0x01, 0x10, 0x00, 0x01, 0x00},  // a byte left over
                                         {3, 0x01, 0x10, 0x00, 0x21}}) {     // a bit left over
    EXPECT_FALSE(decode_delta(kHuffman, bad, 6, 3)) << static_cast<int>(bad[1]);
  }
}

TEST(HuffmanLengths, HoldWhereTheyAreACodeThatLeavesNothingOver) {
  using Lengths = std::vector<uint8_t>;
  for (const Lengths& good : {Lengths{1}, Lengths{0, 1}, Lengths{1, 1}, Lengths{2, 1, 2}, Lengths{0, 2, 2, 2, 2}}) {
    EXPECT_TRUE(huffman_lengths_hold(good));
  }
  for (const Lengths& bad : {Lengths{}, Lengths{0}, Lengths{2}, Lengths{1, 1, 1}, Lengths{1, 2}, Lengths{33, 1}}) {
    EXPECT_FALSE(huffman_lengths_hold(bad));
  }
  // Fibonacci weights give the longest codes: 33 symbols, 32 bits.
  std::vector<uint64_t> counts = {1, 1};
  while (counts.size() < 33) counts.push_back(counts[counts.size() - 1] + counts[counts.size() - 2]);
  Lengths lengths(counts.size());
  huffman_lengths(counts, lengths);
  EXPECT_EQ(*std::ranges::max_element(lengths), 32);
  EXPECT_TRUE(huffman_lengths_hold(lengths));
  const HuffmanCode code(lengths);
  ByteBuffer bytes;
  BitWriter writer(bytes);
  for (uint32_t symbol = 0; symbol < 33; ++symbol) code.put(writer, symbol);
  writer.finish();
  BitReader reader(bytes);
  const HuffmanTable table(code);
  for (uint32_t symbol = 0; symbol < 33; ++symbol) ASSERT_EQ(table.take(reader), symbol);
  EXPECT_TRUE(reader.at_end());
}

}  // namespace
}  // namespace millrace
