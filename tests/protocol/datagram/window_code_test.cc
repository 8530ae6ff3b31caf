// The payload of a window's datagram: round trips, sizes, decoded values by codec.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tests/protocol/datagram/window_cases.h"
#include "tests/support/isa.h"

namespace millrace::protocol {
namespace {

/// Sends all entries, fragment by fragment; checks that each decodes to the values that the sender announced. Returns
/// the fragments.
std::vector<Fragment> send_all(const Entries& entries, const WindowCodecs& codecs, uint32_t window, size_t capacity) {
  std::vector<Fragment> fragments;
  Decoder decoder;
  size_t sent = 0;
  while (sent < entries.indices.size()) {
    fragments.push_back(encode(entries.view(sent), codecs, window, capacity));
    const Fragment& fragment = fragments.back();
    const size_t taken = fragment.decoded.size();
    EXPECT_GE(taken, 1u);
    EXPECT_LE(fragment.payload.size(), capacity);
    if (taken == 0) return fragments;
    const auto decoded = decoder.decode(fragment.header, fragment.payload, window);
    EXPECT_TRUE(decoded) << static_cast<int>(decoded.error());
    if (!decoded) return fragments;
    EXPECT_TRUE(std::equal(decoded->indices.begin(), decoded->indices.end(), entries.indices.begin() + sent,
                           entries.indices.begin() + sent + taken));
    EXPECT_EQ(decoded->values, fragment.decoded);
    sent += taken;
  }
  return fragments;
}

Entries some_entries_of_run(size_t count) {
  Entries entries;
  entries.indices.resize(count);
  entries.values.resize(count);
  std::iota(entries.indices.begin(), entries.indices.end(), uint16_t{7});
  return entries;
}

TEST(WindowCode, EveryFragmentDecodesToTheValuesThatItsEncoderReported) {
  RandomSequence random(RandomKey::from(1));
  for (const WindowIndexCodec index : kIndexCodecs) {
    for (const WindowValueCodec value : kValueCodecs) {
      const WindowCodecs codecs{.index = index, .value = value};
      if (is_refused(codecs)) continue;
      for (const uint32_t window : {64u, 1024u, 8192u, 65'536u}) {
        for (const double density : {0.001, 0.01, 0.1, 0.5, 0.9, 1.0}) {
          const auto count = static_cast<size_t>(std::max(1.0, density * std::min(window, 4096u)));
          const uint32_t range =
              std::min(window, static_cast<uint32_t>(std::ceil(static_cast<double>(count) / density)));
          const Entries entries = some_entries(count, range, 70'000, random);
          for (const size_t capacity : {64, 65, 71, 500, 1392, 8892}) {
            SCOPED_TRACE(text(codecs) + ", window " + std::to_string(window) + ", density " + std::to_string(density) +
                         ", capacity " + std::to_string(capacity));
            send_all(entries, codecs, window, capacity);
            if (HasFailure()) return;
          }
        }
      }
    }
  }
}

TEST(WindowCode, EveryInstructionSetDecodesTheSame) {
  RandomSequence random(RandomKey::from(2));
  for (const WindowIndexCodec index : kIndexCodecs) {
    for (const WindowValueCodec value : kValueCodecs) {
      const WindowCodecs codecs{.index = index, .value = value};
      if (is_refused(codecs)) continue;
      const Entries entries = some_entries(301, 4096, 100'000, random);
      testing::for_each_isa([&](const std::string& isa) {
        SCOPED_TRACE(isa + ", " + text(codecs));
        send_all(entries, codecs, 4096, 700);
      });
    }
  }
}

TEST(WindowCode, FixedNumbersAreExactAndClampedAtTheEnds) {
  const Entries entries{{1, 5, 9, 100, 101, 4000}, {INT32_MIN, INT32_MAX, -32'768, 32'767, 32'768, -1}};
  const Fragment narrow = encode(entries.view(), {.value = WindowValueCodec::kFixed16}, 4096, 1000);
  EXPECT_EQ(narrow.decoded, (std::vector<int32_t>{-32'767, 32'767, -32'767, 32'767, 32'767, -1}));
  const Fragment wide = encode(entries.view(), {.value = WindowValueCodec::kFixed32}, 4096, 1000);
  EXPECT_EQ(wide.decoded, (std::vector<int32_t>{-INT32_MAX, INT32_MAX, -32'768, 32'767, 32'768, -1}));
}

/// |value - decoded| of every entry, and the unit of its bucket.
void check_levels(const Entries& entries, const Fragment& fragment, int32_t highest, WindowRounding rounding) {
  for (size_t begin = 0; begin < entries.values.size(); begin += 64) {
    const size_t end = std::min(begin + 64, entries.values.size());
    int64_t largest = 0;
    for (size_t i = begin; i < end; ++i) largest = std::max(largest, std::abs(int64_t{entries.values[i]}));
    const int64_t unit = std::max<int64_t>(1, (largest + highest - 1) / highest);
    for (size_t i = begin; i < end; ++i) {
      const int64_t error = std::abs(int64_t{entries.values[i]} - fragment.decoded[i]);
      EXPECT_EQ(fragment.decoded[i] % unit, 0);
      EXPECT_LE(error, rounding == WindowRounding::kNearest ? unit / 2 : unit - 1) << entries.values[i] << " " << unit;
    }
  }
}

TEST(WindowCode, LevelsAreOffByHalfAUnitOrRandomByLessThanOne) {
  RandomSequence random(RandomKey::from(3));
  for (const WindowRounding rounding : {WindowRounding::kNearest, WindowRounding::kRandom}) {
    for (const uint32_t magnitude : {2u, 100u, 128u, 1000u, 1u << 20, 1u << 30}) {
      Entries entries = some_entries(500, 60'000, magnitude, random);
      for (int32_t& value : entries.values) value = std::clamp(value, -(1 << 30), 1 << 30);
      WindowCodecs codecs{.value = WindowValueCodec::kQsgd8, .rounding = rounding, .random = RandomKey::from(4)};
      check_levels(entries, encode(entries.view(), codecs, 65'536, 8000), 127, rounding);
      codecs.value = WindowValueCodec::kQsgd4;
      check_levels(entries, encode(entries.view(), codecs, 65'536, 8000), 7, rounding);
    }
  }
}

TEST(WindowCode, LevelsOfSmallValuesLoseNothing) {
  RandomSequence random(RandomKey::from(5));
  Entries entries = some_entries(300, 4096, 8, random);
  for (int32_t& value : entries.values) value = std::clamp(value, -7, 7);
  for (const auto value : {WindowValueCodec::kQsgd8, WindowValueCodec::kQsgd4}) {
    EXPECT_EQ(encode(entries.view(), {.value = value}, 4096, 1400).decoded, entries.values);
  }
}

TEST(WindowCode, LevelsAreClampedWhereTheirUnitEnds) {
  const Entries entries{{1, 2, 3}, {INT32_MIN, INT32_MAX, 1}};
  const int32_t eight = 127 * ((1 << 24) - 1);
  const int32_t four = 7 * ((1 << 28) - 1);
  EXPECT_EQ(encode(entries.view(), {.value = WindowValueCodec::kQsgd8}, 64, 100).decoded,
            (std::vector<int32_t>{-eight, eight, 0}));
  EXPECT_EQ(encode(entries.view(), {.value = WindowValueCodec::kQsgd4}, 64, 100).decoded,
            (std::vector<int32_t>{-four, four, 0}));
}

TEST(WindowCode, RandomRoundingIsUnbiasedAndRepeatsUnderItsKey) {
  // 1000 sets the unit to 8; 3 of it is 3/8 of a level.
  Entries entries{{1, 2}, {1016, 3}};
  WindowCodecs codecs{.value = WindowValueCodec::kQsgd8, .rounding = WindowRounding::kRandom};
  const int draws = 20'000;
  int64_t sum = 0;
  for (int i = 0; i < draws; ++i) {
    codecs.random = RandomKey::from(static_cast<uint64_t>(i));
    const Fragment fragment = encode(entries.view(), codecs, 64, 100);
    EXPECT_TRUE(fragment.decoded[1] == 0 || fragment.decoded[1] == 8) << fragment.decoded[1];
    EXPECT_EQ(fragment.decoded[0], 1016);
    EXPECT_EQ(encode(entries.view(), codecs, 64, 100).decoded, fragment.decoded);
    sum += fragment.decoded[1];
  }
  // A draw's standard deviation is 8 sqrt(3/8 5/8) = 3.87; five of them over sqrt(20000) are 0.14.
  EXPECT_NEAR(static_cast<double>(sum) / draws, 3.0, 0.14);
}

TEST(WindowCode, DecodedMayBeTheValuesThemselves) {
  RandomSequence random(RandomKey::from(6));
  for (const WindowIndexCodec index : kIndexCodecs) {
    for (const WindowValueCodec value : kValueCodecs) {
      const WindowCodecs codecs{.index = index, .value = value};
      const bool exact_run = index == WindowIndexCodec::kDense && value == WindowValueCodec::kNone;
      if (is_refused(codecs) || exact_run) continue;
      Entries entries = some_entries(150, 400, 100'000, random);
      const Fragment apart = encode(entries.view(), codecs, 1024, 8000);
      Fragment in_place;
      in_place.payload.resize(8000);
      const uint32_t taken =
          encode_window(entries.view(), codecs, 1024, in_place.header, in_place.payload, entries.values);
      ASSERT_EQ(taken, 150u);
      in_place.payload.resize(in_place.header.payload_bytes);
      EXPECT_EQ(in_place.payload, apart.payload) << text(codecs);
      EXPECT_EQ(entries.values, apart.decoded) << text(codecs);
    }
  }
}

TEST(WindowCode, NothingIsAnEmptyPayload) {
  const Fragment fragment = encode({}, {}, 1024, 64);
  EXPECT_EQ(fragment.header.entries, 0);
  EXPECT_EQ(fragment.header.payload_bytes, 0);
  Decoder decoder;
  EXPECT_EQ(decoder.decode(fragment.header, {}, 1024), Entries{});
  EXPECT_EQ(decoder.decode(DatagramHeader{}, {}, 1024), Entries{}) << "codecs are not looked at";
  EXPECT_EQ(decoder.decode(fragment.header, ByteBuffer{0}, 1024).error(), WindowFault::kTrailingBytes);
}

TEST(WindowCode, ARawFixed32WindowHasTheExpectedHeaderAndPayload) {
  const Entries entries{{100, 200, 900}, {1, 2, 3}};
  const Fragment fragment = encode(entries.view(), {WindowIndexCodec::kRaw, WindowValueCodec::kFixed32}, 1024, 100);
  EXPECT_EQ(fragment.header.entries, 3);
  EXPECT_EQ(fragment.header.payload_bytes, 18);
  EXPECT_EQ(fragment.header.index_codec, 1);
  EXPECT_EQ(fragment.header.value_codec, 2);
  EXPECT_EQ(fragment.header.flags, 0);
  const std::vector<uint8_t> expected = {1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 100, 0, 200, 0, 0x84, 3};
  EXPECT_EQ(std::vector<uint8_t>(fragment.payload.begin(), fragment.payload.end()), expected);
}

TEST(WindowCode, TheFlagsThatAreNotItsOwnStay) {
  Entries entries{{1, 2, 3, 4}, {1, 2, 3, 4}};
  ByteBuffer payload(100);
  std::vector<int32_t> decoded(4);
  DatagramHeader header;
  header.flags = datagram_flag::kLast | datagram_flag::kFlush;
  encode_window(entries.view(), {}, 64, header, payload, decoded);
  EXPECT_EQ(header.flags, datagram_flag::kLast | datagram_flag::kFlush | datagram_flag::kDense);
  entries.indices[3] = 60;
  encode_window(entries.view(), {}, 64, header, payload, decoded);
  EXPECT_EQ(header.flags, datagram_flag::kLast | datagram_flag::kFlush);
}

TEST(WindowCode, TheDenseFormIsTakenWhereItIsSmaller) {
  RandomSequence random(RandomKey::from(7));
  const auto is_dense = [&](size_t count, uint32_t range, const WindowCodecs& codecs, size_t capacity) {
    const Fragment fragment = encode(some_entries(count, range, 100, random).view(), codecs, 65'536, capacity);
    return (fragment.header.flags & datagram_flag::kDense) != 0;
  };
  const WindowCodecs raw{WindowIndexCodec::kRaw, WindowValueCodec::kFixed16};
  EXPECT_TRUE(is_dense(70, 100, raw, 8000)) << "two bytes an index of the range against four an entry";
  EXPECT_FALSE(is_dense(30, 100, raw, 8000));
  EXPECT_TRUE(is_dense(3500, 5000, raw, 1400)) << "a run carries more entries of a full datagram";
  EXPECT_FALSE(is_dense(1500, 5000, raw, 1400));
  const WindowCodecs gap{WindowIndexCodec::kGap, WindowValueCodec::kFixed32};
  EXPECT_TRUE(is_dense(100, 100, gap, 8000));
  EXPECT_FALSE(is_dense(70, 100, gap, 8000)) << "a bit or two an entry are less than a hole";
}

TEST(WindowCode, WithoutValuesNothingCanMarkAHole) {
  Entries entries = some_entries_of_run(100);
  const WindowCodecs kept{WindowIndexCodec::kGap, WindowValueCodec::kNone};
  EXPECT_EQ(encode(entries.view(), kept, 1024, 8000).header.flags, datagram_flag::kDense);
  entries.indices.erase(entries.indices.begin() + 50);
  entries.values.pop_back();
  EXPECT_EQ(encode(entries.view(), kept, 1024, 8000).header.flags, 0);
}

TEST(WindowCode, ARunWithHolesHasNoEntryThere) {
  for (const auto value :
       {WindowValueCodec::kFixed16, WindowValueCodec::kFixed32, WindowValueCodec::kQsgd8, WindowValueCodec::kQsgd4}) {
    const Entries entries{{10, 11, 13, 16, 17}, {1, 0, -3, 4, 0}};
    const Fragment fragment = encode(entries.view(), {WindowIndexCodec::kDense, value}, 64, 100);
    EXPECT_EQ(fragment.header.entries, 8);
    EXPECT_EQ(Decoder().decode(fragment.header, fragment.payload, 64), entries) << static_cast<int>(value);
  }
}

TEST(WindowCode, ABloomFiltersFalsePositivesAreDropped) {
  RandomSequence random(RandomKey::from(8));
  size_t known = 0;
  for (int i = 0; i < 20; ++i) {
    const Entries entries = some_entries(200, 20'000, 1000, random);
    const Fragment fragment =
        encode(entries.view(), {WindowIndexCodec::kBloom, WindowValueCodec::kFixed32}, 65'536, 8000);
    ASSERT_EQ(fragment.header.index_codec, static_cast<uint8_t>(WindowIndexCodec::kBloom));
    known += fragment.header.entries;
    EXPECT_EQ(Decoder().decode(fragment.header, fragment.payload, 65'536)->indices, entries.indices);
  }
  EXPECT_GT(known, 20u * 200) << "a filter knows more indices than those that it received";
}

TEST(WindowCode, AFragmentIsFull) {
  RandomSequence random(RandomKey::from(9));
  for (const double density : {0.003, 0.01, 0.1, 0.4}) {
    const uint32_t window = 65'536;
    const Entries entries = some_entries(static_cast<size_t>(density * window), window, 30'000, random);
    for (const auto index : {WindowIndexCodec::kRaw, WindowIndexCodec::kGap, WindowIndexCodec::kBitmap}) {
      const WindowCodecs codecs{.index = index, .value = WindowValueCodec::kFixed16};
      const auto fragments = send_all(entries, codecs, window, 1392);
      for (size_t f = 0; f + 1 < fragments.size(); ++f) {
        // One entry more would not have fit: a bitmap's may be far away.
        const size_t wanted = index == WindowIndexCodec::kBitmap ? 1392 - 2 - 256 : 1392 - 6;
        EXPECT_GE(fragments[f].payload.size(), wanted) << text(codecs) << ", density " << density;
      }
    }
  }
}

/// A window's fragments as callers of even_share send them.
std::vector<Fragment> send_even(const Entries& entries, const WindowCodecs& codecs, uint32_t window, size_t capacity) {
  std::vector<Fragment> fragments;
  const size_t share = even_share(entries.indices, codecs, capacity);
  for (size_t sent = 0; sent < entries.indices.size();) {
    WindowEntries rest = entries.view(sent);
    const size_t offered = std::min(rest.indices.size(), share);
    rest = {rest.indices.first(offered), rest.values.first(offered)};
    fragments.push_back(encode(rest, codecs, window, capacity));
    sent += fragments.back().decoded.size();
  }
  return fragments;
}

TEST(WindowCode, EvenSharesAreOfLikeLengthAndHardlyMore) {
  RandomSequence random(RandomKey::from(12));
  const uint32_t window = 65'536;
  size_t cut = 0;
  size_t full = 0;
  int windows = 0;
  int unlike = 0;
  for (int sample = 0; sample < 400; ++sample) {
    const WindowCodecs codecs{.index = kIndexCodecs[random.next_below(2)], .value = kValueCodecs[random.next_below(4)]};
    const Entries entries = some_entries(1 + random.next_below(6000), window, 30'000, random);
    const size_t capacity = 300 + random.next_below(8000);
    const auto even = send_even(entries, codecs, window, capacity);
    const auto greedy = send_all(entries, codecs, window, capacity);
    SCOPED_TRACE(text(codecs) + ", entries " + std::to_string(entries.indices.size()) + ", capacity " +
                 std::to_string(capacity));
    EXPECT_LE(even.size(), greedy.size() + 1);
    cut += even.size();
    full += greedy.size();
    if (even.size() == 1 || even.size() > kFragmentsMax) continue;
    ++windows;
    const auto bytes = [](const Fragment& fragment) { return fragment.payload.size(); };
    const auto [least, most] = std::ranges::minmax(even, {}, bytes);
    unlike += bytes(most) - bytes(least) > bytes(most) / 8 ? 1 : 0;
  }
  EXPECT_LE(cut, full + full / 50);
  EXPECT_GE(windows, 100);
  EXPECT_LE(unlike, windows / 20) << "where fragments are full to the last entry, a rest may be left";
}

TEST(WindowCode, EvenShareSplitsARunByItsEncodedSize) {
  const Entries run = some_entries_of_run(1200);
  const WindowCodecs raw{WindowIndexCodec::kRaw, WindowValueCodec::kFixed16};
  EXPECT_EQ(send_all(run, raw, 65'536, 1392).size(), 2u) << "as a run; raw it would be four";
  EXPECT_EQ(even_share(run.indices, raw, 1392), 600u);
}

TEST(WindowCode, NoFragmentIsSparedForLikeLength) {
  RandomSequence random(RandomKey::from(13));
  const WindowCodecs codecs{WindowIndexCodec::kGap, WindowValueCodec::kFixed32};
  const Entries entries = some_entries(4000, 65'536, 30'000, random);
  EXPECT_EQ(even_share(std::span(entries.indices).first(1500), codecs, 8000), 1500u) << "one fragment carries all";
  EXPECT_EQ(even_share(entries.indices, codecs, 1000), 4000u) << "all sixteen are needed";
  EXPECT_LT(even_share(entries.indices, codecs, 1500), 400u);
  EXPECT_EQ(even_share({}, codecs, 1000), 0u);
}

TEST(WindowCode, GapsTakeTwoPercentMoreThanTheirEntropyAtMost) {
  RandomSequence random(RandomKey::from(10));
  for (const double density : {0.001, 0.003, 0.01, 0.03, 0.1, 0.3}) {
    const uint32_t window = 65'536;
    const auto count = static_cast<size_t>(density * window);
    const Entries entries = some_entries(std::min<size_t>(count, 17'000), window, 2, random);
    size_t bits = 0;
    const WindowCodecs codecs{WindowIndexCodec::kGap, WindowValueCodec::kNone};
    for (const Fragment& fragment : send_all(entries, codecs, window, 8892)) bits += 8 * fragment.payload.size();
    const double p = static_cast<double>(entries.indices.size()) / window;
    const double entropy = window * (-p * std::log2(p) - (1 - p) * std::log2(1 - p));
    // A Rice code is within 1/30 of a bit of the best prefix code there, which is within 4 % of the entropy.
    EXPECT_LE(static_cast<double>(bits), entropy * 1.05 + 64) << density;
  }
}

TEST(WindowCode, ClusteredIndicesGetAParameterOfTheirOwn) {
  Entries entries;
  for (uint32_t cluster = 0; cluster < 40; ++cluster) {
    for (uint32_t i = 0; i < 30; ++i) {
      entries.indices.push_back(static_cast<uint16_t>(cluster * 1500 + 2 * i));
      entries.values.push_back(1);
    }
  }
  const auto fragments = send_all(entries, {WindowIndexCodec::kGap, WindowValueCodec::kNone}, 65'536, 8892);
  ASSERT_EQ(fragments.size(), 1u);
  size_t best = SIZE_MAX;
  for (uint32_t shift = 0; shift < 16; ++shift) {
    size_t quotients = 0;
    for (size_t i = 1; i < entries.indices.size(); ++i) {
      quotients += static_cast<size_t>((entries.indices[i] - entries.indices[i - 1] - 1) >> shift);
    }
    const size_t count = entries.indices.size();
    best = std::min(best, 3 + (count * shift + 7) / 8 + (count + quotients + 7) / 8);
  }
  EXPECT_EQ(fragments[0].payload.size(), best);
}

}  // namespace
}  // namespace millrace::protocol
