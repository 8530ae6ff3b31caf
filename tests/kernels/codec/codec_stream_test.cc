#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "kernels/codec/codec.h"
#include "tests/support/index_sets.h"
#include "tests/support/oracles/stream_oracle.h"

namespace millrace {
namespace {

TEST(CodecText, ParsesItsPrintedText) {
  for (const char* text : {"raw",
                           "bitmap",
                           "gap",
                           "bloom_p0",
                           "bloom_p0:0.01",
                           "raw+qsgd4",
                           "gap+qsgd8:l2",
                           "gap+qsgd2:max:1024",
                           "bloom_p0:0.25+qsgd8:l2:64",
                           "bloom_blocked:0.1",
                           "bloom_p2:0.02+qsgd4",
                           "gap+qsgd3",
                           "gap+qsgd7:l2",
                           "gap+qsgd_elias5:max:64",
                           "gap+qsgd_elias4",
                           "gap+terngrad:100",
                           "gap+onebit:64",
                           "gap+sign_mean",
                           "gap+f16",
                           "gap+bf16",
                           "gap+deflate"}) {
    const auto spec = codec_from_text(text);
    ASSERT_TRUE(spec) << text << ": " << spec.error().message;
    EXPECT_EQ(codec_text(*spec), text);
  }
  EXPECT_EQ(codec_text(*codec_from_text("bloom:0.01+raw")), "bloom_p0:0.01");
  EXPECT_EQ(codec_text(*codec_from_text("gap+qsgd4:max:512")), "gap+qsgd4");
  EXPECT_EQ(codec_text(*codec_from_text("gap+qsgd4:1024")), "gap+qsgd4:max:1024");
}

TEST(CodecText, ReadsEveryParameter) {
  const CodecSpec spec = codec_from_text("bloom:0.02+qsgd2:l2:96").value();
  EXPECT_EQ(spec.index, IndexCodecId::kBloom);
  EXPECT_EQ(spec.value, ValueCodecId::kQsgd);
  EXPECT_EQ(spec.bloom_false_positive_rate, 0.02);
  EXPECT_EQ(spec.qsgd_bits, 2u);
  EXPECT_FALSE(spec.qsgd_scale_max);
  EXPECT_EQ(spec.bucket_size, 96u);
}

TEST(CodecText, QuantileBucketsHave7BitsUnlessTheTextSaysOthers) {
  for (const auto& [text, bits] : {std::pair{"gap+quantile", 7u}, {"gap+quantile:7", 7u}, {"gap+quantile:6", 6u}}) {
    const CodecSpec spec = codec_from_text(text).value();
    EXPECT_EQ(spec.qsgd_bits, bits) << text;
    EXPECT_EQ(codec_from_text(codec_text(spec)).value(), spec) << text;
  }
  EXPECT_EQ(codec_text(codec_from_text("gap+quantile:7").value()), "gap+quantile");
}

TEST(CodecText, RefusesInvalidCodecTexts) {
  for (const char* text : {"",
                           "+",
                           "gap+",
                           "+raw",
                           "gab",
                           "gap:3",
                           "bloom:",
                           "bloom:0",
                           "bloom:1",
                           "bloom:nan",
                           "bloom:-1",
                           "bloom:0.1:2",
                           "gap+qsgd",
                           "gap+qsgd1",
                           "gap+qsgd9",
                           "gap+qsgd_elias",
                           "gap+qsgd_elias9",
                           "gap+onebit:0",
                           "gap+onebit:8:8",
                           "gap+terngrad:max",
                           "gap+f16:1",
                           "gap+qsgd16",
                           "gap+qsgd4:",
                           "gap+qsgd4:l3",
                           "gap+qsgd4:l2:0",
                           "gap+qsgd4:l2:512:1",
                           "gap+qsgd4x",
                           "gap+quantile:",
                           "gap+quantile:1",
                           "gap+quantile:9",
                           "gap+quantile:7:512",
                           "gap+sketchml:mean",
                           "gap+raw+raw",
                           "gap+raw:1",
                           " gap",
                           "gap+qsgd4:99999999999"}) {
    const auto spec = codec_from_text(text);
    ASSERT_FALSE(spec) << text;
    EXPECT_EQ(spec.error().code, ErrorCode::kInvalidArgument);
  }
}

TEST(CodecRegistry, NamesAndIdsAreFoundAndUnique) {
  for (const IndexCodec* codec : index_codecs()) {
    EXPECT_EQ(find_index_codec(codec->id()), codec);
    EXPECT_EQ(codec_from_text(codec->name())->index, codec->id()) << codec->name();
    EXPECT_NE(index_codec_names().find(codec->name()), std::string::npos);
    EXPECT_FALSE(codec->paper().empty());
  }
  for (const ValueCodec* codec : value_codecs()) {
    EXPECT_EQ(find_value_codec(codec->id()), codec);
    CodecSpec spec;
    spec.value = codec->id();
    EXPECT_EQ(codec_from_text(codec_text(spec)), spec) << codec->name();
    EXPECT_NE(value_codec_names().find(codec->name()), std::string::npos);
    EXPECT_FALSE(codec->paper().empty());
  }
  EXPECT_EQ(find_index_codec(IndexCodecId::kNone), nullptr);
  EXPECT_EQ(find_index_codec(static_cast<IndexCodecId>(200)), nullptr);
  EXPECT_EQ(find_value_codec(static_cast<ValueCodecId>(0)), nullptr);
}

/// The two codes back to a stream, as a reader does it.
Stream decoded_of(const CodedStream& coded) {
  Stream stream;
  stream.dimension = coded.dimension;
  stream.dense = coded.dense;
  if (!coded.dense) {
    const IndexCodec* codec = find_index_codec(coded.index_codec);
    EXPECT_TRUE(codec->decode(coded.index_bytes, coded.dimension, coded.count, stream.indices));
  }
  stream.values.resize(coded.count);
  const ValueCodec* codec = find_value_codec(coded.value_codec);
  EXPECT_TRUE(codec->check(coded.value_bytes, coded.count));
  EXPECT_TRUE(codec->decode(coded.value_bytes, stream.indices, std::span<float>(stream.values)));
  return stream;
}

Stream selected_stream(uint64_t dimension, double density, uint64_t seed) {
  RandomSequence random(RandomKey::from(seed));
  return testing::random_stream(random, dimension, density);
}

TEST(StreamCodec, DecodesTheStreamThatTheEncoderReportsBitForBit) {
  for (const IndexCodec* index : index_codecs()) {
    std::vector<std::string> values = {"qsgd2:l2", "qsgd5:7", "qsgd_elias3:l2:64"};
    for (const ValueCodec* value : value_codecs()) values.push_back(value->text({}));
    for (const std::string& value : values) {
      const std::string text = std::string(index->name()) + (index->takes_rate() ? ":0.05+" : "+") + value;
      for (const double density : {0.0, 0.01, 0.3}) {
        const auto sparse = selected_stream(5001, density, 3);
        const auto original = to_dense(selected_stream(5001, 0.5, 4).view());
        for (const auto& selected : {sparse, to_dense(sparse.view())}) {
          SCOPED_TRACE(text + ", density " + std::to_string(density) + (selected.dense ? ", dense" : ", sparse"));
          EncodeOptions options{codec_from_text(text).value(), RandomKey::from(9), 1000};
          const auto coded = encode_stream(selected.view(), original.view(), options);
          ASSERT_TRUE(coded) << coded.error().message;
          const auto& said = coded->exact ? selected : coded->decoded;
          EXPECT_TRUE(testing::same_bits(decoded_of(*coded).view(), said.view()));
          EXPECT_EQ(coded->count, said.count());
          EXPECT_EQ(coded->decoded.count(), coded->exact ? 0u : said.count());
        }
      }
    }
  }
}

TEST(StreamCodec, BloomPolicies_SendOwnValuesAndTheNaiveFilterMisplacesThem) {
  const uint64_t dimension = 20'000;
  const auto selected = selected_stream(dimension, 0.02, 3);
  const auto original = to_dense(selected_stream(dimension, 0.5, 4).view());
  const auto picked = testing::entries_of(selected.view());
  for (const char* text :
       {"bloom_naive:0.1", "bloom_p1:0.1", "bloom_p2:0.1", "bloom_left:0.1", "bloom_middle:0.1", "bloom_right:0.1"}) {
    SCOPED_TRACE(text);
    const auto coded = encode_stream(selected.view(), original.view(), {codec_from_text(text).value(), {}, 0});
    ASSERT_TRUE(coded);
    ASSERT_EQ(coded->decoded.count(), selected.count());
    uint64_t added = 0;
    for (size_t j = 0; j < coded->decoded.indices.size(); ++j) {
      const uint32_t index = coded->decoded.indices[j];
      const auto at = picked.find(index);
      added += at == picked.end() ? 1 : 0;
      const float own = at == picked.end() ? original.values[index] : at->second;
      EXPECT_EQ(coded->decoded.values[j], std::string(text) == "bloom_naive:0.1" ? selected.values[j] : own);
    }
    EXPECT_EQ(coded->false_positives, added);
    EXPECT_GT(added, 0u);
  }
}

TEST(StreamCodec, LosslessPairsAreExactAndQuantizersAreNot) {
  const auto selected = selected_stream(1000, 0.1, 3);
  for (const char* text : {"raw", "bitmap", "gap"}) {
    EXPECT_TRUE(encode_stream(selected.view(), {}, {codec_from_text(text).value(), {}, 0})->exact) << text;
  }
  EXPECT_FALSE(encode_stream(selected.view(), {}, {codec_from_text("gap+qsgd4").value(), {}, 0})->exact);
}

TEST(StreamCodec, BloomFillsAddedEntriesFromTheOriginal) {
  const uint64_t dimension = 20'000;
  const auto selected = selected_stream(dimension, 0.02, 3);
  const auto sparse_original = selected_stream(dimension, 0.5, 4);
  const auto dense_original = to_dense(sparse_original.view());
  const auto picked = testing::entries_of(selected.view());
  const EncodeOptions options{codec_from_text("bloom:0.1").value(), RandomKey::from(1), 0};
  for (const auto* original : {&sparse_original, &dense_original}) {
    const auto coded = encode_stream(selected.view(), original->view(), options);
    ASSERT_TRUE(coded);
    ASSERT_FALSE(coded->exact);
    auto entries = testing::entries_of(coded->decoded.view());
    EXPECT_EQ(coded->false_positives, entries.size() - picked.size());
    EXPECT_GT(coded->false_positives, 1000u);  // expected: 1960
    size_t filled = 0;
    for (const auto& [index, value] : entries) {
      const auto at = picked.find(index);
      EXPECT_EQ(value, at != picked.end() ? at->second : dense_original.values[index]);
      if (at == picked.end() && value != 0) ++filled;
    }
    EXPECT_GT(filled, 400u);  // half of the original is there
  }
}

TEST(StreamCodec, BloomWithoutAnOriginalAddsZeros) {
  const auto selected = selected_stream(20'000, 0.02, 3);
  const auto coded = encode_stream(selected.view(), {}, {codec_from_text("bloom:0.1").value(), RandomKey::from(1), 0});
  ASSERT_TRUE(coded);
  const auto picked = testing::entries_of(selected.view());
  for (const auto& [index, value] : testing::entries_of(coded->decoded.view())) {
    EXPECT_EQ(value, picked.contains(index) ? picked.at(index) : 0.0F);
  }
}

TEST(StreamCodec, AnOriginalOfAnotherDimensionIsRefused) {
  const auto selected = selected_stream(100, 0.1, 3);
  const auto original = to_dense(selected_stream(101, 0.1, 3).view());
  const auto coded = encode_stream(selected.view(), original.view(), {codec_from_text("gap").value(), {}, 0});
  ASSERT_FALSE(coded);
  EXPECT_EQ(coded.error().code, ErrorCode::kInvalidArgument);
}

TEST(StreamCodec, ValueCodesOfAnotherLengthAreErrors) {
  for (const char* text : {"raw", "raw+qsgd4", "raw+qsgd8:l2:100"}) {
    const CodecSpec spec = codec_from_text(text).value();
    const auto selected = selected_stream(3000, 0.3, 3);
    const auto coded = encode_stream(selected.view(), {}, {spec, RandomKey::from(1), 0});
    ASSERT_TRUE(coded);
    const ValueCodec* codec = find_value_codec(coded->value_codec);
    EXPECT_EQ(coded->value_bytes.size(), codec->bytes_max(coded->count, spec));
    Buffer<float> out(coded->count);
    for (size_t length = 0; length < coded->value_bytes.size(); ++length) {
      const ByteBuffer cut(coded->value_bytes.begin(),
                           coded->value_bytes.begin() + static_cast<std::ptrdiff_t>(length));
      ASSERT_FALSE(codec->check(cut, coded->count));
      ASSERT_FALSE(codec->decode(cut, {}, std::span<float>(out)));
    }
    for (const uint64_t count : {coded->count / 2, coded->count * 2, uint64_t{1} << 32, ~uint64_t{0}}) {
      EXPECT_FALSE(codec->check(coded->value_bytes, count)) << text << ' ' << count;
    }
  }
}

TEST(WithoutLoss, KeepsWhatLosesNothingAndTakesGapAndRawInThePlaceOfTheRest) {
  for (const IndexCodec* index : index_codecs()) {
    for (const ValueCodec* value : value_codecs()) {
      const CodecSpec spec{.index = index->id(), .value = value->id()};
      const CodecSpec exact = without_loss(spec);
      EXPECT_TRUE(validate(exact)) << index->name() << '+' << value->name();
      EXPECT_TRUE(find_index_codec(exact.index)->lossless());
      EXPECT_TRUE(find_value_codec(exact.value)->lossless(exact));
      EXPECT_EQ(exact.index, index->lossless() ? spec.index : IndexCodecId::kGap);
      EXPECT_EQ(exact.value, value->lossless(spec) ? spec.value : ValueCodecId::kRaw);
      EXPECT_EQ(without_loss(exact), exact);
    }
  }
  const CodecSpec automatic = codec_from_text("auto+qsgd4").value();
  EXPECT_TRUE(without_loss(automatic).automatic);
  EXPECT_EQ(without_loss(automatic).value, ValueCodecId::kRaw);
}

}  // namespace
}  // namespace millrace
