// The payload of a window's datagram, cut off, changed, made up: a fault, or entries within their bounds.
#include <gtest/gtest.h>

#include <map>

#include "tests/protocol/datagram/window_cases.h"

namespace millrace::protocol {
namespace {

constexpr uint32_t kWindow = 4096;

/// Checks that the decoded indices are increasing and within the window.
void check_bounds(const DatagramHeader& header, const std::expected<Entries, WindowFault>& decoded, uint32_t window) {
  if (!decoded) return;
  EXPECT_LE(decoded->indices.size(), header.entries);
  for (size_t i = 0; i < decoded->indices.size(); ++i) {
    EXPECT_LT(decoded->indices[i], window);
    if (i > 0) {
      EXPECT_LT(decoded->indices[i - 1], decoded->indices[i]);
    }
  }
}

/// A fragment of every pair of codecs.
std::vector<Fragment> examples(size_t count) {
  RandomSequence random(RandomKey::from(11));
  std::vector<Fragment> fragments;
  for (const WindowIndexCodec index : kIndexCodecs) {
    for (const WindowValueCodec value : kValueCodecs) {
      const WindowCodecs codecs{.index = index, .value = value};
      if (is_refused(codecs)) continue;
      const Entries entries = some_entries(count, index == WindowIndexCodec::kDense ? 120 : kWindow, 1000, random);
      fragments.push_back(encode(entries.view(), codecs, kWindow, 8000));
    }
  }
  return fragments;
}

TEST(WindowCodeHostile, EveryOtherLengthIsRefused) {
  Decoder decoder;
  for (const Fragment& fragment : examples(40)) {
    const ByteSpan payload(fragment.payload);
    SCOPED_TRACE("codecs " + std::to_string(fragment.header.index_codec) + ", " +
                 std::to_string(fragment.header.value_codec));
    ASSERT_TRUE(decoder.decode(fragment.header, payload, kWindow));
    for (size_t length = 0; length < payload.size(); ++length) {
      const auto decoded = decoder.decode(fragment.header, payload.first(length), kWindow);
      // A shorter filter is another one, which may know as many indices by chance.
      if (fragment.header.index_codec == 4) {
        check_bounds(fragment.header, decoded, kWindow);
      } else {
        EXPECT_FALSE(decoded) << length;
      }
    }
    for (size_t more = 1; more <= 3; ++more) {
      for (const uint8_t byte : std::initializer_list<uint8_t>{0, 255}) {
        ByteBuffer longer = fragment.payload;
        longer.insert(longer.end(), more, byte);
        EXPECT_FALSE(decoder.decode(fragment.header, longer, kWindow)) << more;
      }
    }
  }
}

TEST(WindowCodeHostile, EveryChangedByteGivesAFaultOrEntriesWithinTheirBounds) {
  Decoder decoder;
  for (const Fragment& fragment : examples(40)) {
    SCOPED_TRACE("codecs " + std::to_string(fragment.header.index_codec) + ", " +
                 std::to_string(fragment.header.value_codec));
    for (size_t at = 0; at < fragment.payload.size(); ++at) {
      for (int change = 1; change < 256; ++change) {
        ByteBuffer changed = fragment.payload;
        changed[at] = static_cast<uint8_t>(changed[at] ^ change);
        check_bounds(fragment.header, decoder.decode(fragment.header, changed, kWindow), kWindow);
      }
    }
  }
}

TEST(WindowCodeHostile, AnyCodecAndCountInTheHeader_FaultOrEntriesWithinBounds) {
  Decoder decoder;
  for (const Fragment& fragment : examples(40)) {
    for (int codec = 0; codec < 256; ++codec) {
      DatagramHeader header = fragment.header;
      header.index_codec = static_cast<uint8_t>(codec);
      check_bounds(header, decoder.decode(header, fragment.payload, kWindow), kWindow);
      if (codec == 0 || codec > 5) {
        EXPECT_FALSE(decoder.decode(header, fragment.payload, kWindow));
      }
      header = fragment.header;
      header.value_codec = static_cast<uint8_t>(codec);
      check_bounds(header, decoder.decode(header, fragment.payload, kWindow), kWindow);
      if (codec == 0 || codec > 5) {
        EXPECT_EQ(decoder.decode(header, fragment.payload, kWindow).error(), WindowFault::kUnknownCodec);
      }
    }
    for (uint32_t entries = 1; entries < 65'536; entries += entries < 500 ? 1 : 251) {
      DatagramHeader header = fragment.header;
      header.entries = static_cast<uint16_t>(entries);
      check_bounds(header, decoder.decode(header, fragment.payload, kWindow), kWindow);
    }
  }
}

TEST(WindowCodeHostile, MadeUpBytesGiveAFaultOrEntriesWithinTheirBounds) {
  RandomSequence random(RandomKey::from(12));
  Decoder decoder;
  std::map<int, size_t> accepted;
  for (int i = 0; i < 200'000; ++i) {
    DatagramHeader header;
    header.entries = static_cast<uint16_t>(1 + random.next_below(8));
    header.index_codec = static_cast<uint8_t>(1 + random.next_below(5));
    header.value_codec = static_cast<uint8_t>(1 + random.next_below(5));
    header.flags = header.index_codec == 5 ? datagram_flag::kDense : 0;
    ByteBuffer payload(random.next_below(32));
    for (uint8_t& byte : payload) byte = static_cast<uint8_t>(random.next_u32());
    if (random.next_below(2) == 0 && payload.size() >= 10) {  // parameters that can be, where there are some
      header.value_codec = static_cast<uint8_t>(WindowValueCodec::kNone);
      payload[2] = static_cast<uint8_t>(payload[2] & 7);
      if (header.index_codec == 4) payload[3] = payload[5] = 0;
      if (header.index_codec == 4) payload[4] = static_cast<uint8_t>(payload[4] & 3);
    }
    const uint32_t window = random.next_below(2) == 0 ? 64 : 65'536;
    const auto decoded = decoder.decode(header, payload, window);
    check_bounds(header, decoded, window);
    if (decoded) ++accepted[header.index_codec];
  }
  for (int codec = 1; codec <= 5; ++codec)
    EXPECT_GT(accepted[codec], 0u) << "nothing of codec " << codec << " was valid";
}

/// A payload by hand: values of kNone, so that the indices are all of it.
WindowFault fault_of(WindowIndexCodec codec, uint16_t entries, const ByteBuffer& payload, uint32_t window = kWindow) {
  DatagramHeader header;
  header.entries = entries;
  header.index_codec = static_cast<uint8_t>(codec);
  header.value_codec = static_cast<uint8_t>(WindowValueCodec::kNone);
  header.flags = codec == WindowIndexCodec::kDense ? datagram_flag::kDense : 0;
  const auto decoded = Decoder().decode(header, payload, window);
  EXPECT_FALSE(decoded);
  return decoded ? WindowFault{255} : decoded.error();
}

TEST(WindowCodeHostile, EachFaultHasItsName) {
  using enum WindowFault;
  EXPECT_EQ(fault_of(WindowIndexCodec::kRaw, 2, {5, 0, 5, 0}), kNotIncreasing);
  EXPECT_EQ(fault_of(WindowIndexCodec::kRaw, 2, {5, 0, 4, 0}), kNotIncreasing);
  EXPECT_EQ(fault_of(WindowIndexCodec::kRaw, 2, {5, 0, 0, 0x10}), kIndexOutOfWindow);
  EXPECT_EQ(fault_of(WindowIndexCodec::kRaw, 2, {5, 0, 6}), kTruncated);
  EXPECT_EQ(fault_of(WindowIndexCodec::kRaw, 2, {5, 0, 6, 0, 0}), kTrailingBytes);
  EXPECT_EQ(fault_of(WindowIndexCodec::kGap, 1, {5, 0}), kTruncated);
  EXPECT_EQ(fault_of(WindowIndexCodec::kGap, 1, {5, 0, 16, 0, 0, 1}), kBadParameter);
  EXPECT_EQ(fault_of(WindowIndexCodec::kGap, 1, {5, 0, 0, 3}), kWrongCount);
  EXPECT_EQ(fault_of(WindowIndexCodec::kGap, 3, {5, 0, 0, 3}), kWrongCount);
  EXPECT_EQ(fault_of(WindowIndexCodec::kGap, 2, {0xff, 0x0f, 0, 3}), kIndexOutOfWindow);
  EXPECT_EQ(fault_of(WindowIndexCodec::kBitmap, 1, {5, 0}), kTruncated);
  EXPECT_EQ(fault_of(WindowIndexCodec::kBitmap, 1, {5, 0, 1, 0}), kTrailingBytes);
  EXPECT_EQ(fault_of(WindowIndexCodec::kBitmap, 1, {5, 0, 3}), kWrongCount);
  EXPECT_EQ(fault_of(WindowIndexCodec::kBitmap, 1, {5, 0, 2}), kBadParameter);
  EXPECT_EQ(fault_of(WindowIndexCodec::kBitmap, 2, {0xff, 0x0f, 3}), kIndexOutOfWindow);
  EXPECT_EQ(fault_of(WindowIndexCodec::kDense, 2, {5}), kTruncated);
  EXPECT_EQ(fault_of(WindowIndexCodec::kDense, 2, {5, 0, 0}), kTrailingBytes);
  EXPECT_EQ(fault_of(WindowIndexCodec::kDense, 2, {0xff, 0x0f}), kIndexOutOfWindow);
  EXPECT_EQ(fault_of(WindowIndexCodec::kDense, 2, {0xff, 0xff}, 65'536), kIndexOutOfWindow);
  EXPECT_EQ(fault_of(WindowIndexCodec::kDense, 17'937, {0, 0}, 65'536), kTooManyEntries);
  const ByteBuffer all = {5, 0, 1, 0, 1, 0, 255, 255, 255, 255};  // a filter of ones knows 5 and 6
  EXPECT_EQ(fault_of(WindowIndexCodec::kBloom, 1, all), kWrongCount);
  EXPECT_EQ(fault_of(WindowIndexCodec::kBloom, 3, all), kWrongCount);
  EXPECT_EQ(fault_of(WindowIndexCodec::kBloom, 2, all, 6), kIndexOutOfWindow);
  EXPECT_EQ(fault_of(WindowIndexCodec::kBloom, 2, {5, 0, 1, 0, 0, 0, 255, 255, 255, 255}), kBadParameter);
  EXPECT_EQ(fault_of(WindowIndexCodec::kBloom, 2, {5, 0, 1, 0, 33, 0, 255, 255, 255, 255}), kBadParameter);
  EXPECT_EQ(fault_of(WindowIndexCodec::kBloom, 2, {5, 0, 1, 0, 1, 1, 255, 255, 255, 255}), kBadParameter);
  EXPECT_EQ(fault_of(WindowIndexCodec::kBloom, 2, {5, 0, 1, 0, 1, 0, 255, 255, 255}), kTruncated);
  EXPECT_EQ(fault_of(WindowIndexCodec::kBloom, 2, {5, 0, 1, 0, 1, 0, 255, 255, 255, 255, 255}), kTrailingBytes);
}

TEST(WindowCodeHostile, TheDenseFlagAndTheCodecMustAgree) {
  Decoder decoder;
  const Entries entries{{1, 2, 3}, {1, 2, 3}};
  Fragment fragment = encode(entries.view(), {WindowIndexCodec::kDense, WindowValueCodec::kFixed16}, 64, 100);
  fragment.header.flags = 0;
  EXPECT_EQ(decoder.decode(fragment.header, fragment.payload, 64).error(), WindowFault::kUnknownCodec);
  const Entries apart{{1, 20, 40}, {1, 2, 3}};
  fragment = encode(apart.view(), {WindowIndexCodec::kRaw, WindowValueCodec::kFixed16}, 64, 100);
  fragment.header.flags = datagram_flag::kDense;
  EXPECT_EQ(decoder.decode(fragment.header, fragment.payload, 64).error(), WindowFault::kUnknownCodec);
}

TEST(WindowCodeHostile, AUnitWithWhichLevelsLeaveAnI32IsRefused) {
  Decoder decoder;
  for (const auto& [codec, most] :
       {std::pair{WindowValueCodec::kQsgd8, (1u << 24) - 1}, std::pair{WindowValueCodec::kQsgd4, (1u << 28) - 1}}) {
    const Entries entries{{1, 20, 40}, {1, 2, 3}};
    Fragment fragment = encode(entries.view(), {WindowIndexCodec::kRaw, codec}, 64, 100);
    std::copy_n(reinterpret_cast<const uint8_t*>(&most), 4, fragment.payload.begin());
    EXPECT_TRUE(decoder.decode(fragment.header, fragment.payload, 64));
    const uint32_t over = most + 1;
    std::copy_n(reinterpret_cast<const uint8_t*>(&over), 4, fragment.payload.begin());
    EXPECT_EQ(decoder.decode(fragment.header, fragment.payload, 64).error(), WindowFault::kValueOutOfBounds);
  }
}

}  // namespace
}  // namespace millrace::protocol
