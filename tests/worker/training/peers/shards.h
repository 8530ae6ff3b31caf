#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/process/process.h"
#include "tests/worker/temporary_folder.h"

namespace millrace::training::testing {

/// Shards of this process, a thread each, on free ports of the loopback.
class Shards {
 public:
  explicit Shards(uint32_t count) {
    for (uint32_t shard = 0; shard < count; ++shard) {
      server::Options options;
      options.shard = shard;
      options.shards = count;
      options.listen = "tcp://127.0.0.1:0";
      options.table.location = folder_ / "table";
      options.threads = 1;
      options.quiet = true;
      auto started = server::ShardProcess::start(options);
      if (!started) {
        ADD_FAILURE() << started.error().message;
        continue;
      }
      addresses_.push_back((*started)->address());
      processes_.push_back(std::move(*started));
      threads_.emplace_back([process = processes_.back().get()] { EXPECT_TRUE(process->run()); });
    }
  }
  Shards(const Shards&) = delete;
  Shards& operator=(const Shards&) = delete;
  ~Shards() {
    for (const auto& process : processes_) process->request_stop();
  }

  const std::vector<std::string>& addresses() const { return addresses_; }

 private:
  TemporaryFolder folder_;
  std::vector<std::string> addresses_;
  std::vector<std::unique_ptr<server::ShardProcess>> processes_;
  std::vector<std::jthread> threads_;  ///< before the processes they run
};

}  // namespace millrace::training::testing
