// The code computes the worked examples of protocol/wire/random.md, xxh3.md and bloom_codecs.md.
#include <gtest/gtest.h>

#include "kernels/base/hash.h"
#include "kernels/base/random.h"
#include "kernels/codec/bloom/bloom_scan.h"
#include "kernels/codec/codec_list.h"
#include "tests/protocol/document.h"

namespace millrace::protocol {
namespace {

constexpr uint64_t kExampleSeed = 0x0123456789abcdef;

uint64_t of_hex(const std::string& digits) { return std::stoull(digits, nullptr, 16); }

TEST(WireRandomDocument, TheWorkedWordsAreThoseOfTheGenerator) {
  for (const auto& line : documented_words("words random-example")) {
    ASSERT_EQ(line.size(), 6u);
    const auto words = random_words(RandomKey::from(kExampleSeed), of_hex(line[0]), of_hex(line[1]));
    for (size_t i = 0; i < words.size(); ++i) EXPECT_EQ(words[i], of_hex(line[2 + i])) << line[0] << ' ' << line[1];
  }
}

TEST(WireRandomDocument, TheSequenceDrawsTheDocumentedNumbers) {
  RandomSequence numbers(RandomKey::from(kExampleSeed), 0x7031);
  EXPECT_EQ(numbers.next_u64(), 0x82531549dd077ce8u);
  EXPECT_EQ(numbers.next_u64(), 0xe2ac2b5dba0a8d04u);
  RandomSequence draws(RandomKey::from(kExampleSeed), 0x7031);
  for (const auto& [bound, draw] : {std::pair<uint64_t, uint64_t>{10, 5}, {9, 7}, {8, 3}, {1000, 155}}) {
    EXPECT_EQ(draws.next_below(bound), draw) << bound;
  }
}

TEST(WireRandomDocument, TheProbesAreThoseOfTheText) {
  const auto hashes = BloomHashes::from(kExampleSeed, 32, 3);
  EXPECT_EQ(hashes.offsets[0], 0xb850222eu);
  EXPECT_EQ(bloom_mix(3 + hashes.offsets[0]), 0x37fbf15cu);
  const std::array<uint32_t, 3> of_3 = {6, 0, 26};
  const std::array<uint32_t, 3> of_17 = {20, 18, 9};
  for (uint32_t p = 0; p < 3; ++p) {
    EXPECT_EQ(hashes.bit(3, p), of_3[p]) << p;
    EXPECT_EQ(hashes.bit(17, p), of_17[p]) << p;
  }
}

TEST(WireRandomDocument, TheWorkedFilterDecodesToItsIndices) {
  IndexBuffer indices;
  const Status decoded = bloom_p0_index_codec().decode(documented_bytes("bloom-example"), 32, 2, indices);
  ASSERT_TRUE(decoded) << decoded.error().message;
  EXPECT_EQ(indices, (IndexBuffer{3, 17}));
}

TEST(WireRandomDocument, TheKnownHashesAreThoseOfTheLibrary) {
  for (const auto& line : documented_words("hashes hash-example")) {
    ASSERT_EQ(line.size(), 3u);
    ByteBuffer input(std::stoull(line[0]));
    for (size_t i = 0; i < input.size(); ++i) input[i] = static_cast<uint8_t>(i % 251);
    EXPECT_EQ(hash64(ByteSpan(input)), of_hex(line[1])) << line[0];
    EXPECT_EQ(hash64(ByteSpan(input), kExampleSeed), of_hex(line[2])) << line[0];
  }
}

}  // namespace
}  // namespace millrace::protocol
