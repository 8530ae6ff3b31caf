#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/result.h"
#include "protocol/table/membership_table.h"

namespace millrace::server {

/// Collects the status of the cluster's processes for the page: the shards and spares of the membership table, and
/// workers that the operator names. One thread collects once a second while a reader asks, and rests otherwise.
///
/// Threads  json(): any.
class ClusterWatch {
 public:
  static constexpr TimeNs kEvery = kNsPerS;
  /// Time after the last question until the thread rests.
  static constexpr TimeNs kWatchedFor = 10 * kNsPerS;
  /// Longest text of all collected statuses. The row of a status that does not fit has a sentence instead.
  static constexpr size_t kBytesMax = size_t{8} << 20;
  /// Longest status of one process, and most members of all its jobs. A longer one is left out.
  static constexpr size_t kStatusBytesMax = size_t{2} << 20;
  static constexpr size_t kMembersMax = 16'384;
  /// Time until a process that did not answer is asked again.
  static constexpr TimeNs kAskAgainAfter = 5 * kNsPerS;

  struct Sources {
    /// Opens a table for this thread alone; called again after an error.
    std::function<Result<std::unique_ptr<protocol::MembershipTable>>()> open_table;
    /// Returns the body of GET /status of the process at "HOST:PORT". Called by several threads at once.
    std::function<Result<std::string>(const std::string& http)> fetch;
    std::string own_address;                  ///< this process's address for workers, as the table has it
    std::function<std::string()> own_status;  ///< this process's status: asking the own port could block it
    std::vector<std::string> workers;         ///< "HOST:PORT" of their HTTP ports
  };

  explicit ClusterWatch(Sources sources);
  ~ClusterWatch();
  ClusterWatch(const ClusterWatch&) = delete;
  ClusterWatch& operator=(const ClusterWatch&) = delete;

  /// Returns the last collection as one JSON object, without waiting:
  /// - age_ms: of the collection. Before the first one there is {"collecting": true}.
  /// - shards: shard, state, http, address, software, and either status or problem. `state` is serving, draining,
  ///   gone, or never_started.
  /// - spares: http, address, software.
  /// - workers: http, and either status or problem.
  /// - table_problem: a sentence, if the table cannot be read.
  ///
  /// Other processes' texts appear in known fields alone: a field that this build does not know is left out.
  std::string json();
  /// Asks, and blocks until a collection is there. For tests.
  void await_collection();

 private:
  /// A process that did not answer.
  struct Silent {
    TimeNs ask_at = 0;
    Error error;
  };
  struct Question;

  void run();
  void ask_all(std::vector<Question>& questions);
  std::string collect();
  Result<protocol::ClusterView> read_table();

  const Sources sources_;
  std::unique_ptr<protocol::MembershipTable> table_;
  std::map<std::string, Silent> silent_;  ///< by HTTP address
  std::mutex mutex_;
  std::condition_variable changed_;
  TimeNs asked_ = 0;
  std::atomic<bool> ending_ = false;
  std::string collected_;
  TimeNs collected_at_ = 0;
  std::thread thread_;  ///< last: it uses the members above
};

/// Returns where other hosts reach the HTTP port of a shard's process. A process that listens at every address of its
/// host is at the host of its address for workers. Empty: it has no HTTP port.
std::string reachable_http(const protocol::ProcessNote& process);

}  // namespace millrace::server
