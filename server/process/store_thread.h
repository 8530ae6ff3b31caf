#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "server/process/save_folder.h"

namespace millrace::server {

/// Runs the thread that carries out the stores' requests to the disk, one after the other: the loop never waits for a
/// disk.
class StoreThread {
 public:
  struct Answer {
    uint64_t job = 0;
    std::variant<Status, Result<StoreFile>> result;
    std::string note = {};  ///< for the log; may be empty
  };

  /// wake   called from the thread when there is an answer.
  StoreThread(std::string folder, uint32_t shard, std::unique_ptr<Disk> disk, std::function<void()> wake,
              ShardStart start = {});
  /// Finishes the requests.
  ~StoreThread();
  StoreThread(const StoreThread&) = delete;
  StoreThread& operator=(const StoreThread&) = delete;

  /// Takes the requests out of `requests`: all, or none where memory runs out (std::bad_alloc).
  void submit(std::vector<StoreRequest>& requests);
  /// Moves the finished answers to the end of `done`.
  void take_done(std::vector<Answer>& done);

 private:
  void run();
  void claim_folder();
  Answer execute_request(const StoreRequest& request);

  std::unique_ptr<Disk> disk_;
  StoreFolder folder_;
  std::function<void()> wake_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<StoreRequest> asked_;
  std::vector<Answer> done_;
  bool closing_ = false;
  std::thread thread_;  ///< last: it uses all of the above
};

/// Starts the thread for the saves of this start of the shard, on the system's disk.
std::unique_ptr<StoreThread> start_store_thread(const Options& options, uint64_t incarnation,
                                                std::function<void()> wake);

}  // namespace millrace::server
