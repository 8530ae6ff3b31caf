#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/random.h"
#include "tests/support/isa.h"

namespace millrace {
namespace {

TEST(RandomFill, IsTheLoopOverRandomWordsFromAnyWordOn) {
  const RandomKey key{0x12345678, 0x9ABCDEF0};
  testing::for_each_isa([&](const std::string& isa) {
    SCOPED_TRACE(isa);
    for (const uint64_t first : {uint64_t{0}, uint64_t{1}, uint64_t{2}, uint64_t{3}, uint64_t{4}, uint64_t{1001},
                                 (uint64_t{1} << 34) - 7, (uint64_t{1} << 40) + 2}) {
      for (const uint64_t stream : {uint64_t{0}, uint64_t{0xFEDCBA9876543210}}) {
        for (size_t count = 0; count < 150; count += count < 40 ? 1 : 11) {
          std::vector<uint32_t> words(count + 1, 0xAAAAAAAA);
          random_fill(key, first, std::span(words).first(count), stream);
          for (size_t i = 0; i < count; ++i) {
            ASSERT_EQ(words[i], random_words(key, (first + i) / 4, stream)[(first + i) % 4]) << first << " + " << i;
          }
          ASSERT_EQ(words[count], 0xAAAAAAAA);
        }
      }
    }
  });
}

TEST(RandomFill, IsThePublishedPhilox) {
  // Random123's known answers for philox4x32-10: all zeros.
  std::vector<uint32_t> words(4);
  random_fill({0, 0}, 0, words);
  EXPECT_EQ(words, (std::vector<uint32_t>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
}

}  // namespace
}  // namespace millrace
