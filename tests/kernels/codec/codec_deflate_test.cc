#include <gtest/gtest.h>
#include <zlib.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kernels/base/bytes.h"
#include "kernels/codec/codec_list.h"
#include "tests/support/oracles/select_oracle.h"
#include "tests/support/value_codec_cases.h"

namespace millrace {
namespace {

using testing::code_values;
using testing::decode_values;
using testing::Pattern;
using testing::values_of;

ByteBuffer deflate_code_of(const std::vector<float>& values) {
  return code_values(deflate_value_codec(), {.value = deflate_value_codec().id()}, values).bytes;
}

/// Returns the `count` bytes that zlib decodes from a raw Deflate code; empty: the code does not end there.
std::vector<uint8_t> inflated(ByteSpan code, size_t count) {
  std::vector<uint8_t> in(code.begin(), code.end());
  std::vector<uint8_t> out(count);
  z_stream stream{};
  EXPECT_EQ(inflateInit2(&stream, -15), Z_OK);
  stream.next_in = in.data();
  stream.avail_in = static_cast<uInt>(in.size());
  stream.next_out = out.data();
  stream.avail_out = static_cast<uInt>(out.size());
  const int end = inflate(&stream, Z_FINISH);
  const bool whole = end == Z_STREAM_END && stream.avail_in == 0 && stream.avail_out == 0;
  inflateEnd(&stream);
  return whole ? out : std::vector<uint8_t>();
}

void expect_planes(const std::vector<float>& values) {
  const ByteBuffer bytes = deflate_code_of(values);
  ByteReader reader(bytes);
  const uint32_t flags = *reader.get<uint8_t>();
  std::vector<size_t> lengths(sizeof(float), values.size());
  for (size_t plane = 0; plane < sizeof(float); ++plane) {
    if ((flags >> plane & 1) != 0) lengths[plane] = *reader.get<uint32_t>();
  }
  for (size_t plane = 0; plane < sizeof(float); ++plane) {
    const auto code = reader.get_bytes(lengths[plane]);
    ASSERT_TRUE(code);
    std::vector<uint8_t> wanted;
    for (const float value : values) {
      uint8_t raw[sizeof(float)];
      std::memcpy(raw, &value, sizeof(float));
      wanted.push_back(raw[plane]);
    }
    const bool deflated = (flags >> plane & 1) != 0;
    EXPECT_EQ(deflated ? inflated(*code, values.size()) : std::vector<uint8_t>(code->begin(), code->end()), wanted);
  }
  EXPECT_EQ(reader.remaining(), 0u);
}

TEST(Deflate, ThePlanesAreTheValuesBytesToAnotherLibraryToo) {
  for (const Pattern pattern : testing::kPatterns) {
    for (const size_t n : {0, 1, 2, 65, 3000}) {
      SCOPED_TRACE(testing::name_of(pattern, n, 0));
      expect_planes(values_of(pattern, n, 2));
    }
  }
}

TEST(Deflate, PlanesOfNoiseStayAsTheyAreAndTheOthersShrink) {
  const auto values = values_of(Pattern::kGaussian, 10'000, 2);
  const ByteBuffer bytes = deflate_code_of(values);
  EXPECT_EQ(bytes[0], 0x08);  // all but sign and upper exponent is noise
  EXPECT_LT(8 * bytes.size(), 28 * values.size());
  EXPECT_LE(deflate_code_of(std::vector<float>(10'000, 1.5F)).size(), 4u * 40);
}

TEST(Deflate, EveryBitPatternIsKept) {
  std::vector<float> values;
  for (uint32_t bits = 0; bits < 70'000; ++bits) values.push_back(std::bit_cast<float>(bits * 0x9E3779B9u));
  values.push_back(std::numeric_limits<float>::quiet_NaN());
  values.push_back(-std::numeric_limits<float>::infinity());
  const ByteBuffer bytes = deflate_code_of(values);
  EXPECT_LE(bytes.size(), 1 + 4 * values.size());
  std::vector<float> received(values.size());
  ASSERT_TRUE(decode_values(deflate_value_codec(), bytes, received));
  EXPECT_TRUE(testing::same_value_bits(received, values));
}

/// A code whose highest plane is these bytes, the others zeros.
ByteBuffer with_high_plane(const std::vector<uint8_t>& plane, uint32_t said_length, size_t count) {
  ByteBuffer bytes;
  ByteWriter writer(bytes);
  writer.put(uint8_t{8});
  writer.put(said_length);
  writer.put_bytes(std::vector<uint8_t>(3 * count));
  writer.put_bytes(plane);
  return bytes;
}

TEST(Deflate, APlaneThatInflatesToMoreOrLessOrEndsEarlyIsMalformed) {
  const auto good = deflate_code_of(std::vector<float>(1000, 1.5F));
  std::vector<uint8_t> plane(good.end() - 8, good.end());
  // The last plane's own length is behind the flags and the lengths of those before.
  ByteReader reader(ByteSpan(good).subspan(1 + 3 * 4));
  const uint32_t length = *reader.get<uint32_t>();
  plane.assign(good.end() - length, good.end());
  const auto decodes = [](const ByteBuffer& bytes, size_t count) {
    std::vector<float> values(count);
    return decode_values(deflate_value_codec(), bytes, values).has_value();
  };
  EXPECT_TRUE(decodes(with_high_plane(plane, length, 1000), 1000));
  EXPECT_FALSE(decodes(with_high_plane(plane, length, 999), 999));
  EXPECT_FALSE(decodes(with_high_plane(plane, length, 1001), 1001));
  std::vector<uint8_t> longer = plane;
  longer.push_back(0);
  EXPECT_FALSE(decodes(with_high_plane(longer, length + 1, 1000), 1000));
  // A count that Deflate cannot express in this number of bytes is refused before memory is taken.
  const auto bomb = with_high_plane(plane, length, 40'000);
  EXPECT_FALSE(deflate_value_codec().check(bomb, 40'000));
  EXPECT_TRUE(deflate_value_codec().check(with_high_plane(plane, length, 1001), 1001));
}

}  // namespace
}  // namespace millrace
