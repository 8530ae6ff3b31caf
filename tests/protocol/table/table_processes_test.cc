#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <vector>

#include "kernels/base/random.h"
#include "protocol/table/membership_table.h"
#include "protocol/table/table_rules.h"
#include "tests/protocol/temporary_directory.h"

/// Several processes on one membership table: the compare-and-swap is atomic, and a kill at any moment leaves the table
/// whole.
namespace millrace::protocol {
namespace {

/// Runs `body` in a child process; its return value is the exit code.
pid_t fork_child(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  return child;
}

int exit_code_of(pid_t child) {
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/// Adds 1 to the incarnation of worker 0 by compare-and-swap, `times` times.
int count_up(const std::string& path, int times) {
  auto table = open_sqlite_table(path);
  if (!table) return 2;
  for (int done = 0; done < times;) {
    auto read = (*table)->read_job("train");
    if (!read || !*read) return 3;
    JobRecord next = **read;
    const uint64_t expected = next.membership.epoch++;
    ++next.last_incarnations.at(0).second;
    const auto swapped = (*table)->compare_and_swap(expected, next);
    if (!swapped) return 4;
    done += *swapped ? 1 : 0;
  }
  return 0;
}

void create_counter(const std::string& path) {
  auto table = open_sqlite_table(path).value();
  JobRecord record = table->create_job("train", ByteBuffer{1}).value();
  record.membership.epoch = 2;
  record.last_incarnations = {{0, 0}};
  ASSERT_EQ(table->compare_and_swap(1, record), true);
}

TEST(TableProcesses, RacingSwapsLoseNothing) {
  TemporaryDirectory directory;
  const std::string path = directory.file("table.db");
  create_counter(path);
  constexpr int kProcesses = 3;
  constexpr int kTimes = 40;
  std::vector<pid_t> children;
  for (int i = 0; i < kProcesses; ++i) children.push_back(fork_child([&] { return count_up(path, kTimes); }));
  for (const pid_t child : children) EXPECT_EQ(exit_code_of(child), 0);
  const auto record = open_sqlite_table(path).value()->read_job("train").value();
  ASSERT_TRUE(record);
  EXPECT_EQ(record->last_incarnations.at(0).second, uint64_t{kProcesses} * kTimes);
  EXPECT_EQ(record->membership.epoch, 2u + uint64_t{kProcesses} * kTimes);
}

TEST(TableProcesses, ProcessesThatCreateTheTableAtOnceAllGetTheOneJob) {
  TemporaryDirectory directory;
  const std::string path = directory.file("table.db");
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) {
    children.push_back(fork_child([&path, i] {
      auto table = open_sqlite_table(path);
      if (!table) return 100;
      const auto incarnation = (*table)->start_shard(0, 1, "tcp://a:" + std::to_string(i));
      const auto record = (*table)->create_job("train", ByteBuffer{static_cast<uint8_t>(i)});
      const bool is_first = record && record->membership.job >> kJobNumberRandomBits == 1;
      return incarnation && is_first ? static_cast<int>(*incarnation) : 101;
    }));
  }
  int incarnations = 0;
  for (const pid_t child : children) incarnations += exit_code_of(child);
  EXPECT_EQ(incarnations, 1 + 2 + 3 + 4) << "every start must get an incarnation of its own";
}

TEST(TableProcesses, AKillAtAnyMomentLeavesTheTableWhole) {
  TemporaryDirectory directory;
  const std::string path = directory.file("table.db");
  create_counter(path);
  RandomSequence random(RandomKey::from(20261121));
  for (int round = 0; round < 8; ++round) {
    const uint64_t before = open_sqlite_table(path).value()->read_job("train").value()->last_incarnations.at(0).second;
    int fds[2];
    ASSERT_EQ(pipe(fds), 0);
    const pid_t child = fork_child([&] {
      close(fds[0]);
      // One byte for each swap that has returned: the parent may rely on these swaps.
      while (count_up(path, 1) == 0 && write(fds[1], "x", 1) == 1) {
      }
      return 0;
    });
    close(fds[1]);
    // Killed after a random number of reported swaps, at any point of its work.
    const uint64_t wait_for = random.next_below(12);
    uint64_t reported = 0;
    char byte = 0;
    while (reported < wait_for && read(fds[0], &byte, 1) == 1) ++reported;
    kill(child, SIGKILL);
    exit_code_of(child);
    while (read(fds[0], &byte, 1) == 1) ++reported;
    close(fds[0]);
    const auto record = open_sqlite_table(path).value()->read_job("train");
    ASSERT_TRUE(record) << record.error().message;
    const uint64_t after = (**record).last_incarnations.at(0).second;
    EXPECT_GE(after, before + reported) << "a swap that returned true must stay";
    EXPECT_LE(after, before + reported + 1) << "at most the one under way when the kill came";
    EXPECT_EQ((**record).membership.epoch, 2 + after);
  }
  EXPECT_EQ(count_up(path, 1), 0) << "the survivors go on";
}

}  // namespace
}  // namespace millrace::protocol
