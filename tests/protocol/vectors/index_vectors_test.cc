// protocol/vectors/index.json: each index codec's code of index sets, and the sets that it decodes.
#include <gtest/gtest.h>

#include <set>

#include "kernels/base/bytes.h"
#include "kernels/base/hash.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/index/adaptive_tables.h"
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

/// How the gaps of a block for `adaptive` are drawn. Lengths are sixteenths of an octave.
struct AdaptiveGaps {
  uint64_t seed = 0;
  uint32_t start = 0;   ///< the middle of the first gap
  uint32_t growth = 0;  ///< of the middle in 16 gaps
  uint32_t below = 0;   ///< this far under the middle there are half as many gaps
  uint32_t above = 0;
};

/// Two or three for each shape that the encoder takes. A search took those that use most of the tables.
constexpr AdaptiveGaps kAdaptiveGaps[] = {
    {575, 146, 47, 25, 13}, {422, 242, 47, 17, 22}, {356, 29, 43, 13, 13},  // shape 0
    {723, 252, 46, 17, 7},  {723, 115, 42, 25, 2},  {346, 16, 37, 19, 8},   // 1
    {736, 63, 0, 17, 19},   {556, 270, 7, 25, 23},                          // 2
    {818, 224, 44, 19, 2},  {282, 124, 38, 16, 2},  {919, 11, 39, 13, 6},   // 3
    {993, 201, 0, 7, 21},   {83, 12, 0, 14, 23},    {736, 98, 0, 7, 13},    // 4
    {736, 47, 0, 4, 24},    {150, 290, 45, 21, 7},  {171, 1, 0, 23, 20},    // 5
    {342, 240, 41, 7, 7},   {679, 118, 33, 2, 21},  {397, 26, 36, 14, 9},   // 6
    {746, 48, 31, 6, 6},    {117, 333, 0, 16, 9},   {974, 147, 30, 9, 2},   // 7
};

/// 60 indices with such gaps, or as many as there is room for.
IndexBuffer indices_with_drawn_gaps(const AdaptiveGaps& gaps) {
  constexpr uint64_t kOctave = 16;
  RandomSequence random(RandomKey::from(gaps.seed));
  IndexBuffer indices;
  uint64_t at = 0;
  for (uint32_t i = 0; i < 60; ++i) {
    const bool up = random.next_below(2) == 1;
    const uint32_t half = up ? gaps.above : gaps.below;
    const auto halvings = static_cast<uint32_t>(std::countr_zero(random.next_u32() | uint32_t{1} << 31));
    const auto away = static_cast<int64_t>(halvings * half + random.next_below(half));
    const int64_t middle = gaps.start + i * gaps.growth / 16;
    const auto level = static_cast<uint64_t>(std::clamp<int64_t>(middle + (up ? away : -away), 0, 31 * kOctave));
    at += (kOctave + level % kOctave) << level / kOctave >> 4;
    if (at > uint64_t{1} << 32) break;
    indices.push_back(static_cast<uint32_t>(at - 1));
  }
  return indices;
}

/// An array of 5, a bitmap of every second index, and indices without runs behind them.
IndexBuffer indices_of_a_bitmap_chunk() {
  IndexBuffer indices = {1, 3, 5, 8, 9};
  for (uint32_t i = 0; i < 4'097; ++i) indices.push_back(65'536 + 2 * i);
  indices.push_back(140'000);
  return indices;
}

/// Chunks of runs and arrays in turn, chunk 4 without any: 3 of them, or 9, whose flags take two bytes.
IndexBuffer indices_of_run_chunks(uint32_t chunks) {
  IndexBuffer indices;
  for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
    const uint32_t begin = 65'536 * (chunk + (chunk >= 4 ? 1 : 0));
    if (chunk % 3 == 1) {
      for (const uint32_t low : {2U, 9U, 65'535U}) indices.push_back(begin + low);
      continue;
    }
    for (uint32_t run = 0; run <= chunk; ++run) {
      for (uint32_t i = 0; i < 20 + run; ++i) indices.push_back(begin + 100 * chunk + 5'000 * run + i);
    }
  }
  return indices;
}

/// Indices whose gaps are 0 to gap_max in turn.
IndexBuffer indices_with_gaps_in_turn(size_t count, uint32_t gap_max) {
  IndexBuffer indices;
  uint32_t next = 0;
  for (uint32_t i = 0; i < count; ++i) {
    indices.push_back(next + i % (gap_max + 1));
    next = indices.back() + 1;
  }
  return indices;
}

/// Inputs of one codec each, for forms that no common input takes.
void add_inputs_of_one_codec(std::vector<IndexInput>& inputs) {
  for (const AdaptiveGaps& gaps : kAdaptiveGaps) {
    const IndexBuffer indices = indices_with_drawn_gaps(gaps);
    inputs.push_back(
        {"drawn gaps " + std::to_string(&gaps - kAdaptiveGaps), uint64_t{indices.back()} + 1, indices, "adaptive"});
  }
  inputs.push_back({"a bitmap between arrays", 150'000, indices_of_a_bitmap_chunk(), "roaring"});
  for (const uint32_t chunks : {3, 9}) {
    inputs.push_back(
        {std::to_string(chunks) + " chunks of runs and arrays", 1'000'000, indices_of_run_chunks(chunks), "roaring"});
  }
  for (const uint32_t gap_max : {4, 6, 11, 23}) {
    inputs.push_back({"gaps to " + std::to_string(gap_max), 1'000, indices_with_gaps_in_turn(40, gap_max), "golomb"});
  }
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
  add_inputs_of_one_codec(inputs);
  return inputs;
}

/// Some forms take space or time in proportion to the dimension; of these small ones must do.
uint64_t dimension_in_vectors(const IndexCodec& codec) {
  if (codec.name() == "bitmap") return 8'192;
  return codec.lossless() ? codec.dimension_max() : 65'536;
}

VectorJson index_stream_json(const IndexInput& input) {
  VectorJson json = {{"name", input.name}, {"dimension", input.dimension}};
  VectorJson runs = VectorJson::array();  // begin and end of each
  for (const uint32_t index : input.indices) {
    if (!runs.empty() && runs.back()[1] == index) {
      runs.back()[1] = index + 1;
    } else {
      runs.push_back({index, index + 1});
    }
  }
  if (!input.only.empty() && runs.size() * 2 < input.indices.size()) {
    json["runs"] = std::move(runs);
  } else {
    put_indices(json, "indices", input.indices);
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

/// The hash of all tables of `adaptive`: more than its vectors use.
VectorJson adaptive_tables_json() {
  ByteBuffer bytes;
  ByteWriter writer(bytes);
  for (uint32_t shape = 0; shape < kAdaptiveShapes; ++shape) {
    for (const AdaptiveDecoderState& state : adaptive_tables(shape).decoder) {
      writer.put(uint64_t{state.gap_low});
      writer.put(static_cast<uint8_t>(state.total_bits - state.state_bits));
      writer.put(state.state_bits);
      writer.put(state.next);
    }
  }
  return {{"bytes", bytes.size()}, {"xxh3", hex_number(hash64(bytes))}};
}

VectorJson index_vectors() {
  VectorJson json = vector_file_head(kIndexFile);
  json["adaptive_tables"] = adaptive_tables_json();
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

TEST(IndexVectors, EveryInstructionSetReproducesTheVectors) {
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

TEST(IndexVectors, TakeEveryFormOfTheCodecs) {
  std::set<uint32_t> shapes;
  std::set<uint32_t> parameters;  // of golomb
  size_t roaring_bytes_max = 0;
  std::set<uint32_t> chunks_with_runs;
  const VectorJson file = read_vectors(kIndexFile);
  for (const VectorJson& vector : file.at("vectors")) {
    const ByteBuffer bytes = bytes_of(vector.at("bytes"));
    if (bytes.size() < 4) continue;
    const uint32_t first = *ByteReader(bytes).get<uint32_t>();
    if (vector.at("codec") == "adaptive") shapes.insert(first & 31);
    if (vector.at("codec") == "golomb") parameters.insert(first);
    if (vector.at("codec") != "roaring") continue;
    roaring_bytes_max = std::max(roaring_bytes_max, bytes.size());
    if ((first & 0xffff) == 12'347) chunks_with_runs.insert((first >> 16) + 1);
  }
  EXPECT_EQ(shapes.size(), kAdaptiveShapes);
  for (const uint32_t parameter : {1, 2, 4}) EXPECT_TRUE(parameters.contains(parameter)) << "golomb " << parameter;
  EXPECT_GT(roaring_bytes_max, 8'192U) << "no bitmap chunk";
  for (const uint32_t chunks : {1, 3, 9}) EXPECT_TRUE(chunks_with_runs.contains(chunks)) << chunks << " chunks";
}

}  // namespace
}  // namespace millrace::testing
