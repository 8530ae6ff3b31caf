// protocol/vectors/value.json: each value codec's code of values, and the values that it decodes.
#include <gtest/gtest.h>

#include <set>

#include "kernels/base/bytes.h"
#include "kernels/codec/codec.h"
#include "tests/protocol/vectors/vector_file.h"
#include "tests/support/isa.h"
#include "tests/support/value_codec_cases.h"

namespace millrace::testing {
namespace {

const VectorFile kValueFile{
    .name = "value.json",
    .format = "value codecs",
    .change = "A codec has no version: give it another number and name (protocol/wire/versions.md).",
};

/// Codecs whose encoders ask a library, or search in f64: readers must agree on every machine, writers need not.
const std::set<std::string_view> kFreeValueCodecs = {"deflate", "fit_poly", "fit_dexp"};

struct ValueInput {
  std::string name;
  IndexBuffer indices;  ///< empty: dense
  std::vector<float> values;
  std::set<std::string_view> only = {};  ///< the codecs that it is for; none: all
};

/// Small magnitudes are many, large ones few, as in gradients.
std::vector<float> gradient_like_values(size_t count) {
  RandomSequence random(RandomKey::from(count));
  std::vector<float> values;
  for (size_t i = 0; i < count; ++i) {
    const auto unit = static_cast<float>(random.next_below(2'001)) / 1'000 - 1;
    values.push_back(unit * unit * unit / 64);
  }
  return values;
}

/// `count` values of which one in 70 is not 0.
std::vector<float> mostly_zeros(size_t count) {
  std::vector<float> values(count, 0.0F);
  for (size_t i = 35; i < count; i += 70) values[i] = i % 140 == 35 ? 0.5F : -0.5F;
  return values;
}

/// Small integers, more of them positive than negative, some 0.
std::vector<float> many_buckets(size_t count) {
  RandomSequence random(RandomKey::from(count));
  std::vector<float> values;
  for (size_t i = 0; i < count; ++i) {
    const auto magnitude = static_cast<float>(random.next_below(24) * random.next_below(24));
    values.push_back(random.next_below(3) == 0 ? -magnitude : magnitude);
  }
  for (float& value : values) value += 0.0F;  // no -0: a reader of a sketch returns +0
  return values;
}

/// ±0.5, but for every eighth.
std::vector<float> mostly_one_magnitude(size_t count) {
  RandomSequence random(RandomKey::from(count));
  std::vector<float> values;
  for (size_t i = 0; i < count; ++i) {
    const auto exact = static_cast<float>(1 + random.next_below(9));
    values.push_back(i % 8 == 5 ? exact : random.next_below(3) == 0 ? -0.5F : 0.5F);
  }
  return values;
}

/// The one that every codec with all of its parameters has.
const char* const kEveryParameter = "twenty, both signs and zeros";

std::vector<ValueInput> value_inputs() {
  const auto indices = some_indices;
  std::vector<float> twenty = gradient_like_values(20);
  twenty[3] = twenty[11] = 0;
  twenty[19] = twenty[18];
  std::vector<ValueInput> inputs = {
      {"nothing", {}, {}},
      {"one", indices(1), {1.5F}},
      {"a few", {1, 4, 5}, {1, -2, 0.5F}},
      {"equal", indices(9), std::vector<float>(9, -0.25F)},
      {"equal magnitudes", indices(8), {0.25F, -0.25F, 0.25F, 0.25F, -0.25F, 0.25F, 0.25F, -0.25F}},
      {"one magnitude and others", indices(9), {2, -2, 2, 0.75F, 2, -2, -3.5F, 2, 2}},
      {"zeros", indices(7), {0, 0, -0.0F, 0, 0, 0, 0}},
      {"denormals", indices(6), {0x1p-149F, -0x1p-135F, 0x1p-126F, 0x1.8p-128F, -0.0F, -0x1.2p-126F}},
      {"far apart", indices(5), {0x1p100F, -0x1p-100F, 1, -0x1.fffffep+90F, 0x1p60F}},
      {"dense", {}, {0.5F, 0, -1, 0, 0, 0.25F, 0, 0.125F, -3, 0, 0, 1}},
      {kEveryParameter, indices(20), twenty},
      {"hundred", indices(100), gradient_like_values(100)},
  };
  inputs.push_back({"mostly zeros, dense", {}, mostly_zeros(140), {"three_lc"}});
  inputs.push_back({"many buckets",
                    indices(300),
                    many_buckets(300),
                    {"sketchml", "skcompress", "sketchml_mean", "skcompress_mean", "deflate"}});
  inputs.push_back(
      {"mostly one magnitude", indices(150), mostly_one_magnitude(150), {"gspar_hybrid", "gspar_entropy"}});
  return inputs;
}

VectorJson value_stream_json(const ValueInput& input) {
  VectorJson json = {{"name", input.name}};
  put_indices(json, "indices", input.indices);
  put_values(json, "values", input.values);
  return json;
}

VectorJson value_vector(const ValueCodec& codec, const CodecSpec& spec, const ValueInput& input) {
  const VectorDraws draws{.seed = 1, .part = 2, .step = 3, .worker = 4};
  const EncodeOptions options{.spec = spec, .random = draws.key(), .index_base = 1'000};
  VectorJson json = {{"name", codec.text(spec) + ", " + input.name}, {"codec", codec.text(spec)}, {"id", codec.id()}};
  json["encoding"] = kFreeValueCodecs.contains(codec.name()) ? "free" : "fixed";
  if (!codec.lossless(spec)) {
    json["random"] = draws_json(draws);
    json["index_base"] = options.index_base;
  }
  json["stream"] = input.name;
  ByteBuffer bytes;
  std::vector<float> decoded(codec.lossless(spec) ? 0 : input.values.size());
  const Status coded = codec.encode(input.indices, std::span<const float>(input.values), options, bytes, decoded);
  if (!coded) {
    json["refused"] = error_code_name(coded.error().code);
    return json;
  }
  json["bytes"] = hex_text(bytes);
  if (!codec.lossless(spec)) put_values(json, "decoded", decoded);
  return json;
}

/// In how many parameters two specifications of one codec differ.
int differences(const CodecSpec& one, const CodecSpec& other) {
  return (one.qsgd_bits != other.qsgd_bits ? 1 : 0) + (one.qsgd_scale_max != other.qsgd_scale_max ? 1 : 0) +
         (one.bucket_size != other.bucket_size ? 1 : 0);
}

/// specs_of() and, of the codecs that have bits, all numbers of them.
std::vector<CodecSpec> specs_of_vectors(const ValueCodec& codec) {
  std::vector<CodecSpec> specs = specs_of(codec);
  for (const uint32_t bits : {6U, 7U}) {
    CodecSpec spec = specs.front();
    spec.qsgd_bits = bits;
    if (codec.text(spec) != codec.text(specs.front())) specs.push_back(spec);
  }
  return specs;
}

/// Codes that no encoder of this project makes, and that a reader must read: `bytes` stands for `decoded`.
VectorJson vector_by_hand(const std::string& codec, const std::string& what, const ValueInput& input,
                          const ByteBuffer& bytes, const std::vector<float>& decoded) {
  VectorJson json = {{"name", codec + ", " + what}, {"codec", codec}};
  json["id"] = codec_from_text("raw+" + codec).value().value;
  json["encoding"] = "by_hand";
  json["stream"] = input.name;
  json["bytes"] = hex_text(bytes);
  put_values(json, "decoded", decoded);
  return json;
}

void add_vectors_by_hand(const ValueInput& few, VectorJson& vectors) {
  // Scale 7, so that the unit is 1; codes 8 (level 0 with a sign), 3, 15.
  const ByteBuffer signed_zero = {4, 2, 0, 0, 0, 2, 0, 0, 0, 0, 0xe0, 0x40, 0x38, 0x0f};
  vectors.push_back(vector_by_hand("qsgd4", "a sign on level 0", few, signed_zero, {0, 3, -7}));
  // Levels above 0 under scale 0: a code whose scale is overwritten.
  const std::pair<const char*, size_t> scales[] = {{"qsgd4", 8}, {"qsgd_elias4", 8}, {"terngrad", 4}};
  for (const auto& [codec, scale_at] : scales) {
    const CodecSpec spec = codec_from_text(std::string("raw+") + codec).value();
    ByteBuffer bytes;
    std::vector<float> decoded(few.values.size());
    const EncodeOptions options{.spec = spec, .random = VectorDraws{}.key(), .index_base = 0};
    EXPECT_TRUE(
        find_value_codec(spec.value)->encode(few.indices, std::span<const float>(few.values), options, bytes, decoded));
    EXPECT_TRUE(std::ranges::any_of(decoded, [](float value) { return value < 0; })) << codec << ": no sign to turn";
    std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(scale_at), sizeof(float), uint8_t{0});
    vectors.push_back(vector_by_hand(codec, "levels under scale 0", few, bytes, std::vector<float>(decoded.size())));
  }
}

VectorJson value_vectors() {
  VectorJson json = vector_file_head(kValueFile);
  json["streams"] = VectorJson::array();
  json["vectors"] = VectorJson::array();
  const std::vector<ValueInput> inputs = value_inputs();
  for (const ValueInput& input : inputs) json["streams"].push_back(value_stream_json(input));
  for (const ValueCodec* codec : value_codecs()) {
    const std::vector<CodecSpec> specs = specs_of_vectors(*codec);
    for (const CodecSpec& spec : specs) {
      if (differences(spec, specs.front()) > 1) continue;
      for (const ValueInput& input : inputs) {
        if (spec != specs.front() && input.name != kEveryParameter) continue;
        if (!input.only.empty() && !input.only.contains(codec->name())) continue;
        json["vectors"].push_back(value_vector(*codec, spec, input));
      }
    }
  }
  const auto few = std::ranges::find(inputs, "a few", &ValueInput::name);
  add_vectors_by_hand(*few, json["vectors"]);
  return json;
}

TEST(ValueVectors, EveryInstructionSetReproducesTheVectors) {
  for_each_isa([](const std::string& isa) {
    SCOPED_TRACE(isa);
    expect_vectors(kValueFile, value_vectors());
  });
}

void expect_decodes(const ValueCodec& codec, const VectorJson& vector, const VectorJson& stream) {
  const IndexBuffer indices = get_indices(stream, "indices");
  const std::vector<float> said =
      vector.contains("decoded") ? get_values(vector, "decoded") : get_values(stream, "values");
  const ByteBuffer bytes = bytes_of(vector.at("bytes"));
  const Status fits = codec.check(bytes, said.size());
  ASSERT_TRUE(fits) << fits.error().message;
  std::vector<float> decoded(said.size());
  const Status read = codec.decode(bytes, indices, std::span<float>(decoded));
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_TRUE(same_value_bits(decoded, said));
  expect_truncations_refused(bytes, [&](const ByteBuffer& cut) {
    std::vector<float> ignored(said.size());
    return !codec.check(cut, said.size()) || !codec.decode(cut, indices, std::span<float>(ignored));
  });
}

TEST(ValueVectors, DecodeAsTheySayAndNoTruncationIsRead) {
  const VectorJson file = read_vectors(kValueFile);
  std::set<uint64_t> seen;
  for (const VectorJson& vector : file.at("vectors")) {
    SCOPED_TRACE(vector.at("name").get<std::string>());
    const ValueCodec* codec = find_value_codec(vector.at("id").get<ValueCodecId>());
    ASSERT_NE(codec, nullptr);
    const auto spec = codec_from_text("raw+" + vector.at("codec").get<std::string>());
    ASSERT_TRUE(spec) << spec.error().message;
    EXPECT_EQ(spec->value, codec->id());
    if (vector.contains("refused")) continue;
    seen.insert(vector.at("id").get<uint64_t>());
    for (const VectorJson& stream : file.at("streams")) {
      if (stream.at("name") == vector.at("stream")) expect_decodes(*codec, vector, stream);
    }
  }
  for (const ValueCodec* codec : value_codecs()) {
    EXPECT_TRUE(seen.contains(static_cast<uint64_t>(codec->id()))) << codec->name() << " has no vector";
  }
}

TEST(ValueVectors, TakeEveryFormOfTheCodecs) {
  std::set<uint32_t> qsgd_bits;
  std::set<uint32_t> elias_bits;
  std::set<std::string> sketches;  // with cells of several buckets, of either sign
  int planes_max = 0;
  bool has_words = false;  // of gspar_entropy
  const VectorJson file = read_vectors(kValueFile);
  for (const VectorJson& vector : file.at("vectors")) {
    if (vector.contains("refused")) continue;
    const ByteBuffer bytes = bytes_of(vector.at("bytes"));
    const auto name = std::string(find_value_codec(vector.at("id").get<ValueCodecId>())->name());
    if (name == "qsgd") qsgd_bits.insert(bytes.at(0));
    if (name == "qsgd_elias") elias_bits.insert(bytes.at(0));
    if (name == "deflate") planes_max = std::max(planes_max, std::popcount(bytes.at(0)));
    if (name.starts_with("sk") && bytes.size() > 10 && bytes[8] >= 5 && bytes[9] >= 5) sketches.insert(name);
    if (name == "gspar_entropy" && bytes.at(0) == 1) {
      ByteReader fields(ByteSpan(bytes).subspan(8));
      has_words = has_words || bytes.size() > 20 + 4 * uint64_t{*fields.get<uint32_t>()};
    }
  }
  EXPECT_EQ(qsgd_bits, (std::set<uint32_t>{2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(elias_bits, qsgd_bits);
  EXPECT_EQ(sketches.size(), 4U);
  EXPECT_GE(planes_max, 2) << "no deflate code has two deflated planes";
  EXPECT_TRUE(has_words);
}

}  // namespace
}  // namespace millrace::testing
