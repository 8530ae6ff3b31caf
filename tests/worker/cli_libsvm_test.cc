#include "worker/cli/libsvm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "kernels/base/random.h"
#include "tests/support/libsvm_text.h"
#include "tests/worker/temporary_folder.h"
#include "worker/cli/libsvm_writer.h"

namespace millrace::cli {
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

TEST(Libsvm, WhatIsWrongIsNamedWithFileAndLine) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"1 1:1\n0 2\n", "a.svm:2: '2' is not INDEX:VALUE"},
      {"1 1:1\n0 x:1\n", "a.svm:2: the index in 'x:1' is not a whole number"},
      {"1 1:1\n0 -1:1\n", "a.svm:2: the index in '-1:1' is not a whole number"},
      {"1 1.5:1\n", "a.svm:1: the index in '1.5:1' is not a whole number"},
      {"1 :1\n", "a.svm:1: the index in ':1' is not a whole number"},
      {"1 0:1\n", "a.svm:1: index 0 in '0:1': LIBSVM counts from 1"},
      {"1 3:1 2:1\n", "a.svm:1: index 2 after 3: the indices of a row must increase"},
      {"1 3:1 3:1\n", "a.svm:1: index 3 after 3: the indices of a row must increase"},
      {"1 4294967297:1\n", "a.svm:1: the index in '4294967297:1' is above 2^32, the largest there is"},
      {"1 99999999999999999999999:1\n", "above 2^32"},
      {"1 1:nan\n", "a.svm:1: the value in '1:nan' is not a finite number"},
      {"1 1:inf\n", "is not a finite number"},
      {"1 1:1e39\n", "is not a finite number"},
      {"1 1:1e999\n", "is not a finite number"},
      {"1 1:\n", "is not a finite number"},
      {"1 1:0x10\n", "is not a finite number"},
      {"1 qid:3 1:1\n", "a.svm:1: the index in 'qid:3' is not a whole number"},
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
  EXPECT_EQ(libsvm_refusal("1 1:1\n0 11:1\n", {.dimension = 10}),
            "a.svm:2: index 11 is past the dimension, 10; train with a larger --dimension");
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

TEST(LibsvmFile, WhatIsWrittenIsReadBackExactlyPlainAndCompressed) {
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

TEST(LibsvmFile, EveryTruncationOfACompressedFileIsAnError) {
  const TemporaryFolder folder;
  auto writer = LibsvmWriter::create(folder / "a.svm.gz");
  for (uint32_t row = 0; row < 40; ++row) {
    const IndexBuffer indices = {row, row + 50};
    const Buffer<float> values = {1.5F, 2.25F};
    ASSERT_TRUE(writer->row(row % 2 == 0 ? 1 : -1, indices, values));
  }
  ASSERT_TRUE(writer->commit());
  const std::string whole = folder.read("a.svm.gz");
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_NE(refusal_of_file(folder.write("b.svm.gz", whole.substr(0, size)), ErrorCode::kMalformed), "accepted")
        << size;
  }
  EXPECT_THAT(refusal_of_file(folder.write("b.svm.gz", whole.substr(0, whole.size() - 9)), ErrorCode::kMalformed),
              HasSubstr("truncated"));
}

TEST(LibsvmFile, DamagedCompressedDataIsAnErrorWithTheLineItGotTo) {
  const TemporaryFolder folder;
  round_trip(folder / "a.svm.gz");
  std::string damaged = folder.read("a.svm.gz");
  damaged[damaged.size() / 2] = static_cast<char>(damaged[damaged.size() / 2] ^ 0x40);
  EXPECT_THAT(refusal_of_file(folder.write("b.svm.gz", damaged), ErrorCode::kMalformed), HasSubstr("b.svm.gz:"));
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
}  // namespace millrace::cli
