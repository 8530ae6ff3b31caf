#include "protocol/files/atomic_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <string_view>

#include "tests/worker/temporary_folder.h"

namespace millrace::files {

struct AtomicFilePeek {
  static Result<AtomicFile> create_named(const std::string& path) { return AtomicFile::create_named(path, kForAll); }
};

namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr uid_t kAnother = 65'534;

ByteBuffer file_bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

/// Sets the process's folder and $TMPDIR while this lives: the files of both go here.
class WorkingFolder : public TemporaryFolder {
 public:
  WorkingFolder() {
    std::filesystem::current_path(path());
    const char* named = std::getenv("TMPDIR");
    before_temporary_ = named != nullptr ? named : "";
    setenv("TMPDIR", path().c_str(), 1);
  }
  ~WorkingFolder() {
    std::filesystem::current_path(before_);
    if (before_temporary_.empty()) {
      unsetenv("TMPDIR");
    } else {
      setenv("TMPDIR", before_temporary_.c_str(), 1);
    }
  }

 private:
  std::filesystem::path before_ = std::filesystem::current_path();
  std::string before_temporary_;
};

/// Returns the path of the file that the error names for the new contents. Empty: it names none.
std::string kept_path(const Status& failed) {
  constexpr std::string_view kWords = "; its new contents are in ";
  const std::string& sentence = failed.error().message;
  const size_t at = sentence.find(kWords);
  return at == std::string::npos ? "" : sentence.substr(at + kWords.size());
}

std::string contents_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void expect_kept(const Status& failed, const std::string& begin, const std::string& contents) {
  ASSERT_FALSE(failed);
  const std::string kept = kept_path(failed);
  EXPECT_THAT(kept, StartsWith(begin));
  EXPECT_EQ(contents_of(kept), contents);
  EXPECT_EQ(std::filesystem::status(kept).permissions(), std::filesystem::perms(0600)) << "others may read the folder";
}

using Create = Result<AtomicFile> (*)(const std::string& path);

Result<AtomicFile> create(const std::string& path) { return AtomicFile::create(path); }

/// With and without a name from the begin on: a file system without unnamed files needs one.
class AtomicFileOfEachKind : public ::testing::TestWithParam<Create> {};

INSTANTIATE_TEST_SUITE_P(Kinds, AtomicFileOfEachKind, ::testing::Values(&create, &AtomicFilePeek::create_named));

TEST_P(AtomicFileOfEachKind, CommitReplacesTheOldFile) {
  const TemporaryFolder folder;
  const std::string path = folder.write("f", "old");
  auto file = GetParam()(path);
  ASSERT_TRUE(file && file->write(file_bytes_of("new")));
  EXPECT_EQ(folder.read("f"), "old");
  ASSERT_TRUE(file->commit());
  EXPECT_EQ(folder.read("f"), "new");
  EXPECT_EQ(folder.file_count(), 1U);
}

TEST_P(AtomicFileOfEachKind, AnEndWithoutCommitLeavesTheOldFile) {
  const TemporaryFolder folder;
  const std::string path = folder.write("f", "old");
  {
    auto file = GetParam()(path);
    ASSERT_TRUE(file);
    ASSERT_TRUE(file->write(ByteBuffer(100, 1)));
  }
  EXPECT_EQ(folder.read("f"), "old");
  EXPECT_EQ(folder.file_count(), 1U);
}

TEST_P(AtomicFileOfEachKind, AFileOfAnEndedProcessWithThisNumberIsReplaced) {
  const TemporaryFolder folder;
  const std::string path = folder / "f";
  folder.write("f.new-" + std::to_string(getpid()), "of another process");
  auto file = GetParam()(path);
  ASSERT_TRUE(file && file->write(file_bytes_of("new")));
  ASSERT_TRUE(file->commit());
  EXPECT_EQ(folder.read("f"), "new");
  EXPECT_EQ(folder.file_count(), 1U);
}

TEST(AtomicFile, AKilledProcessLeavesNoFile) {
  const TemporaryFolder folder;
  const std::string path = folder.write("f", "old");
  const int unnamed = open(folder.path().c_str(), O_WRONLY | O_TMPFILE | O_CLOEXEC, 0600);
  if (unnamed < 0) GTEST_SKIP() << "this file system has no unnamed files";
  close(unnamed);
  const pid_t child = fork();
  if (child == 0) {
    auto file = AtomicFile::create(path);
    if (!file || !file->write(ByteBuffer(100, 1))) _exit(1);
    raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
  EXPECT_EQ(folder.read("f"), "old");
  EXPECT_EQ(folder.file_count(), 1U);
}

TEST(AtomicFile, UnfinishedFilesAreRemovedAtAnEndWithoutDestructors) {
  const TemporaryFolder folder;
  auto done = AtomicFile::create(folder / "done");
  ASSERT_TRUE(done && done->commit());
  auto open = AtomicFilePeek::create_named(folder / "open");
  ASSERT_TRUE(open);
  AtomicFile moved = std::move(*open);
  EXPECT_EQ(folder.file_count(), 2U);
  remove_unfinished_files();
  EXPECT_EQ(folder.file_count(), 1U);
  EXPECT_TRUE(std::filesystem::exists(folder / "done"));
}

TEST(AtomicFile, AFileIsOfItsOwnerAloneWhereThatIsAsked) {
  const TemporaryFolder folder;
  ASSERT_TRUE(write_file_atomically(folder / "f", file_bytes_of("new"), kOwnerOnly));
  EXPECT_EQ(std::filesystem::status(folder / "f").permissions(), std::filesystem::perms(0600));
}

/// All that looks at a path before work begins refuses it, and changes nothing.
void expect_refused_before_work(const std::string& path, const std::string& words) {
  const auto check = check_replaceable(path);
  ASSERT_FALSE(check);
  EXPECT_EQ(check.error().code, ErrorCode::kIo);
  EXPECT_THAT(check.error().message, HasSubstr("cannot write " + path + ": "));
  EXPECT_THAT(check.error().message, HasSubstr(words));
  EXPECT_THAT(try_to_write(path).error().message, HasSubstr(words));
  EXPECT_THAT(AtomicFile::create(path).error().message, HasSubstr(words));
}

TEST(CheckReplaceable, AFolderOrAPipeIsRefusedAndNotReplaced) {
  const TemporaryFolder folder;
  ASSERT_EQ(mkdir((folder / "f").c_str(), 0700), 0);
  expect_refused_before_work(folder / "f", "it is a folder");
  // A pipe stands for devices as well: renaming onto /dev/null would put a file in its place.
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  expect_refused_before_work(folder / "pipe", "a device, a pipe or a socket");
  EXPECT_EQ(folder.file_count(), 2U) << "no temporary file is left";
}

TEST(CheckReplaceable, AFileThatIsMountedByItselfIsRefused) {
  const TemporaryFolder folder;
  const std::string outside = folder.write("outside", "1");
  const std::string path = folder.write("f", "2");
  if (mount(outside.c_str(), path.c_str(), nullptr, MS_BIND, nullptr) != 0) GTEST_SKIP() << "mounts need root";
  expect_refused_before_work(path, "it is a mount of its own");
  umount(path.c_str());
  EXPECT_EQ(folder.file_count(), 2U);
  EXPECT_TRUE(try_to_write(path)) << "without the mount";
}

TEST(CheckReplaceable, AFileThatIsSetImmutableIsRefused) {
  const TemporaryFolder folder;
  const std::string path = folder.write("f", "old");
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  int flags = 0;
  ASSERT_GE(file, 0);
  const bool knows = ioctl(file, FS_IOC_GETFLAGS, &flags) == 0;
  int immutable = flags | FS_IMMUTABLE_FL;
  if (!knows || ioctl(file, FS_IOC_SETFLAGS, &immutable) != 0) {
    close(file);
    GTEST_SKIP() << "this file system, or user, sets no file immutable";
  }
  expect_refused_before_work(path, "immutable");
  ioctl(file, FS_IOC_SETFLAGS, &flags);
  close(file);
  EXPECT_TRUE(try_to_write(path));
}

TEST(CheckReplaceable, AnotherUsersFileInAStickyFolderIsRefused) {
  const TemporaryFolder folder;
  if (geteuid() != 0) GTEST_SKIP() << "files of two users need root";
  const std::string path = folder.write("f", "old");
  std::filesystem::permissions(folder.path(), std::filesystem::perms(01777));
  ASSERT_EQ(seteuid(kAnother), 0);
  expect_refused_before_work(path, "belongs to another user");
  EXPECT_TRUE(try_to_write(folder / "new"));
  ASSERT_EQ(seteuid(0), 0);
  EXPECT_TRUE(try_to_write(path)) << "as its owner";
}

TEST(CheckReplaceable, AFileThatIsNotThereYetIsTriedInItsFolder) {
  const TemporaryFolder folder;
  EXPECT_TRUE(try_to_write(folder / "new"));
  EXPECT_EQ(folder.file_count(), 0U);
  EXPECT_THAT(try_to_write(folder / "no/such/f").error().message, HasSubstr("No such file or directory"));
}

/// Between the check and the end something comes to stand at the path.
TEST(AtomicFile, AResultThatCannotTakeItsPlaceStaysWhole) {
  const TemporaryFolder folder;
  const std::string path = folder / "f";
  std::string kept;
  {
    auto file = AtomicFile::create(path);
    ASSERT_TRUE(file && file->write(file_bytes_of("result")));
    kept = file->temporary_path();
    std::filesystem::create_directory(path);
    const Status done = file->commit();
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().code, ErrorCode::kIo);
    EXPECT_THAT(done.error().message, HasSubstr("rename: "));
    EXPECT_THAT(done.error().message, HasSubstr("its new contents are in " + kept));
  }
  remove_unfinished_files();
  EXPECT_EQ(folder.read(std::filesystem::path(kept).filename()), "result");
}

TEST(WriteFileAtomically, AResultIsKeptBesideAPlaceThatItCannotTake) {
  const WorkingFolder folder;
  const std::string mounted = folder.write("f", "old");
  const std::string other = folder.write("other", "other");
  auto file = AtomicFile::create(mounted);
  ASSERT_TRUE(file && file->write(file_bytes_of("result")));
  if (mount(other.c_str(), mounted.c_str(), nullptr, MS_BIND, nullptr) != 0) GTEST_SKIP() << "mounts need root";
  const Status done = file->commit();
  const std::string kept = file->temporary_path();
  umount(mounted.c_str());
  ASSERT_FALSE(done);
  EXPECT_THAT(done.error().message, HasSubstr("busy"));
  EXPECT_EQ(folder.read(std::filesystem::path(kept).filename()), "result");
  EXPECT_EQ(folder.read("f"), "old");
}

TEST(WriteFileAtomically, OnAFullDiskTheOldFileStaysAndTheResultIsKeptElsewhere) {
  const WorkingFolder folder;
  const std::string disk = folder / "disk";
  ASSERT_EQ(mkdir(disk.c_str(), 0700), 0);
  if (mount("none", disk.c_str(), "tmpfs", 0, "size=64k") != 0) GTEST_SKIP() << "a file system of 64 KiB needs root";
  const std::string path = disk + "/f";
  const bool first = write_file_atomically(path, ByteBuffer(20'000, uint8_t{3})).has_value();
  // Of an ended process with this number: it has not the result.
  std::ofstream(path + ".new-" + std::to_string(getpid())) << "earlier";
  const ByteBuffer large(100'000, uint8_t{7});
  const Status second = write_file_atomically(path, large, kOwnerOnly);
  const auto size = std::filesystem::file_size(path);
  const std::string beside = path + ".new-" + std::to_string(getpid());
  const bool is_left = std::filesystem::exists(beside) && contents_of(beside) != "earlier";
  umount(disk.c_str());
  EXPECT_TRUE(first);
  EXPECT_EQ(size, 20'000U);
  EXPECT_FALSE(is_left) << "the unfinished file is removed";
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::kIo);
  EXPECT_THAT(second.error().message, HasSubstr("No space left on device"));
  expect_kept(second, "./f.kept-", std::string(large.begin(), large.end()));
}

TEST(WriteFileAtomically, AFolderThatIsGoneAtTheEndDoesNotCostTheResult) {
  const WorkingFolder folder;
  for (const mode_t mode : {kForAll, kOwnerOnly})
    expect_kept(write_file_atomically(folder / "no/such/f", file_bytes_of("result"), mode), "./f.kept-", "result");
}

TEST(WriteFileAtomically, EachFailureKeepsAFileOfItsOwn) {
  const WorkingFolder folder;
  const Status first = write_file_atomically(folder / "no/such/f", file_bytes_of("earlier"));
  const Status second = write_file_atomically(folder / "no/such/f", file_bytes_of("newest"));
  expect_kept(first, "./f.kept-", "earlier");
  expect_kept(second, "./f.kept-", "newest");
  EXPECT_EQ(folder.file_count(), 2U);
}

// A folder that is gone stands for one that is full, or not the user's.
TEST(WriteFileAtomically, ProcessFolderNotWritable_ResultKeptInATemporaryOne) {
  const TemporaryFolder temporary;
  const WorkingFolder folder;
  ASSERT_EQ(mkdir((folder / "gone").c_str(), 0700), 0);
  std::filesystem::current_path(folder / "gone");
  std::filesystem::remove(folder / "gone");
  setenv("TMPDIR", temporary.path().c_str(), 1);
  const Status named = write_file_atomically(folder / "no/such/f", file_bytes_of("result"));
  expect_kept(named, temporary.path().string() + "/f.kept-", "result");
  unsetenv("TMPDIR");
  const Status unnamed = write_file_atomically(folder / "no/such/f", file_bytes_of("result"));
  expect_kept(unnamed, "/var/tmp/f.kept-", "result");
  std::filesystem::remove(kept_path(unnamed));
  setenv("TMPDIR", (folder / "no").c_str(), 1);
  const Status nowhere = write_file_atomically(folder / "no/such/f", file_bytes_of("result"));
  expect_kept(nowhere, "/tmp/f.kept-", "result");
  std::filesystem::remove(kept_path(nowhere));
}

TEST(WriteFileAtomically, WhereNothingCanGrowNothingIsLeftAndNothingPromised) {
  const WorkingFolder folder;
  const std::string path = folder.write("f", "old");
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{50'000, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const Status done = write_file_atomically(path, ByteBuffer(100'000, uint8_t{7}));
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  ASSERT_FALSE(done);
  EXPECT_THAT(done.error().message, HasSubstr("File too large; a file that was there before is unchanged"));
  EXPECT_THAT(done.error().message, Not(HasSubstr("contents are in")));
  EXPECT_EQ(folder.read("f"), "old");
  EXPECT_EQ(folder.file_count(), 1U);
}

}  // namespace
}  // namespace millrace::files
