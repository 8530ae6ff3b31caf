#include "server/access/job_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace millrace::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

/// A folder of job keys, each of one digit.
struct JobKeyFiles : ::testing::Test {
  JobKeyFiles() {
    std::string pattern = (std::filesystem::temp_directory_path() / "millrace-job-keys-XXXXXX").string();
    folder = ::mkdtemp(pattern.data());
    keys.emplace(folder);
  }
  ~JobKeyFiles() override { std::filesystem::remove_all(folder); }
  void write(uint32_t number, const std::string& text, mode_t mode = 0600) const {
    const std::string path = folder + "/" + std::to_string(number) + ".key";
    std::filesystem::remove(path);
    std::ofstream(path) << text;
    ASSERT_EQ(::chmod(path.c_str(), mode), 0);
  }
  void write_key(uint32_t number, char digit) const { write(number, std::string(64, digit) + "\n"); }
  /// The first byte of the key for a job that begins; -1: it has none.
  int first_byte(uint32_t number) {
    const Result<protocol::JobKey> key = keys->key_of(number);
    return key ? key->front() : -1;
  }
  std::vector<std::string> reload() {
    std::vector<std::string> said;
    for (const LogLine& line : keys->reload())
      said.push_back((line.severity == Severity::kError ? "error: " : "") + line.text);
    return said;
  }

  std::string folder;
  std::optional<JobKeys> keys;
};

TEST_F(JobKeyFiles, AJobThatBeginsGetsTheKeyOfItsFile) {
  write_key(7, '1');
  EXPECT_EQ(first_byte(7), 0x11);
  EXPECT_EQ(first_byte(8), -1);
  write_key(8, '2');
  EXPECT_EQ(first_byte(8), 0x22) << "the file of a number that had none needs no reload";
}

TEST_F(JobKeyFiles, ANewFileCountsFromTheReloadOn) {
  write_key(7, '1');
  write_key(8, '2');
  ASSERT_EQ(first_byte(7), 0x11);
  ASSERT_EQ(first_byte(8), 0x22);
  write_key(7, '3');
  EXPECT_EQ(first_byte(7), 0x11);
  EXPECT_THAT(reload(), ElementsAre("reload: 2 job keys, 1 of them new for jobs that begin from now on"));
  EXPECT_EQ(first_byte(7), 0x33);
  EXPECT_EQ(first_byte(8), 0x22);
}

TEST_F(JobKeyFiles, AWrongFileLeavesTheKeyAndIsNamed) {
  write_key(7, '1');
  write_key(8, '2');
  ASSERT_EQ(first_byte(7), 0x11);
  ASSERT_EQ(first_byte(8), 0x22);
  write_key(8, '4');
  for (const bool readable_by_all : {false, true}) {
    if (readable_by_all) {
      write(7, std::string(64, '5') + "\n", 0644);
    } else {
      write(7, "5555");
    }
    const std::vector<std::string> said = reload();
    ASSERT_EQ(said.size(), 2u);
    EXPECT_THAT(said[0], HasSubstr("error: reload: "));
    EXPECT_THAT(said[0], HasSubstr(folder + "/7.key"));
    EXPECT_THAT(said[0], HasSubstr("; the key from before holds"));
    EXPECT_THAT(said[0], Not(HasSubstr("5555")));
    EXPECT_EQ(first_byte(7), 0x11);
    EXPECT_EQ(first_byte(8), 0x44) << "one wrong file holds back no other";
  }
  write_key(7, '5');
  EXPECT_THAT(reload(), ElementsAre("reload: 2 job keys, 1 of them new for jobs that begin from now on"));
  EXPECT_EQ(first_byte(7), 0x55);
}

TEST_F(JobKeyFiles, AKeyWhoseFileIsGoneIsForgotten) {
  write_key(7, '1');
  ASSERT_EQ(first_byte(7), 0x11);
  std::filesystem::remove(folder + "/7.key");
  EXPECT_EQ(first_byte(7), 0x11) << "until the reload";
  EXPECT_THAT(reload(),
              ElementsAre("reload: 0 job keys, 0 of them new for jobs that begin from now on; 1 files are gone"));
  EXPECT_EQ(first_byte(7), -1);
  EXPECT_THAT(reload(), IsEmpty());
}

}  // namespace
}  // namespace millrace::server
