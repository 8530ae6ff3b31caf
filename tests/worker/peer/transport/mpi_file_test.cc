#include "worker/peer/transport/mpi_file.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/worker/temporary_folder.h"

/// Every test on every rank, each with files of its own.
namespace millrace::peer::testing {
namespace {

std::string content() {
  std::string text;
  for (int i = 0; i < 300'000; ++i) text += static_cast<char>('a' + i % 23);
  return text;
}

class MpiFileTest : public ::testing::Test {
 protected:
  TemporaryFolder folder_;
  std::string path_ = folder_.write("data", content());
};

TEST_F(MpiFileTest, EveryPartIsRead) {
  const auto file = MpiFile::open(path_);
  ASSERT_TRUE(file) << file.error().message;
  const std::string text = content();
  ASSERT_EQ((*file)->bytes(), text.size());
  for (const auto& [at, bytes] : std::vector<std::pair<size_t, size_t>>{
           {0, 0}, {0, 1}, {7, 65'537}, {0, text.size()}, {text.size() - 1, 1}, {text.size(), 0}}) {
    std::vector<uint8_t> into(bytes);
    ASSERT_TRUE((*file)->read_at(at, into));
    EXPECT_TRUE(std::equal(into.begin(), into.end(), text.begin() + static_cast<ptrdiff_t>(at)));
  }
}

TEST_F(MpiFileTest, AFailedOpenOrReadReportsItsCause) {
  const auto none = MpiFile::open(path_ + "-missing");
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::kIo);
  EXPECT_EQ(none.error().message, path_ + "-missing: No such file or directory");
  const auto folder = MpiFile::open(folder_.path().string());
  ASSERT_FALSE(folder);
  EXPECT_NE(folder.error().message.find("no regular file"), std::string::npos);
  const auto file = MpiFile::open(path_);
  ASSERT_TRUE(file);
  std::vector<uint8_t> into(10);
  const Status past = (*file)->read_at((*file)->bytes() - 9, into);
  ASSERT_FALSE(past);
  EXPECT_EQ(past.error().code, ErrorCode::kIo);
  EXPECT_NE(past.error().message.find("ends before byte"), std::string::npos);
}

}  // namespace
}  // namespace millrace::peer::testing
