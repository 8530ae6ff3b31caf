#include "server/process/save_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <semaphore>
#include <set>

#include "server/process/store_thread.h"
#include "tests/protocol/temporary_directory.h"
#include "tests/server/process/fake_disk.h"

namespace millrace::server {
namespace {

using millrace::testing::FakeDisk;
using ::testing::HasSubstr;
using What = StoreRequest::What;

struct Folder {
  Folder() : path(directory.file("saves")) { std::filesystem::create_directory(path); }
  protocol::TemporaryDirectory directory;
  std::string path;
};

protocol::JobSpec spec_of(const std::string& name) {
  protocol::JobSpec spec;
  spec.name = name;
  spec.workers = 1;
  spec.tensors.push_back({.name = "w", .dimension = 4});
  spec.store.optimizer = *optimizer_from_text("sgd:1");
  return spec;
}

/// Returns a save after `value` steps.
StoreFile file_of(float value, const std::string& name = "job", uint64_t job = 1) {
  StoreFile file;
  file.header = {
      .job = job, .name = name, .shard = 0, .shard_count = 1, .layout_hash = 5, .parts = 1, .spec = spec_of(name)};
  StorePart& part = file.parts.emplace_back();
  part.arrays.weights.assign(4, value);
  part.position.n = static_cast<uint64_t>(value);
  return file;
}

/// Returns a save of it in three pieces, as a store asks for it.
std::vector<StoreRequest> requests_of(const StoreFile& file) {
  const StoreRecord header = encode_store_header(file.header);
  ByteBuffer first(store_file_magic().begin(), store_file_magic().end());
  first.insert(first.end(), header.bytes.begin(), header.bytes.end());
  StoreRecord part = encode_store_part(file.parts[0].part, file.parts[0].position, file.parts[0].arrays, header.hash);
  StoreRecord end = encode_store_end(1, part.hash);
  const std::string& name = file.header.name;
  const uint64_t job = file.header.job;
  return {{What::kBegin, job, name, SharedBytes::from(std::move(first))},
          {What::kAppend, job, name, SharedBytes::from(std::move(part.bytes))},
          {What::kEnd, job, name, SharedBytes::from(std::move(end.bytes))}};
}

/// Saves it. Returns the first error.
Status save(StoreFolder& folder, const StoreFile& file) {
  for (const StoreRequest& request : requests_of(file)) {
    if (const Status written = folder.write(request); !written) return written;
  }
  return {};
}

TEST(StoreFolderTest, AFailureAtAnyCallLeavesTheSaveBeforeAndNothingElse) {
  uint64_t failures = 0;
  uint64_t keeps = 0;
  for (uint64_t at = 0;; ++at) {
    FakeDisk disk;
    StoreFolder folder("/saves", 0, disk);
    ASSERT_TRUE(save(folder, file_of(1)).has_value());
    disk.go_wrong(FakeDisk::At::kFails, at);
    const Status saved = save(folder, file_of(2));
    if (!disk.went_wrong()) break;
    const auto found = folder.load("job");
    ASSERT_TRUE(found.has_value()) << at << ": " << found.error().message;
    const bool is_new = *found == file_of(2);
    EXPECT_TRUE(is_new || *found == file_of(1)) << at;
    // A save that is whole, and only cannot be renamed, is kept beside.
    const bool kept = !saved && saved.error().message.find("the save is in '") != std::string::npos;
    keeps += kept ? 1 : 0;
    EXPECT_EQ(disk.names(), kept ? 2u : 1u) << at << ": no temporary file is left";
    EXPECT_EQ(disk.open_files(), 0u) << at;
    if (!saved) {
      ++failures;
      EXPECT_THAT(saved.error().message, HasSubstr("No space left")) << at;
    }
    disk.go_wrong(FakeDisk::At::kNever, 0);
    ASSERT_TRUE(save(folder, file_of(3)).has_value()) << at << ": the next one is whole";
    EXPECT_EQ(folder.load("job").value(), file_of(3)) << at;
  }
  EXPECT_EQ(failures, 9u) << "the check, create, three writes, sync, close, rename, sync of the folder";
  EXPECT_EQ(keeps, 1u) << "the rename";
}

/// Takes the kept save back, as FAULTS.md says.
void take_back(FakeDisk& disk, const StoreFolder& folder) {
  ASSERT_TRUE(disk.rename(folder.path_of("job") + ".previous", folder.path_of("job")).has_value());
}

TEST(StoreFolderTest, ATrainedSaveOfAnotherJobIsKeptOnce) {
  for (const bool no_links : {false, true}) {
    FakeDisk disk;
    disk.no_links = no_links;
    StoreFolder folder("/saves", 0, disk);
    ASSERT_TRUE(save(folder, file_of(4)).has_value());
    ASSERT_TRUE(save(folder, file_of(5)).has_value());
    EXPECT_EQ(disk.names(), 1u) << "the job replaces its own saves";
    EXPECT_EQ(folder.take_note(), "");
    ASSERT_TRUE(save(folder, file_of(0, "job", 2)).has_value());
    EXPECT_THAT(folder.take_note(), HasSubstr(".previous'"));
    EXPECT_EQ(folder.load("job").value(), file_of(0, "job", 2));
    ASSERT_TRUE(save(folder, file_of(0, "job", 3)).has_value());
    EXPECT_EQ(folder.take_note(), "") << "a save without a step does not replace the trained one";
    EXPECT_EQ(disk.names(), 2u);
    take_back(disk, folder);
    EXPECT_EQ(folder.load("job").value(), file_of(5));
    for (const uint64_t job : {4u, 5u}) ASSERT_TRUE(save(folder, file_of(6, "job", job)).has_value());
    take_back(disk, folder);
    EXPECT_EQ(folder.load("job").value(), file_of(6, "job", 4)) << "one generation";
  }
}

TEST(StoreFolderTest, AFailureAtAnyCallLosesNoTrainedSaveOfAnotherJob) {
  for (const FakeDisk::At how : {FakeDisk::At::kFails, FakeDisk::At::kPowerGoes}) {
    for (uint64_t at = 0;; ++at) {
      FakeDisk disk;
      StoreFolder folder("/saves", 0, disk);
      ASSERT_TRUE(save(folder, file_of(5)).has_value());
      disk.go_wrong(how, at);
      const bool saved = save(folder, file_of(0, "job", 2)).has_value();
      const bool over = !disk.went_wrong();
      disk.come_back(FakeDisk::Unflushed::kThere);
      if (saved || folder.load("job") != file_of(5)) {
        EXPECT_EQ(folder.load("job").value(), file_of(0, "job", 2)) << at;
        take_back(disk, folder);
      }
      EXPECT_EQ(folder.load("job").value(), file_of(5)) << at;
      if (over) break;
    }
  }
}

TEST(StoreFolderTest, WhenThePowerGoesAtAnyCallTheOldOrTheNewSaveIsThereWhole) {
  for (const auto kept : {FakeDisk::Unflushed::kLost, FakeDisk::Unflushed::kHalf, FakeDisk::Unflushed::kThere}) {
    std::set<float> seen;
    for (uint64_t at = 0;; ++at) {
      FakeDisk disk;
      StoreFolder before("/saves", 0, disk);
      ASSERT_TRUE(save(before, file_of(1)).has_value());
      disk.go_wrong(FakeDisk::At::kPowerGoes, at);
      const Status saved = save(before, file_of(2));
      const bool over = !disk.went_wrong();
      disk.come_back(kept);
      StoreFolder after("/saves", 0, disk);
      const auto found = after.load("job");
      ASSERT_TRUE(found.has_value()) << at << ": " << found.error().message;
      seen.insert(found->parts[0].arrays.weights[0]);
      EXPECT_TRUE(*found == file_of(1) || *found == file_of(2)) << at;
      EXPECT_TRUE(!saved || *found == file_of(2)) << at << ": a file that was reported as saved is saved";
      ASSERT_TRUE(save(after, file_of(3)).has_value())
          << at << ": a temporary file that is left does not prevent a save";
      EXPECT_EQ(after.load("job").value(), file_of(3));
      if (over) break;
    }
    EXPECT_EQ(seen, (std::set<float>{1, 2}));
  }
}

TEST(StoreFolderTest, ANewSaveDropsTheUnfinishedOneOfItsJob) {
  FakeDisk disk;
  {
    StoreFolder folder("/saves", 0, disk);
    const SharedBytes some = SharedBytes::from(ByteBuffer{1, 2, 3});
    ASSERT_TRUE(folder.write({What::kBegin, 1, "job", some}).has_value());
    ASSERT_TRUE(folder.write({What::kBegin, 1, "other", some}).has_value());
    ASSERT_TRUE(save(folder, file_of(2)).has_value());
    EXPECT_EQ(folder.load("job").value(), file_of(2));
    EXPECT_EQ(disk.names(), 2u) << "and the other's temporary file";
    EXPECT_EQ(folder.write({What::kAppend, 1, "third", some}).error().code, ErrorCode::kInvalidArgument);
  }
  EXPECT_EQ(disk.names(), 1u) << "an unfinished file disappears with the process";
}

TEST(StoreFolderTest, ASaveThatIsGivenUpLeavesNothing) {
  FakeDisk disk;
  StoreFolder folder("/saves", 0, disk);
  const std::vector<StoreRequest> requests = requests_of(file_of(1));
  ASSERT_TRUE(folder.write(requests[0]).has_value());
  ASSERT_TRUE(folder.write(requests[1]).has_value());
  ASSERT_TRUE(folder.write({What::kGiveUp, 1, "job", {}}).has_value());
  EXPECT_EQ(disk.open_files(), 0u);
  EXPECT_EQ(disk.names(), 0u);
  EXPECT_TRUE(folder.write({What::kGiveUp, 1, "job", {}}).has_value()) << "there is none";
}

/// Two starts of one shard that save in one folder.
struct TwoStarts {
  TwoStarts() {
    EXPECT_TRUE(first.claim().has_value());
    EXPECT_TRUE(second.claim().has_value());
  }
  FakeDisk disk;
  StoreFolder first{"/saves", 0, disk, {.incarnation = 1, .table = "t"}};
  StoreFolder second{"/saves", 0, disk, {.incarnation = 2, .table = "t"}};
};

TEST(StoreFolderTest, AnEarlierStartDoesNotDamageTheSaveOfALaterOne) {
  FakeDisk disk;
  StoreFolder first("/saves", 0, disk, {.incarnation = 1, .table = "t"});
  StoreFolder second("/saves", 0, disk, {.incarnation = 2, .table = "t"});
  ASSERT_TRUE(first.claim().has_value());
  const std::vector<StoreRequest> old = requests_of(file_of(1));
  ASSERT_TRUE(first.write(old[0]).has_value());
  ASSERT_TRUE(first.write(old[1]).has_value());
  ASSERT_TRUE(second.claim().has_value());
  const std::vector<StoreRequest> later = requests_of(file_of(2));
  ASSERT_TRUE(second.write(later[0]).has_value());
  ASSERT_TRUE(first.write(old[1]).has_value()) << "into a file of its own";
  ASSERT_TRUE(second.write(later[1]).has_value());
  ASSERT_TRUE(second.write(later[2]).has_value());
  const Status refused = first.write(old[2]);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kStale);
  EXPECT_THAT(refused.error().message, HasSubstr("start 2 of shard 0 saves in '/saves'"));
  EXPECT_EQ(second.load("job").value(), file_of(2));
  EXPECT_EQ(disk.names(), 2u) << "the save and its owner";
  EXPECT_EQ(disk.open_files(), 0u);
}

TEST(StoreFolderTest, AnEarlierStartBeginsNoSaveAfterALaterOne) {
  TwoStarts starts;
  EXPECT_EQ(save(starts.first, file_of(5)).error().code, ErrorCode::kStale)
      << "also before the first save of the later";
  ASSERT_TRUE(save(starts.second, file_of(2)).has_value());
  EXPECT_EQ(save(starts.first, file_of(5)).error().code, ErrorCode::kStale);
  EXPECT_EQ(starts.first.load("job").value(), file_of(2));
}

TEST(StoreFolderTest, StartsOfAnotherTablesShardDoNotCount) {
  TwoStarts starts;
  StoreFolder other("/saves", 0, starts.disk, {.incarnation = 1, .table = "u"});
  ASSERT_TRUE(other.claim().has_value());
  EXPECT_TRUE(save(other, file_of(1, "others")).has_value());
  EXPECT_TRUE(save(starts.second, file_of(2)).has_value());
}

TEST(StoreFolderTest, TheFirstStartOfANewTableOwnsTheSavesOfTheOldOne) {
  TwoStarts starts;
  ASSERT_TRUE(save(starts.second, file_of(2)).has_value());
  StoreFolder again("/saves", 0, starts.disk, {.incarnation = 1, .table = "t"});
  ASSERT_TRUE(again.claim().has_value());
  EXPECT_EQ(again.load("job").value(), file_of(2));
  EXPECT_TRUE(save(again, file_of(3)).has_value());
}

TEST(StoreFolderTest, AnEarlierStartThatCannotReadTheFolderSavesNothing) {
  TwoStarts starts;
  ASSERT_TRUE(save(starts.second, file_of(2)).has_value());
  starts.disk.unreadable = true;
  EXPECT_EQ(save(starts.first, file_of(1)).error().code, ErrorCode::kIo);
  starts.disk.unreadable = false;
  EXPECT_EQ(starts.second.load("job").value(), file_of(2));
}

TEST(StoreFolderTest, AClaimThatFailsIsRepeatedByTheNextSave) {
  FakeDisk disk;
  StoreFolder folder("/saves", 0, disk, {.incarnation = 3, .table = "t"});
  disk.go_wrong(FakeDisk::At::kFails, 0);
  EXPECT_FALSE(folder.claim().has_value());
  ASSERT_TRUE(save(folder, file_of(1)).has_value());
  StoreFolder earlier("/saves", 0, disk, {.incarnation = 2, .table = "t"});
  EXPECT_EQ(save(earlier, file_of(2)).error().code, ErrorCode::kStale);
}

TEST(StoreFolderTest, AClaimAfterAnOlderTablesStartIsRepeatedToo) {
  FakeDisk disk;
  StoreFolder older("/saves", 0, disk, {.incarnation = 37, .table = "t"});
  ASSERT_TRUE(save(older, file_of(1)).has_value());
  StoreFolder first("/saves", 0, disk, {.incarnation = 1, .table = "t"});
  disk.go_wrong(FakeDisk::At::kFails, 1);  // behind the close of the owner's file: it cannot be written
  EXPECT_FALSE(first.claim().has_value());
  ASSERT_TRUE(save(first, file_of(2)).has_value());
  EXPECT_EQ(first.load("job").value(), file_of(2));
  StoreFolder second("/saves", 0, disk, {.incarnation = 2, .table = "t"});
  ASSERT_TRUE(second.claim().has_value());
  EXPECT_EQ(save(first, file_of(3)).error().code, ErrorCode::kStale);
}

TEST(StoreFolderTest, AStartWhoseClaimFailedSavesNothingAfterALaterOne) {
  FakeDisk disk;
  StoreFolder older("/saves", 0, disk, {.incarnation = 37, .table = "t"});
  ASSERT_TRUE(older.claim().has_value());
  StoreFolder first("/saves", 0, disk, {.incarnation = 1, .table = "t"});
  disk.go_wrong(FakeDisk::At::kFails, 1);  // behind the close of the owner's file: it cannot be written
  EXPECT_FALSE(first.claim().has_value());
  StoreFolder second("/saves", 0, disk, {.incarnation = 2, .table = "t"});
  ASSERT_TRUE(second.claim().has_value());
  EXPECT_EQ(save(first, file_of(1)).error().code, ErrorCode::kStale);
}

TEST(StoreFolderTest, ASaveRemovesTheTemporaryFilesOfDeadProcesses) {
  const Folder directory;
  const std::unique_ptr<Disk> disk = system_disk();
  StoreFolder folder(directory.path, 0, *disk, {.incarnation = 9, .table = "t"});
  ASSERT_TRUE(folder.claim().has_value());
  // A process that died while it claimed the saves leaves this name alone.
  const std::string owner = std::filesystem::directory_iterator(directory.path)->path().string();
  std::filesystem::rename(owner, owner + ".new-8-77");
  const std::string path = folder.path_of("job");
  for (const char* end : {".new", ".new-8-77", ".new-of-another-job"}) std::ofstream(path + end) << "x";
  ASSERT_TRUE(save(folder, file_of(1)).has_value());
  EXPECT_FALSE(std::filesystem::exists(path + ".new"));
  EXPECT_FALSE(std::filesystem::exists(path + ".new-8-77"));
  EXPECT_TRUE(std::filesystem::exists(path + ".new-of-another-job"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory.path), {}), 3) << "and the save, and its owner";
}

TEST(StoreFolderTest, EveryJobAndShardHasAFileOfItsOwn) {
  FakeDisk disk;
  const StoreFolder folder("/saves", 0, disk);
  const StoreFolder other_shard("/saves", 1, disk);
  std::set<std::string> paths;
  for (const std::string& name : {std::string("a"), std::string("b"), std::string("../a"), std::string("a/b"),
                                  std::string("a%2Fb"), std::string(255, 'x'), std::string(254, 'x') + "y"}) {
    for (const StoreFolder* one : {&folder, &other_shard}) {
      const std::string path = one->path_of(name);
      EXPECT_TRUE(paths.insert(path).second) << path;
      EXPECT_EQ(path.rfind('/'), std::string("/saves").size()) << path;
      EXPECT_LT(path.size(), 255u);
    }
  }
}

TEST(StoreFolderTest, OnTheSystemsDisk) {
  const Folder directory;
  const std::unique_ptr<Disk> disk = system_disk();
  StoreFolder folder(directory.path, 0, *disk);
  EXPECT_THAT(folder.load("job").error().message, HasSubstr("No such file or directory"));
  ASSERT_TRUE(save(folder, file_of(1)).has_value());
  ASSERT_TRUE(save(folder, file_of(2)).has_value());
  EXPECT_EQ(folder.load("job").value(), file_of(2));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory.path), {}), 1);
  std::ofstream(folder.path_of("job"), std::ios::app) << "x";
  EXPECT_THAT(folder.load("job").error().message, HasSubstr(folder.path_of("job")));
  StoreFolder nowhere(directory.path + "/none", 0, *disk);
  EXPECT_THAT(save(nowhere, file_of(1)).error().message, HasSubstr("cannot create"));
}

TEST(StoreFolderTest, ASaveThatCannotTakeItsPlaceStaysWhole) {
  const Folder directory;
  const std::unique_ptr<Disk> disk = system_disk();
  StoreFolder folder(directory.path, 0, *disk);
  std::filesystem::create_directory(folder.path_of("job"));
  const Status refused = save(folder, file_of(1));
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().message, HasSubstr("it is a folder")) << "found out before anything is written";
  std::filesystem::remove(folder.path_of("job"));

  const StoreFile file = file_of(2);
  const StoreRecord header = encode_store_header(file.header);
  ByteBuffer first(store_file_magic().begin(), store_file_magic().end());
  first.insert(first.end(), header.bytes.begin(), header.bytes.end());
  StoreRecord part = encode_store_part(0, file.parts[0].position, file.parts[0].arrays, header.hash);
  StoreRecord end = encode_store_end(1, part.hash);
  ASSERT_TRUE(folder.write({What::kBegin, 1, "job", SharedBytes::from(std::move(first))}).has_value());
  ASSERT_TRUE(folder.write({What::kAppend, 1, "job", SharedBytes::from(std::move(part.bytes))}).has_value());
  std::filesystem::create_directory(folder.path_of("job"));  // after the check
  const Status kept = folder.write({What::kEnd, 1, "job", SharedBytes::from(std::move(end.bytes))});
  ASSERT_FALSE(kept.has_value());
  EXPECT_THAT(kept.error().message, HasSubstr("the save is in '" + folder.path_of("job") + ".kept'"));
  std::filesystem::remove(folder.path_of("job"));
  std::filesystem::rename(folder.path_of("job") + ".kept", folder.path_of("job"));
  EXPECT_EQ(folder.load("job").value(), file);
}

TEST(StoreFolderTest, AFileThatMayNotGrowLeavesTheOldOne) {
  const Folder directory;
  const std::unique_ptr<Disk> disk = system_disk();
  StoreFolder folder(directory.path, 0, *disk);
  ASSERT_TRUE(save(folder, file_of(1)).has_value());
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = 100, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status saved = save(folder, file_of(2));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  ASSERT_FALSE(saved.has_value());
  EXPECT_THAT(saved.error().message, HasSubstr("File too large"));
  EXPECT_EQ(folder.load("job").value(), file_of(1));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory.path), {}), 1);
}

TEST(StoreThreadTest, RequestsRunInOrderAndFinishBeforeShutdown) {
  const Folder directory;
  std::atomic<int> woken = 0;
  std::counting_semaphore<> answered(0);
  std::vector<StoreThread::Answer> answers;
  {
    StoreThread thread(directory.path, 0, system_disk(), [&] {
      ++woken;
      answered.release();
    });
    const StoreFile file = file_of(4);
    const StoreRecord header = encode_store_header(file.header);
    ByteBuffer first(store_file_magic().begin(), store_file_magic().end());
    first.insert(first.end(), header.bytes.begin(), header.bytes.end());
    StoreRecord part = encode_store_part(0, file.parts[0].position, file.parts[0].arrays, header.hash);
    StoreRecord end = encode_store_end(1, part.hash);
    std::vector<StoreRequest> requests = {{What::kBegin, 1, "job", SharedBytes::from(std::move(first))},
                                          {What::kAppend, 1, "job", SharedBytes::from(std::move(part.bytes))},
                                          {What::kEnd, 1, "job", SharedBytes::from(std::move(end.bytes))},
                                          {What::kLoad, 2, "job", {}}};
    thread.submit(requests);
    EXPECT_TRUE(requests.empty());
    for (int count = 0; count < 4; ++count) ASSERT_TRUE(answered.try_acquire_for(std::chrono::seconds(10)));
    thread.take_done(answers);
    std::vector<StoreRequest> last = {{What::kLoad, 3, "none", {}}};
    thread.submit(last);
  }
  EXPECT_EQ(woken, 5) << "also for the last request";
  for (size_t at = 0; at < 3; ++at) EXPECT_TRUE(std::get<Status>(answers[at].result).has_value()) << at;
  ASSERT_EQ(answers.size(), 4u);
  EXPECT_EQ(std::get<Result<StoreFile>>(answers[3].result).value(), file_of(4));
  EXPECT_EQ(answers[3].job, 2u);
}

}  // namespace
}  // namespace millrace::server
