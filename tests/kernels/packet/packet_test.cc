// The kernels of a window's datagram against the definitions, bit by bit, on every instruction set of the machine.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/base/random.h"
#include "kernels/packet/entry_sum.h"
#include "kernels/packet/rice_gaps.h"
#include "kernels/packet/set_bits.h"
#include "kernels/packet/window_values.h"
#include "tests/support/isa.h"

namespace millrace {
namespace {

using Indices = std::vector<uint16_t>;

/// `count` different indices below `window`, increasing.
Indices some_indices(size_t count, uint32_t window, RandomSequence& random) {
  Indices all(window);
  std::iota(all.begin(), all.end(), uint16_t{0});
  for (size_t i = 0; i < count; ++i) std::swap(all[i], all[i + random.next_below(window - i)]);
  all.resize(count);
  std::sort(all.begin(), all.end());
  return all;
}

/// The code by its definition: a string of bits.
ByteBuffer window_bytes_of(const std::string& bits) {
  ByteBuffer bytes((bits.size() + 7) / 8);
  std::fill(bytes.begin(), bytes.end(), uint8_t{0});
  for (size_t i = 0; i < bits.size(); ++i) {
    if (bits[i] == '1') bytes[i / 8] = static_cast<uint8_t>(bytes[i / 8] | 1 << (i % 8));
  }
  return bytes;
}

ByteBuffer oracle_code(const Indices& indices, uint32_t first, uint32_t shift) {
  std::string lows;
  std::string quotients;
  uint32_t next = first;
  for (const uint16_t index : indices) {
    const uint32_t gap = index - next;
    for (uint32_t b = 0; b < shift; ++b) lows += (gap >> b & 1) != 0 ? '1' : '0';
    quotients += std::string(gap >> shift, '0') + '1';
    next = index + 1u;
  }
  ByteBuffer bytes = window_bytes_of(lows);
  const ByteBuffer tail = window_bytes_of(quotients);
  bytes.insert(bytes.end(), tail.begin(), tail.end());
  return bytes;
}

Indices decoded(const RiceGaps& code, const ByteBuffer& bytes, uint32_t expected_last) {
  Indices out(code.count + kRiceSlack);
  const ByteBuffer exact(bytes.begin(), bytes.end());  // the sanitizer sees a read behind the end
  EXPECT_EQ(rice_gaps_decode(code, exact, out.data()), expected_last);
  out.resize(code.count);
  return out;
}

void expect_encoded(const RiceGaps& code, const Indices& indices, const ByteBuffer& bytes, const std::string& isa) {
  ByteBuffer written(bytes.size() + 16);
  std::fill(written.begin(), written.end(), uint8_t{0xa5});
  ASSERT_EQ(rice_gaps_encode(code, indices, written.data()), bytes.size()) << isa;
  written.resize(bytes.size());
  EXPECT_EQ(written, bytes) << isa << " " << code.shift << " " << code.count;
}

TEST(RiceGaps, ClustersFarApartAreCodedWithAnyParameter) {
  RandomSequence random(RandomKey::from(7));
  for (uint32_t shift = 0; shift <= kRiceShiftMax; ++shift) {
    for (const size_t clusters : {1, 3, 30, 400}) {
      Indices indices;
      uint32_t at = 0;
      for (size_t cluster = 0; cluster < clusters; ++cluster) {
        at += static_cast<uint32_t>(random.next_below(120 << shift / 3));
        for (uint64_t left = random.next_below(40); left > 0; --left) {
          if (at < 65'536) indices.push_back(static_cast<uint16_t>(at));
          at += 1 + static_cast<uint32_t>(random.next_below(3));
        }
      }
      if (indices.empty()) continue;
      const RiceGaps code{indices[0], shift, static_cast<uint32_t>(indices.size())};
      const ByteBuffer bytes = oracle_code(indices, indices[0], shift);
      testing::for_each_isa([&](const std::string& isa) { expect_encoded(code, indices, bytes, isa); });
    }
  }
}

TEST(RiceGaps, EveryParameterAndCountCodesAndDecodesAsDefined) {
  RandomSequence random(RandomKey::from(1));
  for (uint32_t shift = 0; shift <= kRiceShiftMax; ++shift) {
    for (const size_t count : {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 64, 65, 450, 511, 512, 513, 514, 515, 1000, 1537}) {
      const uint32_t window = shift < 4 ? 8000 : 65'536;
      const Indices indices = some_indices(count, window, random);
      const RiceGaps code{indices[0], shift, static_cast<uint32_t>(count)};
      const ByteBuffer bytes = oracle_code(indices, indices[0], shift);
      if (bytes.size() > kRiceBytesMax) continue;
      testing::for_each_isa([&](const std::string& isa) {
        expect_encoded(code, indices, bytes, isa);
        EXPECT_EQ(decoded(code, bytes, indices.back()), indices) << isa << " " << shift << " " << count;
      });
    }
  }
}

TEST(RiceGaps, AFirstIndexThatIsNotFirstIsTheBeginningOfTheFirstGap) {
  const Indices indices = {300, 301, 65'535};
  for (const uint32_t shift : {5u, 12u, 15u}) {
    testing::for_each_isa([&](const std::string& isa) {
      EXPECT_EQ(decoded({7, shift, 3}, oracle_code(indices, 7, shift), 65'535), indices) << isa;
    });
  }
}

TEST(RiceGaps, SumsBeyondTheWindowAreReportedAndDoNotWrap) {
  // 17,000 gaps of 2^15 - 1 with parameter 15.
  const RiceGaps code{65'535, 15, 4'000};
  std::string lows(size_t{15} * code.count, '1');
  ByteBuffer bytes = window_bytes_of(lows);
  const ByteBuffer tail = window_bytes_of(std::string(code.count, '1'));
  bytes.insert(bytes.end(), tail.begin(), tail.end());
  std::vector<uint16_t> out(code.count + kRiceSlack);
  testing::for_each_isa([&](const std::string& isa) {
    EXPECT_EQ(rice_gaps_decode(code, bytes, out.data()), 65'535 + 4'000 * 32'767 + 3'999) << isa;
  });
  const ByteBuffer far = [] {  // one terminator, as far as it can be
    ByteBuffer zeros(kRiceBytesMax);
    std::fill(zeros.begin(), zeros.end(), uint8_t{0});
    zeros.back() = 0x80;
    zeros[0] = zeros[1] = 0xff;  // one low of 15 bits and a padding bit that is set
    return zeros;
  }();
  testing::for_each_isa([&](const std::string& isa) {
    EXPECT_EQ(rice_gaps_decode({65'535, 15, 1}, far, out.data()), std::nullopt) << isa;
    ByteBuffer unpadded = far;
    unpadded[1] = 0x7f;
    const uint32_t quotient = static_cast<uint32_t>(kRiceBytesMax - 2) * 8 - 1;
    EXPECT_EQ(rice_gaps_decode({65'535, 15, 1}, unpadded, out.data()), 65'535 + 32'767 + (quotient << 15)) << isa;
  });
}

TEST(RiceGaps, AnyOtherNumberOfTerminatorsIsRefused) {
  RandomSequence random(RandomKey::from(2));
  const Indices indices = some_indices(100, 10'000, random);
  const ByteBuffer bytes = oracle_code(indices, indices[0], 6);
  std::vector<uint16_t> out(200 + kRiceSlack);
  testing::for_each_isa([&](const std::string& isa) {
    const auto decodes = [&](uint32_t count, ByteSpan code) {
      return rice_gaps_decode({indices[0], 6, count}, code, out.data()).has_value();
    };
    EXPECT_TRUE(decodes(100, bytes)) << isa;
    for (size_t length = 0; length < bytes.size(); ++length) {
      const ByteBuffer cut(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length));
      EXPECT_FALSE(decodes(100, cut)) << isa << " " << length;
    }
    ByteBuffer longer = bytes;
    longer.push_back(0);
    EXPECT_FALSE(decodes(100, longer)) << isa;
    longer.back() = 1;
    EXPECT_FALSE(decodes(100, longer)) << isa;
  });
}

TEST(RiceGaps, TheQuotientSumIsThatOfTheGaps) {
  RandomSequence random(RandomKey::from(3));
  for (const size_t count : {1, 2, 8, 9, 17, 1000, 17'936}) {
    const Indices indices = some_indices(count, 65'536, random);
    for (uint32_t shift = 0; shift <= kRiceShiftMax; ++shift) {
      uint64_t sum = 0;
      for (size_t j = 1; j < count; ++j) sum += (indices[j] - indices[j - 1] - 1u) >> shift;
      const uint32_t other = (shift + 3) % (kRiceShiftMax + 1);
      testing::for_each_isa([&](const std::string& isa) {
        EXPECT_EQ(rice_quotient_sum(indices, shift), sum) << isa;
        EXPECT_EQ(rice_quotient_sums(indices, {other, shift, 0})[1], sum) << isa;
        EXPECT_EQ(rice_quotient_sums(indices, {shift, other, 0})[1], rice_quotient_sum(indices, other)) << isa;
      });
    }
  }
}

TEST(WindowValues, ShortsAndLevelsAreWhatTheirBitsSay) {
  RandomSequence random(RandomKey::from(4));
  for (size_t count = 0; count < 70; ++count) {
    ByteBuffer bytes(2 * count);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.next_u32());
    const ByteSpan all(bytes);
    std::vector<int32_t> shorts(count);
    std::vector<int32_t> eights(count);
    std::vector<int32_t> fours(count);
    testing::for_each_isa([&](const std::string& isa) {
      widen_shorts(all, shorts);
      scale_levels8(all.first(count), (1 << 24) - 1, eights);
      scale_levels4(all.first((count + 1) / 2), (1 << 28) - 1, fours);
      for (size_t i = 0; i < count; ++i) {
        const int32_t word = bytes[2 * i] | bytes[2 * i + 1] << 8;
        EXPECT_EQ(shorts[i], word < 32'768 ? word : word - 65'536) << isa;
        EXPECT_EQ(eights[i], (bytes[i] < 128 ? bytes[i] : bytes[i] - 256) * ((1 << 24) - 1)) << isa;
        const int32_t half = bytes[i / 2] >> (i % 2 * 4) & 15;
        EXPECT_EQ(fours[i], (half < 8 ? half : half - 16) * ((1 << 28) - 1)) << isa;
      }
    });
  }
}

TEST(WindowValues, NarrowedValuesAreTheNearestShorts) {
  RandomSequence random(RandomKey::from(6));
  const std::vector<int32_t> edges = {0, 32'766, 32'767, 32'768, -32'767, -32'768, -32'769, INT32_MAX, INT32_MIN};
  for (size_t count = 0; count < 70; ++count) {
    std::vector<int32_t> values(count);
    for (int32_t& value : values) {
      const uint64_t pick = random.next_below(2 * edges.size());
      value = pick < edges.size() ? edges[pick] : static_cast<int32_t>(random.next_u32()) / 32'768;
    }
    testing::for_each_isa([&](const std::string& isa) {
      std::vector<uint8_t> bytes(2 * count);
      std::vector<int32_t> kept(count);
      std::vector<int32_t> in_place = values;
      narrow_shorts(values, bytes, kept);
      narrow_shorts(in_place, bytes, in_place);
      EXPECT_EQ(in_place, kept);
      for (size_t i = 0; i < count; ++i) {
        const int32_t nearest = std::clamp(values[i], -32'767, 32'767);
        EXPECT_EQ(kept[i], nearest) << isa;
        EXPECT_EQ(bytes[2 * i] | bytes[2 * i + 1] << 8, nearest & 0xffff) << isa;
      }
    });
  }
}

TEST(SetBits, NumbersOfAllSetBitsIncrease) {
  RandomSequence random(RandomKey::from(5));
  for (const size_t words : {0, 1, 2, 7, 682, 1024}) {
    for (const uint32_t part : {0, 1, 3, 30, 64}) {  // of 64 bits that are set
      std::vector<uint64_t> bitmap(words);
      Indices expected;
      for (size_t bit = 0; bit < 64 * words; ++bit) {
        if (random.next_below(64) >= part) continue;
        bitmap[bit / 64] |= uint64_t{1} << (bit % 64);
        expected.push_back(static_cast<uint16_t>(bit));
      }
      testing::for_each_isa([&](const std::string& isa) {
        Indices found(64 * words);
        const size_t count = set_bits(bitmap, found);
        ASSERT_EQ(count, expected.size()) << isa << " " << words << " " << part;
        found.resize(count);
        EXPECT_EQ(found, expected) << isa << " " << words << " " << part;
      });
    }
  }
}

TEST(WindowValues, OneEqualOrFallingNeighbourIsFoundWherever) {
  for (const size_t count : {0, 1, 2, 31, 32, 33, 34, 65, 100}) {
    Indices indices(count);
    for (size_t i = 0; i < count; ++i) indices[i] = static_cast<uint16_t>(65'535 - 2 * (count - i));
    testing::for_each_isa([&](const std::string& isa) {
      EXPECT_TRUE(is_strictly_increasing(indices)) << isa << " " << count;
      for (size_t i = 1; i < count; ++i) {
        Indices wrong = indices;
        wrong[i] = wrong[i - 1];
        EXPECT_FALSE(is_strictly_increasing(wrong)) << isa << " " << count << " " << i;
        wrong[i] = 0;
        EXPECT_FALSE(is_strictly_increasing(wrong)) << isa << " " << count << " " << i;
      }
    });
  }
}

TEST(EntrySum, IsTheSumOfAMapAndLeavesZeros) {
  RandomSequence random(RandomKey::from(11));
  for (const uint32_t window : {64u, 256u, 43'008u, 65'536u}) {
    std::vector<uint64_t> present(window / 64);
    std::vector<uint16_t> ranks(window / 64);
    for (const size_t lists : {0, 1, 2, 5}) {
      Indices indices;
      std::vector<int32_t> values;
      std::map<uint16_t, uint32_t> expected;
      for (size_t list = 0; list < lists; ++list) {
        for (const uint16_t index : some_indices(list == 0 ? window : window / 10, window, random)) {
          indices.push_back(index);
          values.push_back(static_cast<int32_t>(random.next_u32()));
          expected[index] += static_cast<uint32_t>(values.back());
        }
      }
      testing::for_each_isa([&](const std::string& isa) {
        Indices out_indices(window, 0xa5a5);
        std::vector<int32_t> out_values(window, -1);
        const uint32_t count = sum_entries(indices, values, {present, ranks, out_indices, out_values});
        ASSERT_EQ(count, expected.size()) << isa << " " << window;
        size_t at = 0;
        for (const auto& [index, sum] : expected) {
          ASSERT_EQ(out_indices[at], index) << isa << " " << window;
          ASSERT_EQ(static_cast<uint32_t>(out_values[at++]), sum) << isa << " " << index;
        }
        EXPECT_EQ(std::ranges::count(present, 0u), static_cast<std::ptrdiff_t>(present.size())) << isa;
      });
    }
  }
}

TEST(EntrySum, MagnitudesAreThoseOfEachNumber) {
  constexpr int32_t kLowest = std::numeric_limits<int32_t>::min();
  RandomSequence random(RandomKey::from(12));
  for (size_t count = 0; count < 70; ++count) {
    std::vector<int32_t> values(count);
    for (int32_t& value : values) value = static_cast<int32_t>(random.next_u32()) >> random.next_below(31);
    if (count > 40) values[random.next_below(count)] = kLowest;
    uint32_t all = 0;
    uint32_t most = 0;
    for (const int32_t value : values) {
      const auto size = static_cast<uint32_t>(std::abs(int64_t{value}));
      all |= size;
      most = std::max(most, size);
    }
    testing::for_each_isa([&](const std::string& isa) {
      EXPECT_EQ(magnitudes_or(values), all) << isa << " " << count;
      EXPECT_EQ(largest_magnitude(values), most) << isa << " " << count;
    });
  }
}

TEST(EntrySum, EachIsAddedToItsOwnAndWraps) {
  RandomSequence random(RandomKey::from(13));
  for (size_t count = 0; count < 70; ++count) {
    std::vector<int32_t> before(count);
    std::vector<int32_t> values(count);
    for (int32_t& value : before) value = static_cast<int32_t>(random.next_u32());
    for (int32_t& value : values) value = static_cast<int32_t>(random.next_u32());
    testing::for_each_isa([&](const std::string& isa) {
      std::vector<int32_t> sums = before;
      add_values(sums, values);
      for (size_t at = 0; at < count; ++at) {
        const auto sum = static_cast<int32_t>(static_cast<uint32_t>(before[at]) + static_cast<uint32_t>(values[at]));
        ASSERT_EQ(sums[at], sum) << isa << " " << count << " " << at;
      }
    });
  }
}

}  // namespace
}  // namespace millrace
