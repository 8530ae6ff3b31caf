// protocol/vectors/value.json: each value codec's code of values, and the values that it decodes.
#include <gtest/gtest.h>

#include <set>

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

/// The one that every codec with all of its parameters has.
const char* const kEveryParameter = "twenty, both signs and zeros";

/// Long, and for the codec that shortens runs of zeros.
const char* const kRunsOfZeros = "mostly zeros, dense";

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
  inputs.push_back({kRunsOfZeros, {}, mostly_zeros(140)});
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

VectorJson value_vectors() {
  VectorJson json = vector_file_head(kValueFile);
  json["streams"] = VectorJson::array();
  json["vectors"] = VectorJson::array();
  const std::vector<ValueInput> inputs = value_inputs();
  for (const ValueInput& input : inputs) json["streams"].push_back(value_stream_json(input));
  for (const ValueCodec* codec : value_codecs()) {
    const std::vector<CodecSpec> specs = specs_of(*codec);
    for (const CodecSpec& spec : specs) {
      if (differences(spec, specs.front()) > 1) continue;
      for (const ValueInput& input : inputs) {
        if (spec != specs.front() && input.name != kEveryParameter) continue;
        if (input.name == kRunsOfZeros && codec->name() != "three_lc") continue;
        json["vectors"].push_back(value_vector(*codec, spec, input));
      }
    }
  }
  return json;
}

TEST(ValueVectors, AreWhatTheCodeMakesOnEveryInstructionSet) {
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

}  // namespace
}  // namespace millrace::testing
