#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "worker/launch/child_process.h"

namespace millrace::testing {

/// No event of a healthy run takes this long, also under sanitizers on a busy machine.
inline constexpr int kPatienceMs = 120'000;

/// Holds the parsed output of one worker: see test_worker.cc.
struct WorkerLog {
  std::vector<std::string> lines;
  std::map<std::pair<uint64_t, uint64_t>, uint64_t> contributors;  ///< (step, begin of the piece) -> bit mask
  std::string weights;
  std::string error;  ///< "shard_lost: sentence"; empty: none
  bool finished = false;
  bool broken = false;  ///< a piece's entries disagreed about the contributors
  int exit_code = -1;
};

/// Real millrace-servers and test_workers in a directory of their own; all are ended with the test.
class ClusterProcesses : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  /// Starts shard `shard` of `shards` on a free port, or on that one; its address goes to addresses_.
  void start_shard(uint32_t shard, uint32_t shards, const std::string& listen = "tcp://127.0.0.1:0");
  void start_shards(uint32_t shards);
  /// The program alone: for those that are expected not to come up.
  launch::ChildProcess spawn_server(uint32_t shard, uint32_t shards, const std::string& listen);

  launch::ChildProcess start_worker(uint32_t worker, uint32_t workers, uint64_t steps,
                                    const std::vector<std::string>& settings = {});

  /// Reads lines until one begins with `beginning`; fails the test when the output ends or nothing comes. Returns that
  /// line.
  std::string wait_for_line(launch::ChildProcess& process, const std::string& beginning, WorkerLog* log = nullptr);
  /// Reads all that is left and waits for the end.
  void read_to_end(launch::ChildProcess& process, WorkerLog& log);

  std::string path(const std::string& name) const { return directory_ + "/" + name; }
  std::string text_of(const std::string& name) const;
  std::string addresses() const;

  std::vector<std::string> server_flags_;  ///< for those that are started from now on
  std::string directory_;
  std::vector<std::unique_ptr<launch::ChildProcess>> shards_;
  std::vector<std::string> addresses_;
  std::vector<std::string> http_addresses_;
  uint32_t logs_ = 0;
};

/// Returns the weights of test_worker after these contributors, by the definition of its gradients; in the format of
/// its output.
std::string replayed_weights(const WorkerLog& log, uint64_t dimension, float begin = 0);

}  // namespace millrace::testing
