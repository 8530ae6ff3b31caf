#include "worker/session/state_file.h"

#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <iterator>
#include <string>

namespace millrace::testing {
namespace {

/// Files may not grow past so many bytes while this lives: what a full disk does to a writer, without one.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  void (*handler_)(int);
  rlimit before_{};
};

TEST(StateFile, AWriteThatFailsHalfWayLeavesTheOldFileAndSaysSo) {
  const std::string path = ::testing::TempDir() + "millrace_state_file_" + std::to_string(::getpid());
  const ByteBuffer old_bytes = {1, 2, 3};
  ASSERT_TRUE(worker::write_file_atomically(path, old_bytes).has_value());
  Status written;
  {
    const FileSizeLimit full(50'000);
    written = worker::write_file_atomically(path, ByteBuffer(100'000, uint8_t{7}));
  }
  ASSERT_FALSE(written.has_value());
  EXPECT_EQ(written.error().code, ErrorCode::kIo);
  EXPECT_NE(written.error().message.find("cannot write 100000 bytes to '" + path), std::string::npos)
      << written.error().message;
  EXPECT_NE(written.error().message.find("File too large"), std::string::npos) << written.error().message;
  EXPECT_EQ(*worker::read_file(path), old_bytes);
  EXPECT_FALSE(std::filesystem::exists(path + ".new." + std::to_string(::getpid())));
  std::filesystem::remove(path);
}

TEST(StateFile, OnAFullDiskTheOldFileStaysAndNothingElse) {
  const std::string disk = ::testing::TempDir() + "millrace_full_disk_" + std::to_string(::getpid());
  std::filesystem::create_directory(disk);
  if (::mount("none", disk.c_str(), "tmpfs", 0, "size=64k") != 0) {
    std::filesystem::remove(disk);
    GTEST_SKIP() << "a file system of 64 KiB needs root";
  }
  const std::string path = disk + "/state";
  const ByteBuffer old_bytes(20'000, uint8_t{3});
  const bool first = worker::write_file_atomically(path, old_bytes).has_value();
  const Status written = worker::write_file_atomically(path, ByteBuffer(100'000, uint8_t{7}));
  const auto kept = worker::read_file(path);
  const auto files = std::distance(std::filesystem::directory_iterator(disk), {});
  ::umount(disk.c_str());
  std::filesystem::remove(disk);
  EXPECT_TRUE(first);
  ASSERT_FALSE(written.has_value());
  EXPECT_EQ(written.error().code, ErrorCode::kIo);
  EXPECT_NE(written.error().message.find("No space left on device"), std::string::npos) << written.error().message;
  EXPECT_EQ(*kept, old_bytes);
  EXPECT_EQ(files, 1) << "the unfinished file is removed";
}

}  // namespace
}  // namespace millrace::testing
