#include "worker/training/peers/read_shared_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tests/support/libsvm_text.h"
#include "tests/worker/training/peers/on_ranks.h"
#include "worker/training/data/libsvm.h"

namespace millrace::training {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

SharedFile file_of(const std::string& text) {
  return {"a.svm", text.size(), [&text](uint64_t at, std::span<uint8_t> into) {
            std::ranges::copy_n(text.begin() + static_cast<ptrdiff_t>(at), static_cast<ptrdiff_t>(into.size()),
                                into.begin());
            return Status{};
          }};
}

using Read = Result<Dataset>;

std::vector<Read> read_on(uint32_t ranks, const std::string& text, const LibsvmOptions& options = {}) {
  struct Held {
    Read data = fail(ErrorCode::kInternal, "");
  };
  auto held = testing::on_ranks<Held>(ranks, peer::Progress::kByCaller, [&](peer::PeerGroup& group) {
    return Held{read_share(group, file_of(text), options)};
  });
  std::vector<Read> all;
  for (Held& one : held) all.push_back(std::move(one.data));
  return all;
}

void expect_refused(uint32_t ranks, const std::string& text, const std::string& words, uint64_t dimension = 0) {
  for (const Read& read : read_on(ranks, text, {.dimension = dimension})) {
    ASSERT_FALSE(read);
    EXPECT_THAT(read.error().message, HasSubstr(words));
  }
}

TEST(ReadShare, TheRanksRowsTogetherAreTheFile) {
  for (const std::string end : {"\n", "\r\n"}) {
    std::string text = "# a comment" + end;
    for (int row = 0; row < 30; ++row) {
      text += (row % 3 == 0 ? "+1 " : "-1 ") + std::to_string(row + 1) + ":" + std::to_string(row) + ".5" + end;
      if (row % 7 == 0) text += end;
    }
    const Read whole = millrace::testing::parse_libsvm(text, "a.svm", {});
    ASSERT_TRUE(whole);
    for (uint32_t ranks = 1; ranks <= 9; ++ranks) {
      size_t row = 0;
      for (const Read& read : read_on(ranks, text)) {
        ASSERT_TRUE(read) << read.error().message;
        EXPECT_EQ(read->dimension, 30u);
        EXPECT_EQ(read->rows_in_file, 30u);
        for (size_t at = 0; at < read->rows(); ++at, ++row) {
          EXPECT_TRUE(std::ranges::equal(read->row(at).indices, whole->row(row).indices));
          EXPECT_TRUE(std::ranges::equal(read->row(at).values, whole->row(row).values));
          EXPECT_EQ(read->row(at).label, whole->row(row).label);
        }
      }
      EXPECT_EQ(row, whole->rows());
    }
  }
}

TEST(ReadShare, RanksWithoutRowsAndWithOneClassLearnTheOthers) {
  // Two lines for five ranks: some have none, and none has both classes.
  const auto all = read_on(5, "1 1:1\n2 9:1\n");
  uint64_t rows = 0;
  for (const Read& read : all) {
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(read->label_pair, LabelPair::kOneTwo);
    EXPECT_EQ(read->dimension, 9u);
    rows += read->rows();
  }
  EXPECT_EQ(rows, 2u);
}

TEST(ReadShare, AllRanksSayTheSameOfABadFile) {
  for (const uint32_t ranks : {1u, 3u}) {
    expect_refused(ranks, "", "a.svm: it holds no rows");
    expect_refused(ranks, "# nothing\n\n\n", "a.svm: it holds no rows");
    expect_refused(ranks, "1 1:1\n1 2:1\n", "all of its 2 rows have the label 1");
    expect_refused(ranks, "1 1:1\n0 2:1\n5 1:1\n", "wo classes are needed");
    expect_refused(ranks, "1 1:1\n7 2:1\n", "its labels are 1 and 7");
    expect_refused(ranks, "1 1:1\n0 20:1\n", "index 20 is above 10, the largest of --dimension 10", 10);
    expect_refused(ranks, "\x1f\x8b and more of it", "it is gzip data");
    expect_refused(ranks, "BZh91AY and more of it",
                   "it is bzip2 data, which cannot be read in parts; decompress it first");
    expect_refused(ranks,
                   std::string("\xfd"
                               "7zXZ\0 and more",
                               15),
                   "it is xz data");
    expect_refused(ranks, "PK\x03\x04 and more of it", "it is a zip archive; unpack it first");
  }
  expect_refused(3, "1 1:1\n0 2:1\n1 1:1\n0 2:1\n1 1:1\nzero 2:1\n",
                 "rank 2: a.svm (lines from byte 26 on):1: the label 'zero' is not a number");
}

TEST(ReadShare, HeldOutRowsMayHaveOneClassAndFeaturesThatTrainingLacked) {
  const std::string text = "1 1:1\n1 2:1 30:1\n1 3:1\n1 31:1\n";
  for (const uint32_t ranks : {1u, 3u}) {
    const auto all =
        read_on(ranks, text, {.dimension = 10, .use = RowUse::kHeldOut, .trained_pair = LabelPair::kMinusPlusOne});
    for (const Read& read : all) {
      ASSERT_TRUE(read) << read.error().message;
      EXPECT_EQ(read->dimension, 10u);
      EXPECT_EQ(read->rows_in_file, 4u);
      EXPECT_EQ(read->entries_left_out, 2u) << "of all ranks";
      for (size_t at = 0; at < read->rows(); ++at) EXPECT_EQ(read->row(at).label, 1);
    }
  }
}

TEST(ReadShare, AllRanksReportARankWithAnotherFileLength) {
  const std::string text = "1 1:1\n0 2:1\n";
  const auto said = testing::on_ranks<std::string>(3, peer::Progress::kByThread, [&](peer::PeerGroup& group) {
    SharedFile file = file_of(text);
    if (group.rank() == 2) file.bytes -= 1;
    const Read read = read_share(group, file, {});
    return read ? "read" : read.error().message;
  });
  for (const std::string& one : said) EXPECT_EQ(one, "a.svm: it has 12 bytes on rank 0 and 11 on rank 2");
}

}  // namespace
}  // namespace millrace::training
