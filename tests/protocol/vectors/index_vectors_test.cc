// protocol/vectors/index.json: each index codec's code of index sets, and the sets that it decodes.
#include <gtest/gtest.h>

#include <set>

#include "kernels/codec/codec.h"
#include "tests/protocol/vectors/vector_file.h"
#include "tests/support/isa.h"

namespace millrace::testing {
namespace {

const VectorFile kIndexFile{
    .name = "index.json",
    .format = "index codecs",
    .change = "A codec has no version: give it another number and name (protocol/wire/versions.md).",
};

struct IndexInput {
  std::string name;
  uint64_t dimension = 0;
  IndexBuffer indices;
  std::string only = {};  ///< the one codec that it is for
};

/// `count` indices with gaps below `gap_bound`, but for every 50th, which is eight times as far away.
IndexBuffer indices_with_gaps(size_t count, uint64_t gap_bound) {
  RandomSequence random(RandomKey::from(count));
  IndexBuffer indices;
  uint64_t at = 0;
  for (size_t i = 0; i < count; ++i) {
    at += random.next_below(gap_bound) * (i % 50 == 49 ? 8 : 1);
    indices.push_back(static_cast<uint32_t>(at++));
  }
  return indices;
}

IndexBuffer consecutive_indices(uint32_t begin, uint32_t end) {
  IndexBuffer indices;
  for (uint32_t index = begin; index < end; ++index) indices.push_back(index);
  return indices;
}

std::vector<IndexInput> index_inputs() {
  std::vector<IndexInput> inputs = {
      {"nothing", 16, {}},
      {"nothing of one", 1, {}},
      {"the only one", 1, {0}},
      {"one", 1'000, {421}},
      {"first and last", 1'000, {0, 999}},
      {"a few", 16, {1, 4, 5}},
      {"all of 33", 33, consecutive_indices(0, 33)},
      {"all of 64", 64, consecutive_indices(0, 64)},
      {"the last 5", 65'536, consecutive_indices(65'531, 65'536)},
      {"runs", 500, {0, 1, 2, 3, 100, 101, 102, 255, 256, 257, 258, 499}},
      {"large gaps", 1'000'000, {7, 300'000, 300'001, 900'000, 999'999}},
      {"the end of the range", uint64_t{1} << 32, {0, 2'147'483'648, 4'294'967'294, 4'294'967'295}},
      {"the very last", uint64_t{1} << 32, {4'294'967'295}},
  };
  for (const size_t count : {255, 256, 257, 300}) {
    inputs.push_back(
        {std::to_string(count) + " entries", 8'192, indices_with_gaps(count, 24), count == 257 ? "" : "gap"});
  }
  IndexBuffer blocks = consecutive_indices(0, 512);
  for (const uint32_t index : {600U, 5'000U, 5'001U}) blocks.push_back(index);
  inputs.push_back({"two blocks of neighbours and three", 8'192, blocks, "gap"});
  inputs.push_back({"16,386 neighbours", 20'000, consecutive_indices(3'000, 19'386), "adaptive"});
  inputs.push_back({"16,386 neighbours", 20'000, consecutive_indices(3'000, 19'386), "streamvbyte"});
  return inputs;
}

/// Some forms take space or time in proportion to the dimension; of these small ones must do.
uint64_t dimension_in_vectors(const IndexCodec& codec) {
  if (codec.name() == "bitmap") return 8'192;
  return codec.lossless() ? codec.dimension_max() : 65'536;
}

VectorJson index_stream_json(const IndexInput& input) {
  VectorJson json = {{"name", input.name}, {"dimension", input.dimension}};
  if (input.only.empty() || input.only == "gap") {
    put_indices(json, "indices", input.indices);
  } else {
    // Mostly neighbours: begin and end of each run.
    json["runs"] = VectorJson::array();
    for (const uint32_t index : input.indices) {
      auto& runs = json["runs"];
      if (!runs.empty() && runs.back()[1] == index) {
        runs.back()[1] = index + 1;
      } else {
        runs.push_back({index, index + 1});
      }
    }
  }
  return json;
}

IndexBuffer indices_of_stream(const VectorJson& stream) {
  if (stream.contains("indices")) return get_indices(stream, "indices");
  IndexBuffer indices;
  for (const VectorJson& run : stream.at("runs")) {
    const IndexBuffer of_run = consecutive_indices(run[0], run[1]);
    indices.insert(indices.end(), of_run.begin(), of_run.end());
  }
  return indices;
}

VectorJson index_vector(const IndexCodec& codec, const IndexInput& input, double rate) {
  const VectorDraws draws{.seed = 1, .part = 2, .step = 3, .worker = 4};
  EncodeOptions options;
  options.spec.index = codec.id();
  options.spec.bloom_false_positive_rate = rate;
  options.random = draws.key();
  std::string name = std::string(codec.name());
  if (codec.takes_rate()) name += ":" + VectorJson(rate).dump();
  VectorJson json = {{"name", name + ", " + input.name}, {"codec", codec.name()}, {"id", codec.id()}};
  if (codec.takes_rate()) {
    json["rate"] = rate;
    json["random"] = draws_json(draws);
  }
  json["stream"] = input.name;
  ByteBuffer bytes;
  IndexBuffer decoded;
  const Status coded =
      codec.encode(input.indices, input.dimension, options, bytes, codec.lossless() ? nullptr : &decoded);
  EXPECT_TRUE(coded) << json["name"] << ": " << coded.error().message;
  if (codec.lossless()) decoded = input.indices;
  json["count"] = decoded.size();
  json["bytes"] = hex_text(bytes);
  if (!codec.lossless()) put_indices(json, "decoded", decoded);
  return json;
}

VectorJson index_vectors() {
  VectorJson json = vector_file_head(kIndexFile);
  json["streams"] = VectorJson::array();
  json["vectors"] = VectorJson::array();
  std::set<std::string> listed;
  const std::vector<IndexInput> inputs = index_inputs();
  for (const IndexInput& input : inputs) {
    if (listed.insert(input.name).second) json["streams"].push_back(index_stream_json(input));
  }
  for (const IndexCodec* codec : index_codecs()) {
    for (const IndexInput& input : inputs) {
      if (input.dimension > dimension_in_vectors(*codec)) continue;
      if (!input.only.empty() && input.only != codec->name()) continue;
      json["vectors"].push_back(index_vector(*codec, input, 0.001));
      if (codec->takes_rate() && input.name == "runs") {
        for (const double rate : {0.05, 0.6}) json["vectors"].push_back(index_vector(*codec, input, rate));
      }
    }
  }
  return json;
}

const VectorJson& stream_named(const VectorJson& file, const VectorJson& name) {
  for (const VectorJson& stream : file.at("streams")) {
    if (stream.at("name") == name) return stream;
  }
  ADD_FAILURE() << "no stream " << name;
  return file.at("streams").at(0);
}

TEST(IndexVectors, AreWhatTheCodeMakesOnEveryInstructionSet) {
  for_each_isa([](const std::string& isa) {
    SCOPED_TRACE(isa);
    expect_vectors(kIndexFile, index_vectors());
  });
}

TEST(IndexVectors, DecodeAsTheySayAndNoTruncationIsRead) {
  const VectorJson file = read_vectors(kIndexFile);
  std::set<uint64_t> seen;
  for (const VectorJson& vector : file.at("vectors")) {
    SCOPED_TRACE(vector.at("name").get<std::string>());
    const IndexCodec* codec = find_index_codec(vector.at("id").get<IndexCodecId>());
    ASSERT_NE(codec, nullptr);
    EXPECT_EQ(codec->name(), vector.at("codec").get<std::string>());
    seen.insert(vector.at("id").get<uint64_t>());
    const VectorJson& stream = stream_named(file, vector.at("stream"));
    const auto dimension = stream.at("dimension").get<uint64_t>();
    const auto count = vector.at("count").get<uint64_t>();
    const ByteBuffer bytes = bytes_of(vector.at("bytes"));
    IndexBuffer decoded;
    const Status read = codec->decode(bytes, dimension, count, decoded);
    ASSERT_TRUE(read) << read.error().message;
    const IndexBuffer said = vector.contains("decoded") ? get_indices(vector, "decoded") : indices_of_stream(stream);
    EXPECT_EQ(words_of(decoded), words_of(said));
    expect_truncations_refused(bytes, [&](const ByteBuffer& cut) {
      IndexBuffer ignored;
      return !codec->decode(cut, dimension, count, ignored).has_value();
    });
  }
  for (const IndexCodec* codec : index_codecs()) {
    EXPECT_TRUE(seen.contains(static_cast<uint64_t>(codec->id()))) << codec->name() << " has no vector";
  }
}

}  // namespace
}  // namespace millrace::testing
