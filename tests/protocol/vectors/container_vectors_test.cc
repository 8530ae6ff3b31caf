// protocol/vectors/container.json and history.json: whole containers, and containers that travel by a history.
#include "protocol/container/container.h"

#include <gtest/gtest.h>

#include <set>

#include "protocol/container/history_payload.h"
#include "tests/protocol/vectors/vector_file.h"
#include "tests/support/isa.h"
#include "tests/support/oracles/stream_oracle.h"
#include "tests/support/update_log.h"

namespace millrace::testing {
namespace {

constexpr const char* kContainerRule =
    "Raise kContainerVersion in protocol/container/container.h, or where a codec's bytes changed give it another "
    "number "
    "(protocol/wire/versions.md).";

const VectorFile kContainerFile{
    .name = "container.json", .format = "container", .version = kContainerVersion, .change = kContainerRule};
const VectorFile kHistoryFile{
    .name = "history.json", .format = "container", .version = kContainerVersion, .change = kContainerRule};

constexpr uint64_t kSparseDimension = 300;

/// Entries whose values have both signs, zeros and equal magnitudes.
Stream sparse_of_vectors() {
  Stream stream = Stream::empty(kSparseDimension);
  stream.indices = {0, 7, 8, 9, 64, 100, 101, 150, 200, 255, 256, 299};
  stream.values = {0.5F, -0.5F, 0.25F, 0, 1, -3, 0.125F, 0.5F, 0.5F, -0.0625F, 2, -1};
  return stream;
}

/// Returns the input of the selection: every entry has a value.
Stream original_of_vectors() {
  Stream original = to_dense(sparse_of_vectors().view());
  for (size_t i = 0; i < original.values.size(); ++i) {
    if (original.values[i] == 0) original.values[i] = static_cast<float>(i) / 8'192;
  }
  return original;
}

Stream small_dense() {
  Stream stream = Stream::empty(16);
  stream.dense = true;
  stream.values = {0, 1, 0, 0, -2, 0.5F, 0, 0, 0.25F, 0, 0, 0, 0, 3, 0, 0};
  return stream;
}

/// `count` entries, which take 8 bytes each under raw+raw.
Stream entries_of_vectors(uint32_t count) {
  Stream stream = Stream::empty(1'000);
  for (uint32_t i = 0; i < count; ++i) {
    stream.indices.push_back(i * (i + 7) % 5 + 6 * i);
    stream.values.push_back(static_cast<float>(i * i % 101) - 50);
  }
  return stream;
}

struct ContainerInput {
  std::string name;
  Stream stream;
  CodecSpec spec;
};

CodecSpec spec_of_text(const std::string& text) { return codec_from_text(text).value(); }

std::vector<ContainerInput> container_inputs() {
  std::vector<ContainerInput> inputs;
  const auto add = [&](const std::string& what, const Stream& stream, const std::string& text) {
    inputs.push_back({text + ", " + what, stream, spec_of_text(text)});
  };
  Stream documented = Stream::empty(16);
  documented.indices = {1, 4, 5};
  documented.values = {1, -2, 0.5F};
  add("the document's", documented, "gap+raw");
  for (const char* text : {"raw+raw", "gap+raw", "bloom_p0+qsgd4"}) add("nothing", Stream::empty(16), text);
  for (const IndexCodec* codec : index_codecs()) {
    add("sparse", sparse_of_vectors(), std::string(codec->name()) + (codec->takes_rate() ? ":0.05" : ""));
  }
  for (const ValueCodec* codec : value_codecs()) {
    add("values", sparse_of_vectors(), "gap+" + codec->text(CodecSpec{.value = codec->id()}));
    add("dense", small_dense(), "raw+" + codec->text(CodecSpec{.value = codec->id()}));
  }
  for (const char* text : {"adaptive+qsgd4", "bitmap+qsgd2:l2", "raw+bf16", "rice+qsgd8:max:7", "bloom_p0:0.05+qsgd4",
                           "bloom_p2:0.05+f16", "delta_huffman+skcompress", "roaring+deflate"}) {
    add("both", sparse_of_vectors(), text);
  }
  // As much as each way of XXH3 takes: to 240 bytes, over, and over its block of 1,024.
  for (const uint32_t count : {20U, 40U, 140U}) {
    add(std::to_string(count) + " entries", entries_of_vectors(count), "raw+raw");
  }
  const CodecSpec lossy = spec_of_text("bloom_p0:0.05+qsgd4");
  inputs.push_back({"bloom_p0:0.05+qsgd4 of an uncompressed step", sparse_of_vectors(), without_loss(lossy)});
  inputs.push_back({"bloom_p0:0.05+qsgd4 of an uncompressed dense step", small_dense(), without_loss(lossy)});
  return inputs;
}

VectorJson stream_json(const StreamView& stream) {
  VectorJson json;
  json["dense"] = stream.dense;
  if (!stream.dense) put_indices(json, "indices", stream.indices);
  put_values(json, "values", stream.values);
  return json;
}

VectorJson header_json(ByteSpan bytes) {
  const ContainerHeader header = read_container_header(bytes).value();
  return {{"value_type", header.value_type},         {"dense", header.dense},
          {"index_codec", header.index_codec},       {"value_codec", header.value_codec},
          {"dimension", header.dimension},           {"count", header.count},
          {"index_bytes", header.index_bytes},       {"value_bytes", header.value_bytes},
          {"coupling_bytes", header.coupling_bytes}, {"checksum", hex_number(header.checksum)}};
}

bool encodes_freely(const CodecSpec& spec) {
  const std::string_view name = find_value_codec(spec.value)->name();
  return name == "deflate" || name == "fit_poly" || name == "fit_dexp";
}

VectorJson container_vector(const ContainerInput& input) {
  const VectorDraws draws{.seed = 1, .part = 2, .step = 3, .worker = 4};
  const bool lossy_indices = !input.stream.dense && !find_index_codec(input.spec.index)->lossless();
  const EncodeOptions options{.spec = input.spec, .random = draws.key(), .index_base = 1'000};
  const Stream original =
      lossy_indices && input.stream.dimension == kSparseDimension ? original_of_vectors() : Stream{};
  const auto encoded = encode_container(input.stream.view(), original.view(), options);
  VectorJson json = {{"name", input.name}, {"codec", codec_text(input.spec)}, {"dimension", input.stream.dimension}};
  json["encoding"] = encodes_freely(input.spec) ? "free" : "fixed";
  if (is_lossy(input.spec)) {
    json["random"] = draws_json(draws);
    json["index_base"] = options.index_base;
  }
  json["selected"] = stream_json(input.stream.view());
  json["fills"] = original.dimension != 0;
  EXPECT_TRUE(encoded) << input.name << ": " << encoded.error().message;
  if (!encoded) return json;
  json["header"] = header_json(encoded->bytes);
  json["bytes"] = hex_text(encoded->bytes);
  json["decoded"] = stream_json(encoded->exact ? input.stream.view() : encoded->decoded.view());
  return json;
}

VectorJson container_vectors() {
  VectorJson json = vector_file_head(kContainerFile);
  json["original"] = stream_json(original_of_vectors().view());
  json["vectors"] = VectorJson::array();
  for (const ContainerInput& input : container_inputs()) json["vectors"].push_back(container_vector(input));
  return json;
}

void expect_container_is(const VectorJson& said, uint64_t dimension, const Stream& decoded) {
  EXPECT_EQ(decoded.dimension, dimension);
  EXPECT_EQ(decoded.dense, said.at("dense").get<bool>());
  const IndexBuffer indices = decoded.dense ? IndexBuffer{} : get_indices(said, "indices");
  EXPECT_EQ(words_of(decoded.indices), words_of(indices));
  const std::vector<float> values = get_values(said, "values");
  ASSERT_EQ(values.size(), decoded.values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(std::bit_cast<uint32_t>(decoded.values[i]), std::bit_cast<uint32_t>(values[i])) << i;
  }
}

TEST(ContainerVectors, EveryInstructionSetReproducesTheVectors) {
  for_each_isa([](const std::string& isa) {
    SCOPED_TRACE(isa);
    expect_vectors(kContainerFile, container_vectors());
  });
}

TEST(ContainerVectors, DecodeAsTheySayAndNoTruncationIsRead) {
  std::set<uint64_t> index_ids;
  std::set<uint64_t> value_ids;
  const VectorJson file = read_vectors(kContainerFile);
  for (const VectorJson& vector : file.at("vectors")) {
    SCOPED_TRACE(vector.at("name").get<std::string>());
    const ByteBuffer bytes = bytes_of(vector.at("bytes"));
    const auto decoded = read_container(bytes, {});
    ASSERT_TRUE(decoded) << decoded.error().message;
    expect_container_is(vector.at("decoded"), vector.at("dimension"), *decoded);
    EXPECT_EQ(header_json(bytes), vector.at("header"));
    index_ids.insert(vector.at("header").at("index_codec").get<uint64_t>());
    value_ids.insert(vector.at("header").at("value_codec").get<uint64_t>());
    expect_truncations_refused(bytes, [](const ByteBuffer& cut) { return !read_container(cut, {}).has_value(); });
  }
  for (const IndexCodec* codec : index_codecs()) {
    EXPECT_TRUE(index_ids.contains(static_cast<uint64_t>(codec->id()))) << codec->name() << " has no container";
  }
  for (const ValueCodec* codec : value_codecs()) {
    EXPECT_TRUE(value_ids.contains(static_cast<uint64_t>(codec->id()))) << codec->name() << " has no container";
  }
}

TEST(ContainerVectors, HaveSectionsOfAllLengthsThatXxh3Tells) {
  std::set<int> ways;
  const VectorJson file = read_vectors(kContainerFile);
  for (const VectorJson& vector : file.at("vectors")) {
    const size_t sections = bytes_of(vector.at("bytes")).size() - kContainerHeaderBytes;
    int way = 0;
    for (const size_t over : {0, 3, 8, 16, 128, 240, 1'024}) way += sections > over ? 1 : 0;
    ways.insert(way);
  }
  for (const int way : {3, 4, 5, 6, 7}) EXPECT_TRUE(ways.contains(way)) << way;
}

struct HistoryInput {
  std::string name;
  uint64_t dimension = 0;
  std::vector<IndexBuffer> log;  ///< the last one's indices are those that are coded
};

std::vector<HistoryInput> history_inputs() {
  return {
      {"the document's indices", 16, {{2, 9}, {5, 9}, {1, 4, 5}}},
      {"before the first update", 16, {{1, 4, 5}}},
      {"nothing", 16, {{2, 9}, {}}},
      {"in the second period", 300, update_log(300, 36, 1)},
  };
}

VectorJson history_vector(const HistoryInput& input) {
  const size_t position = input.log.size() - 1;
  const IndexHistory history = history_after(input.log, position, input.dimension);
  Stream stream = Stream::empty(input.dimension);
  stream.indices = input.log.back();
  for (size_t i = 0; i < stream.indices.size(); ++i) stream.values.push_back(static_cast<float>(i + 1) / 4);
  const auto plain = encode_container(stream.view(), {}, {.spec = spec_of_text("gap+raw"), .random = {}});
  EXPECT_TRUE(plain);
  const auto shortened = shorten_by_history(plain->bytes, stream.indices, history);
  EXPECT_TRUE(shortened) << input.name << ": " << shortened.error().message;
  VectorJson json = {{"name", input.name}, {"dimension", input.dimension}, {"position", position}};
  json["updates"] = VectorJson::array();
  for (size_t step = 0; step < position; ++step) json["updates"].push_back(words_of(input.log[step]));
  json["history"] = hex_number(history.name());
  json["classes"] = classes_after(input.log, position, input.dimension);
  json["plain"] = hex_text(plain->bytes);
  json["header"] = header_json(*shortened);
  json["bytes"] = hex_text(*shortened);
  json["decoded"] = stream_json(stream.view());
  return json;
}

TEST(HistoryVectors, EveryInstructionSetReproducesTheVectors) {
  for_each_isa([](const std::string& isa) {
    SCOPED_TRACE(isa);
    VectorJson json = vector_file_head(kHistoryFile);
    json["vectors"] = VectorJson::array();
    for (const HistoryInput& input : history_inputs()) json["vectors"].push_back(history_vector(input));
    expect_vectors(kHistoryFile, json);
  });
}

TEST(HistoryVectors, AreRestoredToThePlainContainerAndNoTruncationIsRead) {
  const VectorJson file = read_vectors(kHistoryFile);
  for (const VectorJson& vector : file.at("vectors")) {
    SCOPED_TRACE(vector.at("name").get<std::string>());
    const auto dimension = vector.at("dimension").get<uint64_t>();
    IndexHistory history(dimension);
    for (const VectorJson& update : vector.at("updates")) {
      const auto indices = update.get<std::vector<uint32_t>>();
      history.advance(IndexSpan(indices));
    }
    EXPECT_EQ(hex_number(history.name()), vector.at("history").get<std::string>());
    const ByteBuffer bytes = bytes_of(vector.at("bytes"));
    const auto plain = restore_by_history(bytes, history, {.dimension = dimension});
    ASSERT_TRUE(plain) << plain.error().message;
    EXPECT_EQ(hex_text(*plain), vector.at("plain").get<std::string>());
    expect_container_is(vector.at("decoded"), dimension, read_container(*plain, {}).value());
    expect_truncations_refused(
        bytes, [&](const ByteBuffer& cut) { return !restore_by_history(cut, history, {}).has_value(); });
  }
}

}  // namespace
}  // namespace millrace::testing
