#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "worker/program/scratch_folder.h"

/// Folders of temporary files: they go with their process, however it ends.
namespace millrace::program {
namespace {

namespace fs = std::filesystem;

/// Temporary files of one test, in a folder of its own.
class ScratchFolderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = "/tmp/scratch-test-XXXXXX";
    place_ = ::mkdtemp(name.data());
    ::setenv("TMPDIR", place_.c_str(), 1);
  }
  void TearDown() override {
    ::unsetenv("TMPDIR");
    fs::remove_all(place_);
  }
  size_t count() const {
    size_t folders = 0;
    for ([[maybe_unused]] const auto& entry : fs::directory_iterator(place_)) ++folders;
    return folders;
  }
  static void put_file(const std::string& folder) { std::ofstream(folder + "/table.db") << "rows"; }

  fs::path place_;
};

/// A process that makes a folder and is killed when it is asked to. Its own child lives on, and ends later.
class Killed {
 public:
  explicit Killed(const std::string& stem) {
    EXPECT_EQ(::pipe(told_.data()), 0);
    EXPECT_EQ(::pipe(held_.data()), 0);
    process_ = ::fork();
    if (process_ == 0) {
      auto folder = ScratchFolder::make(stem);
      std::ofstream(folder->path() + "/table.db") << "rows";
      if (::fork() == 0) {
        ::close(held_[1]);
        ::close(told_[1]);
        char byte = 0;
        while (::read(held_[0], &byte, 1) > 0) {
        }
        ::_exit(0);
      }
      (void)!::write(told_[1], "x", 1);
      ::pause();
    }
    ::close(told_[1]);
    char byte = 0;
    EXPECT_EQ(::read(told_[0], &byte, 1), 1);
  }
  ~Killed() {
    kill();
    end_child();
    ::close(told_[0]);
    ::close(held_[0]);
  }
  Killed(const Killed&) = delete;
  Killed& operator=(const Killed&) = delete;
  void kill() {
    if (process_ <= 0) return;
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
    process_ = -1;
  }
  void end_child() {
    if (held_[1] < 0) return;
    ::close(held_[1]);
    held_[1] = -1;
  }

 private:
  pid_t process_ = -1;
  std::array<int, 2> told_{};
  std::array<int, 2> held_{};
};

TEST_F(ScratchFolderTest, GoesWithItsObject) {
  {
    const auto folder = ScratchFolder::make("millrace-serve");
    ASSERT_TRUE(folder) << folder.error().message;
    EXPECT_TRUE(fs::path(folder->path()).filename().string().starts_with("millrace-serve-"));
    EXPECT_TRUE(fs::is_directory(folder->path()));
    put_file(folder->path());
  }
  EXPECT_EQ(count(), 0u);
}

TEST_F(ScratchFolderTest, IsRemovedByTheNextStartWhereItsProcessWasKilled) {
  Killed killed("millrace-serve");
  const auto beside = ScratchFolder::make("millrace-serve");
  EXPECT_EQ(count(), 2u) << "in use";
  killed.kill();
  const auto too_early = ScratchFolder::make("millrace-serve");
  EXPECT_EQ(count(), 3u) << "a process that the killed one had started still uses it";
  killed.end_child();
  // No process reaps it: the lock goes with it.
  size_t left = count();
  for (int tries = 0; tries < 2'000 && left != 2; ++tries) {
    const auto next = ScratchFolder::make("millrace-serve");
    left = count() - 1;
    ::poll(nullptr, 0, 5);
  }
  EXPECT_EQ(left, 2u);
}

TEST_F(ScratchFolderTest, AnotherStemsFoldersAreLeftAlone) {
  Killed killed("millrace-bench");
  killed.kill();
  killed.end_child();
  fs::create_directory(place_ / "millrace-serve-notes");
  fs::create_directory(place_ / "millrace-serve-abcdef-old");
  std::ofstream(place_ / "millrace-serve-afile1") << "no folder";
  fs::create_directory_symlink("/", place_ / "millrace-serve-alink1");
  const auto folder = ScratchFolder::make("millrace-serve");
  EXPECT_EQ(count(), 6u);
}

TEST_F(ScratchFolderTest, FoldersThatOnlyHaveSuchANameAreLeftAlone) {
  fs::create_directory(place_ / "millrace-serve-noLock");
  put_file((place_ / "millrace-serve-noLock").string());
  fs::create_directories(place_ / "millrace-serve-folder" / "lock");
  fs::create_directory(place_ / "millrace-serve-pipe01");
  ASSERT_EQ(::mkfifo((place_ / "millrace-serve-pipe01" / "lock").c_str(), 0600), 0);
  fs::create_directory(place_ / "elsewhere");
  std::ofstream(place_ / "elsewhere" / "lock") << "";
  fs::create_directory(place_ / "millrace-serve-alink1");
  fs::create_symlink(place_ / "elsewhere" / "lock", place_ / "millrace-serve-alink1" / "lock");
  fs::create_directory_symlink(place_ / "elsewhere", place_ / "millrace-serve-alink2");
  {
    const auto folder = ScratchFolder::make("millrace-serve");
    ASSERT_TRUE(folder);
  }
  EXPECT_EQ(count(), 6u);
  EXPECT_TRUE(fs::exists(place_ / "millrace-serve-noLock" / "table.db"));
  std::ofstream(place_ / "millrace-serve-noLock" / "lock") << "";
  {
    const auto folder = ScratchFolder::make("millrace-serve");
    ASSERT_TRUE(folder);
  }
  EXPECT_EQ(count(), 5u) << "with an unlocked lock file it is one that was left behind";
}

TEST_F(ScratchFolderTest, AKeptFolderStaysAndAnEmptyOneIsRemoved) {
  std::string kept;
  {
    auto folder = ScratchFolder::make("millrace-bench");
    kept = folder->path();
    put_file(kept);
    EXPECT_TRUE(fs::is_regular_file(kept + "/lock"));
    folder->keep();
    EXPECT_FALSE(fs::exists(kept + "/lock"));
    auto empty = ScratchFolder::make("millrace-bench");
    empty->keep();
  }
  EXPECT_EQ(count(), 1u);
  {
    const auto next = ScratchFolder::make("millrace-bench");
  }
  EXPECT_TRUE(fs::exists(kept + "/table.db"));
}

TEST_F(ScratchFolderTest, AFolderThatCannotBeMadeSaysWhatToDo) {
  ::setenv("TMPDIR", "/nowhere", 1);
  const auto folder = ScratchFolder::make("millrace-serve");
  ASSERT_FALSE(folder);
  EXPECT_EQ(folder.error().code, ErrorCode::kIo);
  EXPECT_THAT(folder.error().message, ::testing::HasSubstr("TMPDIR"));
}

}  // namespace
}  // namespace millrace::program
