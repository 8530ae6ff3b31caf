#include "protocol/container/container.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <limits>
#include <memory>
#include <sstream>
#include <utility>

#include "kernels/base/hash.h"
#include "tests/protocol/document.h"
#include "tests/support/format_versions.h"
#include "tests/support/index_sets.h"
#include "tests/support/oracles/stream_oracle.h"
#include "tests/support/replaced_new.h"
#include "tests/support/tree_paths.h"

namespace millrace {
namespace {

constexpr const char* kAllCodecs[] = {"raw",       "bitmap",          "gap",       "bloom:0.05",
                                      "raw+qsgd4", "bitmap+qsgd2:l2", "gap+qsgd8", "bloom:0.05+qsgd4"};

EncodeOptions options_of(std::string_view text) { return {codec_from_text(text).value(), RandomKey::from(7), 0}; }

Stream some_stream(uint64_t dimension, double density) {
  RandomSequence random(RandomKey::from(dimension));
  return testing::random_stream(random, dimension, density);
}

ByteBuffer container_of(const Stream& stream, std::string_view codec) {
  auto encoded = encode_container(stream.view(), {}, options_of(codec));
  EXPECT_TRUE(encoded);
  return std::move(encoded->bytes);
}

template <typename Field>
void set_field(ByteBuffer& bytes, size_t at, Field value) {
  std::memcpy(bytes.data() + at, &value, sizeof(value));
}

/// Makes the checksum right again, as protocol/wire/container.md states it: as a hostile sender does.
void sign(ByteBuffer& bytes) {
  const ByteSpan all(bytes);
  set_field(bytes, 56, hash64(all.subspan(64), hash64(all.first(56))));
}

/// Checks that a view in place gives the same stream as reading, or is refused for the same reason.
void expect_same_view(ByteSpan bytes, const Result<Stream>& read, const ContainerLimits& limits) {
  if (!is_plain(bytes)) return;
  const auto view = view_container(bytes, limits);
  ASSERT_EQ(view.has_value(), read.has_value());
  if (view) {
    EXPECT_TRUE(testing::same_bits(*view, read->view()));
  } else {
    EXPECT_EQ(view.error().code, read.error().code) << view.error().message << "; " << read.error().message;
  }
}

ErrorCode container_refusal(const ByteBuffer& bytes, const ContainerLimits& limits = {}) {
  const auto stream = read_container(bytes, limits);
  expect_same_view(bytes, stream, limits);
  EXPECT_FALSE(stream);
  return stream ? ErrorCode::kInternal : stream.error().code;
}

TEST(ContainerBytes, AreThoseOfTheirVersion) {
  Stream sparse = Stream::empty(300);
  for (const uint32_t index : {0u, 7u, 8u, 100u, 299u}) {
    sparse.indices.push_back(index);
    sparse.values.push_back(static_cast<float>(index) / 4 - 2);
  }
  millrace::testing::Fingerprint now;
  for (const char* text : kAllCodecs) now.add(container_of(sparse, text));
  now.add(container_of(to_dense(sparse.view()), "raw"));
  millrace::testing::expect_format_version("container", kContainerVersion, now,
                                           "kContainerVersion in protocol/container/container.h");
}

TEST(Container, EveryCodecDecodesToTheStreamThatItsEncoderReported) {
  for (const char* text : kAllCodecs) {
    for (const double density : {0.0, 0.01, 0.3, 1.0}) {
      const auto sparse = some_stream(4099, density);
      const auto original = to_dense(some_stream(4099, 0.6).view());
      for (const auto& selected : {sparse, to_dense(sparse.view())}) {
        SCOPED_TRACE(std::string(text) + ", density " + std::to_string(density) +
                     (selected.dense ? ", dense" : ", sparse"));
        const auto encoded = encode_container(selected.view(), original.view(), options_of(text));
        ASSERT_TRUE(encoded) << encoded.error().message;
        const auto& said = encoded->exact ? selected : encoded->decoded;
        EXPECT_EQ(encoded->count, said.count());
        const auto decoded = read_container(encoded->bytes, {.dimension = 4099, .count_max = encoded->count});
        ASSERT_TRUE(decoded) << decoded.error().message;
        EXPECT_TRUE(testing::same_bits(decoded->view(), said.view()));
        expect_same_view(encoded->bytes, decoded, {.dimension = 4099});
      }
    }
  }
}

TEST(Container, HeaderDescribesTheContent) {
  const auto bytes = container_of(some_stream(1000, 0.1), "gap+qsgd4");
  const auto header = read_container_header(bytes);
  ASSERT_TRUE(header);
  EXPECT_EQ(header->value_type, ValueType::kF32);
  EXPECT_EQ(header->index_codec, IndexCodecId::kGap);
  EXPECT_EQ(header->value_codec, ValueCodecId::kQsgd);
  EXPECT_EQ(header->dimension, 1000u);
  EXPECT_EQ(header->count, some_stream(1000, 0.1).count());
  EXPECT_EQ(64 + header->index_bytes + header->value_bytes, bytes.size());
  EXPECT_FALSE(header->dense);
}

TEST(Container, AnyAlignmentIsRead) {
  const auto stream = some_stream(3000, 0.2);
  for (const char* text : kAllCodecs) {
    const auto bytes = container_of(stream, text);
    const auto aligned = read_container(bytes, {});
    for (size_t shift = 1; shift < 8; ++shift) {
      ByteBuffer moved(bytes.size() + shift);
      std::memcpy(moved.data() + shift, bytes.data(), bytes.size());
      const auto decoded = read_container(ByteSpan(moved).subspan(shift), {});
      ASSERT_TRUE(decoded);
      EXPECT_TRUE(testing::same_bits(decoded->view(), aligned->view()));
      expect_same_view(ByteSpan(moved).subspan(shift), decoded, {});
    }
  }
}

TEST(Container, OnlyAlignedRawContainersAreViewedAndTheViewIsOfTheirBytes) {
  for (const bool dense : {false, true}) {
    // An odd count: the values of 8 bytes then lie at 4.
    auto stream = some_stream(3000, 0.2);
    if (stream.count() % 2 == 0) {
      stream.indices.pop_back();
      stream.values.pop_back();
    }
    if (dense) stream = to_dense(stream.view());
    for (const char* text : kAllCodecs) {
      const auto bytes = container_of(stream, text);
      const auto header = read_container_header(bytes);
      const bool raw =
          header->value_codec == ValueCodecId::kRaw && (dense || header->index_codec == IndexCodecId::kRaw);
      for (size_t shift = 0; shift < 8; ++shift) {
        ByteBuffer moved(bytes.size() + shift);
        std::memcpy(moved.data() + shift, bytes.data(), bytes.size());
        const ByteSpan at = ByteSpan(moved).subspan(shift);
        const bool aligned = shift % 4 == 0 && (shift + header->index_bytes) % alignof(float) == 0;
        EXPECT_EQ(is_plain(at), raw && aligned) << text << ' ' << shift;
        if (!is_plain(at)) {
          EXPECT_EQ(view_container(at, {}).error().code, ErrorCode::kUnsupported);
          continue;
        }
        const auto view = view_container(at, {});
        ASSERT_TRUE(view);
        EXPECT_TRUE(testing::same_bits(*view, stream.view()));
        EXPECT_EQ(reinterpret_cast<const uint8_t*>(view->values.data()), at.data() + 64 + header->index_bytes);
      }
    }
  }
}

TEST(Container, IsHeldWhereItArrivedOrDecoded) {
  // Of either type over kViewBytesMin; after an even count of indices, values of 8 bytes are aligned.
  auto large = some_stream(60'000, 0.1);
  large.indices.resize(4'000);
  large.values.resize(4'000);
  auto small = large;
  small.indices.resize(100);
  small.values.resize(100);
  struct Case {
    const char* name;
    const Stream& stream;
    const char* codec;
    size_t shift;  ///< of the bytes against the start of their buffer
    bool owned;
    bool in_place;
  };
  for (const Case& of :
       {Case{"raw", large, "raw", 0, true, true}, Case{"of another codec", large, "gap", 0, true, false},
        Case{"not aligned", large, "raw", 1, true, false}, Case{"nobody's", large, "raw", 0, false, false},
        Case{"small", small, "raw", 0, true, false}}) {
    SCOPED_TRACE(of.name);
    const auto bytes = container_of(of.stream, of.codec);
    ByteBuffer moved(bytes.size() + of.shift);
    std::memcpy(moved.data() + of.shift, bytes.data(), bytes.size());
    auto buffer = std::make_shared<const ByteBuffer>(std::move(moved));
    const std::weak_ptr<const ByteBuffer> watched = buffer;
    SharedBytes payload{of.owned ? buffer : nullptr, ByteSpan(*buffer).subspan(of.shift)};
    auto held = read_shared_container(payload, {.dimension = 60'000});
    ASSERT_TRUE(held) << held.error().message;
    EXPECT_TRUE(testing::same_bits(held->view, of.stream.view()));
    EXPECT_GE(held->memory_bytes, of.in_place ? bytes.size() : of.stream.count() * (4 + sizeof(float)));
    payload = {};
    buffer.reset();
    EXPECT_EQ(watched.expired(), !of.in_place);
    const SharedStream copy = *held;
    held = SharedStream{};
    EXPECT_TRUE(testing::same_bits(copy.view, of.stream.view())) << "a copy keeps the stream alive by itself";
    EXPECT_TRUE(testing::same_bits(copy.copy().view(), of.stream.view()));
  }
}

TEST(Container, ReadingASharedContainerAppliesTheSameChecks) {
  auto stream = some_stream(60'000, 0.1);
  stream.indices.resize(4'000);
  stream.values.resize(4'000);
  for (const char* codec : {"raw", "gap"}) {
    const ByteBuffer bytes = container_of(stream, codec);
    const auto refused = [](const ByteBuffer& of, const ContainerLimits& limits) {
      const auto held = read_shared_container(SharedBytes::from(ByteBuffer(of)), limits);
      return held ? ErrorCode::kInternal : held.error().code;
    };
    EXPECT_EQ(refused(bytes, {.dimension = 60'001}), ErrorCode::kMalformed);
    EXPECT_EQ(refused(bytes, {.count_max = 3'999}), ErrorCode::kLimitExceeded);
    EXPECT_EQ(refused(bytes, {.bytes_max = bytes.size() - 1}), ErrorCode::kLimitExceeded);
    ByteBuffer broken = bytes;
    broken.back() ^= 1;
    EXPECT_EQ(refused(broken, {}), ErrorCode::kMalformed);
    auto infinite = stream;
    infinite.values[17] = std::numeric_limits<float>::infinity();
    EXPECT_EQ(refused(container_of(infinite, codec), {}), ErrorCode::kNonFinite);
  }
}

TEST(Container, EveryTruncationIsMalformed) {
  for (const char* text : kAllCodecs) {
    const auto bytes = container_of(some_stream(400, 0.1), text);
    for (size_t length = 0; length < bytes.size(); ++length) {
      const ByteBuffer cut(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length));
      ASSERT_EQ(container_refusal(cut), ErrorCode::kMalformed) << text << ' ' << length;
    }
    ByteBuffer longer = bytes;
    longer.push_back(0);
    EXPECT_EQ(container_refusal(longer), ErrorCode::kMalformed);
  }
}

TEST(Container, TheChecksumFindsEveryCorruptByte) {
  for (const char* text : kAllCodecs) {
    const auto bytes = container_of(some_stream(300, 0.1), text);
    for (size_t at = 0; at < bytes.size(); ++at) {
      for (uint32_t flip = 1; flip < 256; flip = flip * 2 + 1) {
        ByteBuffer broken = bytes;
        broken[at] = static_cast<uint8_t>(broken[at] ^ flip);
        ASSERT_FALSE(read_container(broken, {})) << text << ", byte " << at << ", flip " << flip;
        ASSERT_FALSE(is_plain(broken) && view_container(broken, {})) << text << ", byte " << at;
      }
    }
  }
}

TEST(Container, CorruptBytesUnderARightChecksumAreAnErrorOrAValidStream) {
  for (const char* text : kAllCodecs) {
    const auto bytes = container_of(some_stream(300, 0.1), text);
    size_t refused = 0;
    for (size_t at = 0; at < bytes.size(); ++at) {
      for (const uint32_t flip : {0x01, 0x40, 0x80, 0xff}) {
        ByteBuffer broken = bytes;
        broken[at] = static_cast<uint8_t>(broken[at] ^ flip);
        sign(broken);
        const auto decoded = read_container(broken, {.count_max = 10'000});
        expect_same_view(broken, decoded, {.count_max = 10'000});
        if (!decoded) {
          ++refused;
          continue;
        }
        ASSERT_TRUE(validate(decoded->view())) << text << ", byte " << at;
        ASSERT_TRUE(all_finite(decoded->values)) << text << ", byte " << at;
      }
    }
    EXPECT_GT(refused, 4u * 50) << text;  // nearly every byte of the header
  }
}

TEST(Container, LimitsAreKept) {
  const auto stream = some_stream(1000, 0.5);
  const auto bytes = container_of(stream, "gap");
  EXPECT_TRUE(read_container(bytes, {.dimension = 1000, .count_max = stream.count(), .bytes_max = bytes.size()}));
  EXPECT_EQ(container_refusal(bytes, {.dimension = 1001}), ErrorCode::kMalformed);
  EXPECT_EQ(container_refusal(bytes, {.count_max = stream.count() - 1}), ErrorCode::kLimitExceeded);
  EXPECT_EQ(container_refusal(bytes, {.bytes_max = bytes.size() - 1}), ErrorCode::kLimitExceeded);
}

TEST(Container, NonFiniteValuesAreRefusedUnlessAccepted) {
  using Limits = std::numeric_limits<float>;
  for (const float bad : {Limits::quiet_NaN(), Limits::infinity(), -Limits::infinity()}) {
    auto stream = some_stream(1000, 0.1);
    stream.values[stream.values.size() / 2] = bad;
    const auto bytes = container_of(stream, "gap");
    EXPECT_EQ(container_refusal(bytes), ErrorCode::kNonFinite);
    const auto accepted = read_container(bytes, {.non_finite = NonFinitePolicy::kAccept});
    ASSERT_TRUE(accepted);
    EXPECT_TRUE(testing::same_bits(accepted->view(), stream.view()));
  }
}

TEST(Container, AnotherValueTypeThanF32IsRefusedAndF64ByItsName) {
  auto bytes = container_of(some_stream(100, 0.1), "raw");
  for (const uint8_t type : {uint8_t{0}, uint8_t{2}, uint8_t{3}, uint8_t{255}}) {
    bytes[5] = type;
    sign(bytes);
    EXPECT_EQ(container_refusal(bytes), ErrorCode::kUnsupported) << +type;
  }
  bytes[5] = static_cast<uint8_t>(ValueType::kF64);
  sign(bytes);
  const auto header = read_container_header(bytes);
  ASSERT_FALSE(header);
  EXPECT_NE(header.error().message.find("value type f64 is reserved; send the values as f32"), std::string::npos)
      << header.error().message;
}

/// A stream of the largest claims in 100 bytes.
ByteBuffer claims(IndexCodecId index, ValueCodecId value, uint64_t count, bool dense) {
  ByteBuffer bytes = container_of(some_stream(100, 0.05), "raw");
  bytes.resize(100, 0x00);
  set_field(bytes, 6, static_cast<uint8_t>(dense));
  set_field(bytes, 7, index);
  set_field(bytes, 8, value);
  set_field(bytes, 16, uint64_t{1} << 32);
  set_field(bytes, 24, count);
  set_field(bytes, 32, uint64_t{dense ? 0u : 18u});
  set_field(bytes, 40, uint64_t{dense ? 36u : 18u});
  set_field(bytes, 48, uint64_t{0});
  sign(bytes);
  return bytes;
}

TEST(ContainerClaims, FourBillionEntriesInAHundredBytesTakeNoMemory) {
  for (const IndexCodec* index : index_codecs()) {
    for (const ValueCodec* value : value_codecs()) {
      for (const uint64_t count : {uint64_t{1} << 32, (uint64_t{1} << 32) - 1}) {
        for (const bool dense : {false, true}) {
          const ByteBuffer bytes = claims(dense ? IndexCodecId::kNone : index->id(), value->id(), count, dense);
          testing::reset_largest_allocation();
          const bool accepted =
              read_container(bytes, {}).has_value() || (is_plain(bytes) && view_container(bytes, {}).has_value());
          const size_t largest = testing::largest_allocation();
          EXPECT_FALSE(accepted);
          EXPECT_LT(largest, 1024u) << index->name() << ' ' << value->name();
        }
      }
    }
  }
}

TEST(ContainerClaims, SectionLengthsThatOverflowAreMalformed) {
  for (const size_t field : {32, 40, 48}) {
    for (const uint64_t length : {~uint64_t{0}, uint64_t{1} << 63, uint64_t{37}}) {
      ByteBuffer bytes = claims(IndexCodecId::kRaw, ValueCodecId::kRaw, 4, false);
      set_field(bytes, field, length);
      sign(bytes);
      EXPECT_EQ(container_refusal(bytes), ErrorCode::kMalformed);
    }
  }
}

TEST(ContainerFields, AnUnknownFieldValueIsUnsupported) {
  const ByteBuffer good = container_of(some_stream(100, 0.1), "raw");
  for (const auto& [at, value] : {std::pair<size_t, uint8_t>{4, 2}, {5, 3}, {7, 99}, {8, 99}}) {
    ByteBuffer bytes = good;
    bytes[at] = value;
    sign(bytes);
    EXPECT_EQ(container_refusal(bytes), ErrorCode::kUnsupported) << at;
  }
  ByteBuffer coupled = good;
  coupled.push_back(1);
  set_field(coupled, 48, uint64_t{1});
  sign(coupled);
  EXPECT_EQ(container_refusal(coupled), ErrorCode::kUnsupported);
}

TEST(ContainerFields, ContradictionsAreMalformed) {
  const ByteBuffer sparse = container_of(some_stream(100, 0.1), "raw");
  const ByteBuffer dense = container_of(to_dense(some_stream(100, 0.1).view()), "raw");
  const auto with = [](ByteBuffer bytes, size_t at, auto value) {
    set_field(bytes, at, value);
    sign(bytes);
    return bytes;
  };
  EXPECT_EQ(container_refusal(with(sparse, 0, uint8_t{'m'})), ErrorCode::kMalformed);
  EXPECT_EQ(container_refusal(with(sparse, 6, uint8_t{2})), ErrorCode::kMalformed);
  EXPECT_EQ(container_refusal(with(sparse, 6, uint8_t{1})), ErrorCode::kMalformed);
  EXPECT_EQ(container_refusal(with(sparse, 7, uint8_t{0})), ErrorCode::kMalformed);
  EXPECT_EQ(container_refusal(with(sparse, 12, uint8_t{1})), ErrorCode::kMalformed);
  EXPECT_EQ(container_refusal(with(sparse, 16, uint64_t{0})), ErrorCode::kMalformed);
  EXPECT_EQ(container_refusal(with(sparse, 16, (uint64_t{1} << 32) + 1)), ErrorCode::kMalformed);
  EXPECT_EQ(container_refusal(with(sparse, 24, uint64_t{101})), ErrorCode::kMalformed);
  EXPECT_EQ(container_refusal(with(dense, 24, uint64_t{99})), ErrorCode::kMalformed);
  EXPECT_EQ(container_refusal(with(dense, 7, uint8_t{1})), ErrorCode::kMalformed);
}

TEST(ContainerFields, AStreamWithoutADimensionIsNotEncoded) {
  const auto encoded = encode_container(StreamView{}, {}, options_of("gap"));
  ASSERT_FALSE(encoded);
  EXPECT_EQ(encoded.error().code, ErrorCode::kInvalidArgument);
}

TEST(ContainerDocument, TheCodeWritesAndReadsTheWorkedExample) {
  Stream stream = Stream::empty(16);
  stream.indices = {1, 4, 5};
  stream.values = {1.0f, -2.0f, 0.5f};
  const ByteBuffer bytes = protocol::documented_bytes("container-example");
  EXPECT_EQ(container_of(stream, "gap"), bytes);
  const auto decoded = read_container(bytes, {});
  ASSERT_TRUE(decoded);
  EXPECT_TRUE(testing::same_bits(decoded->view(), stream.view()));
}

TEST(PlainContainer, EqualsTheRawEncodingOfTheSameEntries) {
  constexpr uint64_t kDimension = 100'000;
  const Stream whole = some_stream(kDimension, 0.05);
  for (const auto& [begin, end] :
       {std::pair<uint64_t, uint64_t>{0, kDimension}, {40'000, 70'001}, {99'999, 100'000}, {7, 8}}) {
    const auto [first, last] = range_of(whole.indices, begin, end);
    const StreamView within{kDimension, false, IndexSpan(whole.indices).subspan(first, last - first),
                            std::span<const float>(whole.values).subspan(first, last - first)};
    const PlainContainer plain = plain_container(within, begin, end - begin);
    const Stream local = slice_of(whole.view(), begin, end);
    const ByteBuffer coded = container_of(local, "raw");
    EXPECT_TRUE(std::ranges::equal(plain.bytes.bytes, coded)) << begin;
    EXPECT_TRUE(testing::same_bits(plain.stream, local.view())) << begin;
    EXPECT_TRUE(plain.stream.values.empty() ||
                (plain.stream.values.data() > static_cast<const void*>(plain.bytes.bytes.data()) &&
                 static_cast<const void*>(plain.stream.values.data() + plain.stream.values.size()) ==
                     plain.bytes.bytes.data() + plain.bytes.bytes.size()));
  }
}

TEST(DenseContainer, EqualsTheEncodingOfTheSameStream) {
  for (const uint64_t dimension : {1, 77, 5'000}) {
    const Stream dense = to_dense(some_stream(dimension, 0.7).view());
    const EncodeOptions options{codec_from_text("raw+qsgd4").value(), random_key(3), 64};
    ByteBuffer bytes(kContainerHeaderBytes);
    std::vector<float> decoded(dimension);
    ASSERT_TRUE(find_value_codec(options.spec.value)->encode({}, dense.values, options, bytes, decoded));
    seal_dense_container(dimension, options.spec.value, bytes);
    EXPECT_EQ(bytes, encode_container(dense.view(), {}, options).value().bytes) << dimension;
  }
}

}  // namespace
}  // namespace millrace
