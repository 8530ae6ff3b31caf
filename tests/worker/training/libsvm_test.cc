#include "worker/training/data/libsvm.h"

#include <bzlib.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lzma.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <array>
#include <filesystem>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "kernels/base/random.h"
#include "kernels/stream/stream.h"
#include "tests/support/libsvm_text.h"
#include "tests/worker/temporary_folder.h"
#include "worker/training/data/libsvm_writer.h"

namespace millrace::training {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Result<Dataset> parse(std::string_view text, const LibsvmOptions& options = {}) {
  return millrace::testing::parse_libsvm(text, "a.svm", options);
}

std::string libsvm_refusal(std::string_view text, const LibsvmOptions& options = {}) {
  const auto data = parse(text, options);
  if (data) return "accepted";
  EXPECT_EQ(data.error().code, ErrorCode::kMalformed);
  return data.error().message;
}

TEST(Libsvm, RowsLabelsAndEntriesAreReadAndIndicesCountFromZero) {
  const auto data = parse("+1 1:0.5 3:-2e-1\n# a comment\n\n-1\n+1 2:+4 # trailing\r\n-1 7:0 9:1\n");
  ASSERT_TRUE(data) << data.error().message;
  EXPECT_EQ(data->rows(), 4U);
  EXPECT_EQ(data->rows_in_file, 4U);
  EXPECT_EQ(data->dimension, 9U);
  EXPECT_THAT(data->labels, ElementsAre(1, -1, 1, -1));
  EXPECT_THAT(data->row(0).indices, ElementsAre(0, 2));
  EXPECT_THAT(data->row(0).values, ElementsAre(0.5F, -0.2F));
  EXPECT_TRUE(data->row(1).indices.empty());
  EXPECT_THAT(data->row(2).values, ElementsAre(4.0F));
  EXPECT_THAT(data->row(3).indices, ElementsAre(8)) << "an entry of value 0 is not stored";
}

TEST(Libsvm, AByteOrderMarkAtTheBeginningIsNoPartOfTheFirstLabel) {
  EXPECT_EQ(parse("\xEF\xBB\xBF+1 1:1\r\n-1 2:1\r\n")->rows(), 2U);
  EXPECT_THAT(libsvm_refusal("1 1:1\n\xEF\xBB\xBF"
                             "0 1:1\n"),
              HasSubstr("a.svm:2: the label"));
}

TEST(Libsvm, TheLastLineNeedsNoNewline) { EXPECT_EQ(parse("1 1:1\n0 2:1")->rows(), 2U); }

TEST(Libsvm, EachPairOfLabelsIsMappedAsStated) {
  const std::map<std::string, LabelPair> texts = {{"0 1:1\n1 1:1\n", LabelPair::kZeroOne},
                                                  {"-1 1:1\n+1 1:1\n", LabelPair::kMinusPlusOne},
                                                  {"1 1:1\n2.0 1:1\n", LabelPair::kOneTwo}};
  for (const auto& [text, pair] : texts) {
    const auto data = parse(text);
    ASSERT_TRUE(data) << text;
    EXPECT_EQ(data->label_pair, pair);
    EXPECT_THAT(data->labels, ElementsAre(-1, 1)) << label_pair_text(pair);
  }
}

TEST(Libsvm, ARefusalNamesTheFileAndLine) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"1 1:1\n0 2\n", "a.svm:2: '2' is not INDEX:VALUE"},
      {"1 1:1\n0 x:1\n", "a.svm:2: the index in 'x:1' is not a whole number"},
      {"1 1:1\n0 -1:1\n", "a.svm:2: the index in '-1:1' is not a whole number"},
      {"1 1.5:1\n", "a.svm:1: the index in '1.5:1' is not a whole number"},
      {"1 :1\n", "a.svm:1: the index in ':1' is not a whole number"},
      {"1 0:1\n",
       "a.svm:1: index 0 in '0:1': LIBSVM counts from 1; a file that counts from 0 is read with --index-base 0"},
      {"1 3:1 2:1\n", "a.svm:1: index 2 after 3: the indices of a row must increase"},
      {"1 3:1 3:1\n", "a.svm:1: index 3 after 3: the indices of a row must increase"},
      {"1 4294967297:1\n", "a.svm:1: the index in '4294967297:1' is above 2^32, the largest there is"},
      {"1 99999999999999999999999:1\n", "above 2^32"},
      {"1 1:nan\n", "a.svm:1: the value in '1:nan' is not a finite number"},
      {"1 1:inf\n", "is not a finite number"},
      {"1 1:infinity\n", "is not a finite number"},
      {"1 1:1e39\n", "a.svm:1: the value in '1:1e39' is too large for f32, whose largest is 3.4e38"},
      {"1 1:-1e39\n", "is too large for f32"},
      {"1 1:1e999\n", "is too large for f32"},
      {"1 1:1e400x\n", "is not a finite number"},
      {"1 1:\n", "is not a finite number"},
      {"1 1:0x10\n", "is not a finite number"},
      {"1 1:1 qid:3\n", "a.svm:1: the index in 'qid:3' is not a whole number"},
      {"1,1,0.5\n", "a.svm:1: the label '1,1,0.5' is not a number; it looks like CSV"},
      {"1 1:2:0.5\n", "is not a finite number; it looks like LIBFFM's FIELD:INDEX:VALUE"},
      {"1|a 1:2\n", "is not a number; it looks like Vowpal Wabbit's format"},
      {"1e999 1:1\n", "the label '1e999' is not a number"},
      {"cat 1:1\n", "a.svm:1: the label 'cat' is not a number"},
      {"nan 1:1\n", "a.svm:1: the label 'nan' is not a number"},
      {"+-1 1:1\n", "a.svm:1: the label '+-1' is not a number"},
      {"1 1:+-1\n", "a.svm:1: the value in '1:+-1' is not a finite number"},
      {"1 1:1\n0 1:1\n2 1:1\n", "a.svm:3: a third class, '2'; seen before: 0 (line 2) 1 (line 1)"},
      {"3 1:1\n5 1:1\n", "a.svm: its labels are 3 and 5; write the two classes as 0 and 1, -1 and +1, or 1 and 2"},
      {"1 1:1\n1 2:1\n", "a.svm: all of its 2 rows have the label 1; two classes are needed"},
      {"", "a.svm: it holds no rows"},
      {"\n# nothing\n", "a.svm: it holds no rows"},
  };
  for (const auto& [text, sentence] : cases) EXPECT_THAT(libsvm_refusal(text), HasSubstr(sentence)) << text;
}

TEST(Libsvm, TokensOfHostileFilesAreShortenedAndMadePrintable) {
  const std::string sentence = libsvm_refusal("1 " + std::string(10'000, '\x1b') + "\n");
  EXPECT_LT(sentence.size(), 120U);
  EXPECT_EQ(sentence.find('\x1b'), std::string::npos);
}

TEST(Libsvm, AnIndexPastTheDimensionIsRefusedAndTheLastOneIsNot) {
  EXPECT_EQ(parse("1 10:1\n0 1:1\n", {.dimension = 10})->dimension, 10U);
  EXPECT_EQ(
      libsvm_refusal("1 1:1\n0 11:1\n", {.dimension = 10}),
      "a.svm:2: index 11 is above 10, the largest of --dimension 10; give --dimension 11 or more, or leave it out");
}

// A number that no f64 holds is no reason to refuse a file: it is 0, as every reader of such files has it.
TEST(Libsvm, ValuesThatAreTooSmallAreNothing) {
  const auto data = parse("1 1:1e-400 2:1e-50 3:-1e-400 4:1e-310 5:1\n0 1:1e-46 2:1e-45\n");
  ASSERT_TRUE(data) << data.error().message;
  EXPECT_THAT(data->row(0).indices, ElementsAre(4));
  EXPECT_THAT(data->row(1).indices, ElementsAre(1)) << "the smallest f32";
  EXPECT_EQ(data->dimension, 5U);
}

TEST(Libsvm, TheNumberOfAQueryIsSkipped) {
  const auto data = parse("1 qid:3 1:1\n0 qid:10 # nothing\n");
  ASSERT_TRUE(data) << data.error().message;
  EXPECT_THAT(data->row(0).indices, ElementsAre(0));
  EXPECT_TRUE(data->row(1).indices.empty());
}

TEST(Libsvm, AZeroBasedFileIsReadWithIndexBaseZero) {
  const LibsvmOptions from_zero{.index_base = IndexBase::kZero};
  const auto data = parse("1 0:1 2:2\n0 4:1\n", from_zero);
  ASSERT_TRUE(data) << data.error().message;
  EXPECT_THAT(data->row(0).indices, ElementsAre(0, 2));
  EXPECT_EQ(data->dimension, 5U);
  EXPECT_EQ(data->written_as(), (TrainedOn{LabelPair::kZeroOne, IndexBase::kZero}));
  EXPECT_THAT(libsvm_refusal("1 3:1 2:1\n", from_zero), HasSubstr("index 2 after 3"));
  EXPECT_THAT(libsvm_refusal("1 0:1 0:1\n", from_zero), HasSubstr("index 0 after 0"));
  EXPECT_THAT(libsvm_refusal("1 4294967296:1\n", from_zero), HasSubstr("above 2^32 - 1"));
  EXPECT_EQ(parse("1 4294967295:1\n0 1:1\n", from_zero)->dimension, kDimensionMax);
  EXPECT_EQ(parse("1 4294967296:1\n0 1:1\n")->dimension, kDimensionMax);
}

TEST(Libsvm, TheLineOfTheLargestIndexIsKnown) {
  EXPECT_EQ(parse("# c\n1 1:1 7:1\n0 9:1\n1 9:1\n")->largest_index_line, 3U);
  EXPECT_EQ(parse("1\n0\n")->largest_index_line, 0U);
}

LibsvmOptions held_out_options(std::optional<LabelPair> pair = LabelPair::kMinusPlusOne, uint64_t dimension = 3) {
  return {.dimension = dimension, .use = RowUse::kHeldOut, .trained_pair = pair};
}

TEST(HeldOut, FeaturesThatTrainingLackedAreLeftOutAndCounted) {
  const auto data = parse("1 1:1 4:2 4294967296:1\n-1 3:1 5:0\n", held_out_options());
  ASSERT_TRUE(data) << data.error().message;
  EXPECT_EQ(data->dimension, 3U);
  EXPECT_EQ(data->entries_left_out, 3U);
  EXPECT_THAT(data->row(0).indices, ElementsAre(0));
  EXPECT_THAT(data->row(1).indices, ElementsAre(2));
  EXPECT_THAT(libsvm_refusal("1 4:1 3:1\n", held_out_options()), HasSubstr("must increase"))
      << "they are checked all the same";
  EXPECT_THAT(libsvm_refusal("1 4:x\n", held_out_options()), HasSubstr("is not a finite number"));
}

/// The labels of rows as the model's training has them: every pair of labels in the file by every pair of the model.
TEST(HeldOut, HeldOutLabelsKeepTheirTrainingMeaning) {
  struct Case {
    LabelPair trained;
    const char* labels;
    std::vector<int> expected;  ///< empty: refused
  };
  const std::vector<Case> cases = {
      {LabelPair::kZeroOne, "0 1", {-1, 1}},
      {LabelPair::kZeroOne, "0", {-1}},
      {LabelPair::kZeroOne, "1", {1}},
      {LabelPair::kZeroOne, "-1 1", {-1, 1}},
      {LabelPair::kZeroOne, "-1", {-1}},
      {LabelPair::kZeroOne, "1 2", {}},
      {LabelPair::kZeroOne, "2", {}},
      {LabelPair::kZeroOne, "0 -1", {}},
      {LabelPair::kMinusPlusOne, "-1 +1", {-1, 1}},
      {LabelPair::kMinusPlusOne, "+1", {1}},
      {LabelPair::kMinusPlusOne, "-1", {-1}},
      {LabelPair::kMinusPlusOne, "0 1", {-1, 1}},
      {LabelPair::kMinusPlusOne, "1 2", {}},
      {LabelPair::kMinusPlusOne, "5", {}},
      {LabelPair::kOneTwo, "1 2", {-1, 1}},
      {LabelPair::kOneTwo, "1", {-1}},
      {LabelPair::kOneTwo, "2", {1}},
      {LabelPair::kOneTwo, "0 1", {}},
      {LabelPair::kOneTwo, "-1 1", {}},
      {LabelPair::kOneTwo, "0", {}},
  };
  for (const Case& one : cases) {
    std::string text;
    std::stringstream labels(one.labels);
    for (std::string label; labels >> label;) text += label + " 1:1\n";
    const auto data = parse(text, held_out_options(one.trained));
    ASSERT_EQ(data.has_value(), !one.expected.empty()) << label_pair_text(one.trained) << ": " << one.labels;
    if (!data) {
      EXPECT_THAT(data.error().message, HasSubstr(label_pair_text(one.trained))) << one.labels;
      continue;
    }
    EXPECT_EQ(std::vector<int>(data->labels.begin(), data->labels.end()), one.expected) << one.labels;
  }
  EXPECT_THAT(libsvm_refusal("1 1:1\n2 1:1\n", held_out_options(LabelPair::kZeroOne)),
              HasSubstr("its label 2 is none of those that the model was trained on (0 is negative, 1 is positive)"));
}

TEST(HeldOut, OfAModelThatDoesNotSayHowItWasTrainedOnlyAOneAloneIsNotKnown) {
  EXPECT_THAT(parse("0 1:1\n1 1:1\n", held_out_options({}))->labels, ElementsAre(-1, 1));
  EXPECT_THAT(parse("1 1:1\n2 1:1\n", held_out_options({}))->labels, ElementsAre(-1, 1));
  EXPECT_THAT(parse("0 1:1\n", held_out_options({}))->labels, ElementsAre(-1));
  EXPECT_THAT(parse("-1 1:1\n", held_out_options({}))->labels, ElementsAre(-1));
  EXPECT_THAT(parse("2 1:1\n", held_out_options({}))->labels, ElementsAre(1));
  EXPECT_THAT(libsvm_refusal("1 1:1\n", held_out_options({})), HasSubstr("which an earlier version wrote"));
  EXPECT_THAT(libsvm_refusal("3 1:1\n", held_out_options({})), HasSubstr("which an earlier version wrote"));
}

TEST(Libsvm, PartsShareOutTheRowsAndAgreeOnDimensionAndLabels) {
  std::string text;
  for (int row = 0; row < 10; ++row) text += (row < 5 ? "1 " : "2 ") + std::to_string(row + 1) + ":1\n";
  size_t rows = 0;
  for (uint32_t part = 0; part < 3; ++part) {
    const auto data = parse(text, {.part = part, .parts = 3});
    ASSERT_TRUE(data);
    EXPECT_EQ(data->dimension, 10U);
    EXPECT_EQ(data->rows_in_file, 10U);
    EXPECT_EQ(data->label_pair, LabelPair::kOneTwo);
    for (size_t row = 0; row < data->rows(); ++row) {
      const uint32_t global = static_cast<uint32_t>(row) * 3 + part;
      EXPECT_EQ(data->row(row).indices[0], global);
      EXPECT_EQ(data->labels[row], global < 5 ? -1 : 1);
    }
    rows += data->rows();
  }
  EXPECT_EQ(rows, 10U);
}

TEST(Libsvm, AFaultInAnotherPartsRowIsStillAFault) {
  EXPECT_THAT(libsvm_refusal("1 1:1\n0 1:nan\n", {.part = 0, .parts = 2}), StartsWith("a.svm:2:"));
}

/// Random rows, written and read again.
void round_trip(const std::string& path) {
  RandomSequence random(RandomKey::from(7));
  auto writer = LibsvmWriter::create(path);
  ASSERT_TRUE(writer);
  std::vector<std::vector<uint32_t>> indices;
  std::vector<std::vector<float>> values;
  for (int row = 0; row < 3000; ++row) {
    indices.emplace_back();
    values.emplace_back();
    for (uint32_t index = 0; index < 300; index += 1 + static_cast<uint32_t>(random.next_below(40))) {
      indices.back().push_back(index);
      values.back().push_back(static_cast<float>(random.next_normal()));
    }
    ASSERT_TRUE(writer->row(row % 3 == 0 ? 1 : -1, indices.back(), values.back()));
  }
  ASSERT_TRUE(writer->commit());
  const auto data = read_libsvm(path, {});
  ASSERT_TRUE(data) << data.error().message;
  ASSERT_EQ(data->rows(), 3000U);
  for (size_t row = 0; row < 3000; ++row) {
    EXPECT_EQ(data->labels[row], row % 3 == 0 ? 1 : -1);
    EXPECT_THAT(data->row(row).indices, ::testing::ElementsAreArray(indices[row]));
    EXPECT_THAT(data->row(row).values, ::testing::ElementsAreArray(values[row]))
        << "the text holds every bit of a value";
  }
}

TEST(LibsvmFile, PlainAndCompressedFilesReadBackExactly) {
  const TemporaryFolder folder;
  round_trip(folder / "a.svm");
  round_trip(folder / "a.svm.gz");
  EXPECT_EQ(folder.read("a.svm.gz").substr(0, 2), "\x1f\x8b");
  EXPECT_LT(folder.read("a.svm.gz").size(), folder.read("a.svm").size());
}

std::string refusal_of_file(const std::string& path, ErrorCode code) {
  const auto data = read_libsvm(path, {});
  if (data) return "accepted";
  EXPECT_EQ(data.error().code, code) << data.error().message;
  return data.error().message;
}

TEST(LibsvmFile, ACompressedFileNeedsNoName) {
  const TemporaryFolder folder;
  round_trip(folder / "a.svm.gz");
  EXPECT_TRUE(read_libsvm(folder.write("a.svm", folder.read("a.svm.gz")), {}));
}

TEST(LibsvmFile, AnEmptyFileHoldsNoRows) {
  const TemporaryFolder folder;
  EXPECT_THAT(refusal_of_file(folder.write("a.svm", ""), ErrorCode::kMalformed), HasSubstr("it holds no rows"));
}

TEST(LibsvmFile, AGzThatIsNotOneIsNamed) {
  const TemporaryFolder folder;
  EXPECT_THAT(refusal_of_file(folder.path().string(), ErrorCode::kIo), HasSubstr("Is a directory"));
  std::filesystem::create_directory(folder / "folder.gz");
  EXPECT_THAT(refusal_of_file(folder / "folder.gz", ErrorCode::kIo), HasSubstr("folder.gz: Is a directory"));
  EXPECT_THAT(refusal_of_file(folder.write("a.svm.gz", "1 1:1\n0 1:1\n"), ErrorCode::kMalformed),
              HasSubstr("it is not gzip data"));
}

TEST(LibsvmFile, DamagedCompressedDataIsAnErrorWithTheLineItGotTo) {
  const TemporaryFolder folder;
  round_trip(folder / "a.svm.gz");
  std::string damaged = folder.read("a.svm.gz");
  damaged[damaged.size() / 2] = static_cast<char>(damaged[damaged.size() / 2] ^ 0x40);
  EXPECT_THAT(refusal_of_file(folder.write("b.svm.gz", damaged), ErrorCode::kMalformed), HasSubstr("b.svm.gz:"));
}

std::string bzip2_of(const std::string& text) {
  std::string out(text.size() + 1'000, '\0');
  auto size = static_cast<unsigned>(out.size());
  std::string in = text;
  EXPECT_EQ(BZ2_bzBuffToBuffCompress(out.data(), &size, in.data(), static_cast<unsigned>(in.size()), 1, 0, 0), BZ_OK);
  return out.substr(0, size);
}

std::string xz_of(const std::string& text) {
  std::string out(lzma_stream_buffer_bound(text.size()), '\0');
  size_t size = 0;
  const auto* in = static_cast<const uint8_t*>(static_cast<const void*>(text.data()));
  auto* into = static_cast<uint8_t*>(static_cast<void*>(out.data()));
  EXPECT_EQ(lzma_easy_buffer_encode(1, LZMA_CHECK_CRC64, nullptr, in, text.size(), into, &size, out.size()), LZMA_OK);
  return out.substr(0, size);
}

std::string gzip_of(const std::string& text) {
  const TemporaryFolder folder;
  const gzFile file = gzopen((folder / "a.gz").c_str(), "wb");
  EXPECT_EQ(gzwrite(file, text.data(), static_cast<unsigned>(text.size())), static_cast<int>(text.size()));
  EXPECT_EQ(gzclose(file), Z_OK);
  return folder.read("a.gz");
}

struct CompressedBy {
  const char* suffix;
  std::string (*compress)(const std::string&);
};
const std::vector<CompressedBy> kCompressors = {{".gz", gzip_of}, {".bz2", bzip2_of}, {".xz", xz_of}};

std::string many_rows(int rows) {
  std::string text;
  for (int row = 0; row < rows; ++row) {
    text += (row % 2 == 0 ? "+1 " : "-1 ") + std::to_string(row % 97 + 1) + ":" + std::to_string(row) + ".25\n";
  }
  return text;
}

TEST(LibsvmFile, CompressedFilesAreReadAsPlainTextIs) {
  const TemporaryFolder folder;
  for (const int rows : {2, 3'000, 60'000}) {  // less than a block, and several
    const std::string text = many_rows(rows);
    const auto plain = read_libsvm(folder.write("a.svm", text), {});
    ASSERT_TRUE(plain);
    for (const auto& [suffix, compress] : kCompressors) {
      for (const std::string& name : {std::string("a.svm") + suffix, std::string("nameless")}) {
        const auto data = read_libsvm(folder.write(name, compress(text)), {});
        ASSERT_TRUE(data) << name << ": " << data.error().message;
        EXPECT_EQ(data->content_hash, plain->content_hash) << name << " " << rows;
        EXPECT_EQ(data->rows(), plain->rows());
      }
    }
  }
}

TEST(LibsvmFile, StreamsOneAfterTheOtherAreOneFile) {
  const TemporaryFolder folder;
  const std::string first = many_rows(100);
  const std::string second = many_rows(37);
  const auto plain = read_libsvm(folder.write("a.svm", first + second), {});
  for (const auto& [suffix, compress] : kCompressors) {
    const auto data = read_libsvm(folder.write(std::string("b") + suffix, compress(first) + compress(second)), {});
    ASSERT_TRUE(data) << suffix << ": " << data.error().message;
    EXPECT_EQ(data->content_hash, plain->content_hash) << suffix;
  }
}

TEST(LibsvmFile, EveryTruncationAndDamageOfACompressedFileIsAnError) {
  const TemporaryFolder folder;
  for (const auto& [suffix, compress] : kCompressors) {
    const std::string name = std::string("a") + suffix;
    const std::string whole = compress(many_rows(40));
    for (size_t size = 0; size < whole.size(); ++size) {
      EXPECT_NE(refusal_of_file(folder.write(name, whole.substr(0, size)), ErrorCode::kMalformed), "accepted")
          << suffix << " " << size;
    }
    EXPECT_THAT(refusal_of_file(folder.write(name, whole.substr(0, whole.size() - 9)), ErrorCode::kMalformed),
                HasSubstr("truncated"))
        << suffix;
    std::string damaged = whole;
    damaged[damaged.size() / 2] = static_cast<char>(damaged[damaged.size() / 2] ^ 0x10);
    EXPECT_THAT(refusal_of_file(folder.write(name, damaged), ErrorCode::kMalformed), HasSubstr("damaged")) << suffix;
    EXPECT_THAT(refusal_of_file(folder.write(name, "1 1:1\n0 1:1\n"), ErrorCode::kMalformed),
                HasSubstr(std::string("its name ends in ") + suffix))
        << suffix;
  }
}

TEST(LibsvmFile, EveryTruncationAndEveryDamagedByteOfALaterStreamIsAnError) {
  const TemporaryFolder folder;
  const std::string text = many_rows(40);
  for (const auto& [suffix, compress] : kCompressors) {
    const std::string name = std::string("a") + suffix;
    const std::string first = compress(text);
    const std::string second = compress(many_rows(7));
    for (size_t size = 1; size < second.size(); ++size) {
      EXPECT_NE(refusal_of_file(folder.write(name, first + second.substr(0, size)), ErrorCode::kMalformed), "accepted")
          << suffix << " " << size;
    }
    for (size_t at = 0; at < second.size(); ++at) {
      if (suffix == std::string(".gz") && at >= 4 && at < 10) continue;  // a time and a system: nothing depends on them
      std::string damaged = first + second;
      damaged[first.size() + at] = static_cast<char>(damaged[first.size() + at] ^ 0x15);
      EXPECT_NE(refusal_of_file(folder.write(name, damaged), ErrorCode::kMalformed), "accepted") << suffix << " " << at;
    }
  }
}

TEST(LibsvmFile, ZerosAndNothingElseMayFollowGzipData) {
  const TemporaryFolder folder;
  const std::string text = many_rows(40);
  const uint64_t hash = read_libsvm(folder.write("a.svm", text), {})->content_hash;
  const std::string whole = gzip_of(text);
  for (const size_t zeros : {1, 2, 511, 1 << 18, 1 << 19}) {
    const std::string padded = whole + std::string(zeros, '\0');
    const auto data = read_libsvm(folder.write("a.gz", padded), {});
    ASSERT_TRUE(data) << zeros << ": " << data.error().message;
    EXPECT_EQ(data->content_hash, hash);
    for (const std::string& garbage : {std::string("x"), std::string("1 1:1\n"), whole}) {
      EXPECT_THAT(refusal_of_file(folder.write("a.gz", padded + garbage), ErrorCode::kMalformed), HasSubstr("damaged"))
          << zeros;
    }
  }
  for (const std::string garbage : {"x", "\x1f", "garbage", "1 1:1\n"}) {
    EXPECT_NE(refusal_of_file(folder.write("a.gz", whole + garbage), ErrorCode::kMalformed), "accepted") << garbage;
  }
}

TEST(LibsvmFile, APipeIsPlainOrGzip) {
  const TemporaryFolder folder;
  const std::string text = many_rows(400);
  const uint64_t hash = read_libsvm(folder.write("a.svm", text), {})->content_hash;
  for (const std::string& content :
       {text, gzip_of(text), gzip_of(text.substr(0, text.size() / 2)) + gzip_of(text.substr(text.size() / 2))}) {
    std::array<int, 2> ends{};
    ASSERT_EQ(::pipe(ends.data()), 0);
    ASSERT_EQ(::write(ends[1], content.data(), content.size()), static_cast<ssize_t>(content.size()));
    ::close(ends[1]);
    const auto data = read_libsvm("/dev/fd/" + std::to_string(ends[0]), {});
    ::close(ends[0]);
    ASSERT_TRUE(data) << data.error().message;
    EXPECT_EQ(data->content_hash, hash);
  }
}

TEST(LibsvmFile, ANamedPipeIsOpenedOnce) {
  const TemporaryFolder folder;
  const std::string text = many_rows(400);
  const uint64_t hash = read_libsvm(folder.write("a.svm", text), {})->content_hash;
  for (const std::string& content : {text, gzip_of(text)}) {
    const std::string path = folder / "pipe";
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    std::thread writer([&] {
      const int end = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);  // waits for the reader
      ::unlink(path.c_str());                                      // a second open() fails
      EXPECT_EQ(::write(end, content.data(), content.size()), static_cast<ssize_t>(content.size()));
      ::close(end);
    });
    const auto data = read_libsvm(path, {});
    writer.join();
    ASSERT_TRUE(data) << data.error().message;
    EXPECT_EQ(data->content_hash, hash);
  }
}

TEST(LibsvmFile, AFormatThatIsNotReadIsNamedWithWhatToDo) {
  const TemporaryFolder folder;
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"\x28\xB5\x2F\xFD and more", "it is zstd data; decompress it first (zstd -d)"},
      {"PK\x03\x04 and more", "it is a zip archive; unpack it first (unzip)"},
      {"PAR1 and more", "it is a Parquet file"},
      {std::string("\xFF\xFE"
                   "1\0 \0",
                   6),
       "it is UTF-16 text; convert it (iconv -f UTF-16 -t UTF-8)"},
      {std::string("\xFE\xFF\0"
                   "1\0 ",
                   6),
       "it is UTF-16 text"},
      {std::string("1\0 \0"
                   "1\0:\0",
                   8),
       "(iconv -f UTF-16LE -t UTF-8)"},
      {std::string("\0"
                   "1\0 \0"
                   "1\0:",
                   8),
       "(iconv -f UTF-16BE -t UTF-8)"},
  };
  for (const auto& [content, sentence] : cases) {
    EXPECT_THAT(refusal_of_file(folder.write("a.svm", content), ErrorCode::kUnsupported), HasSubstr(sentence));
    EXPECT_THAT(refusal_of_file(folder.write("a.xz", xz_of(content)), ErrorCode::kUnsupported), HasSubstr(sentence))
        << "inside of a compressed file as well";
  }
}

TEST(LibsvmFile, FilesThatCannotBeReadSayWhy) {
  const TemporaryFolder folder;
  EXPECT_THAT(refusal_of_file(folder / "absent.svm", ErrorCode::kIo), HasSubstr("No such file"));
  EXPECT_THAT(refusal_of_file(folder.path().string(), ErrorCode::kIo), HasSubstr("directory"));
}

TEST(LibsvmFile, AWriterThatEndsEarlyLeavesNothing) {
  const TemporaryFolder folder;
  {
    auto writer = LibsvmWriter::create(folder / "a.svm.gz");
    const IndexBuffer indices = {1};
    const Buffer<float> values = {1};
    ASSERT_TRUE(writer->row(1, indices, values));
  }
  EXPECT_EQ(folder.file_count(), 0U);
}

}  // namespace
}  // namespace millrace::training
