#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/log_line.h"
#include "kernels/base/result.h"
#include "monitoring/status/shard_status.h"
#include "protocol/datagram/job_numbers.h"
#include "protocol/job/job_spec.h"
#include "protocol/job/switch_layout.h"
#include "server/access/job_keys.h"
#include "switch_agg/aggregator/aggregator.h"
#include "switch_agg/packet_io/udp_port.h"

namespace millrace::server {

struct DatagramOptions {
  std::string listen;  ///< "192.0.2.1:7800"; port 0: a free one.
  /// The keys of jobs, as JobKeys reads them. FOLDER/<number at the switch>.racks, if it exists, lists the racks
  /// whose switches add up in front of this shard (switch_agg/process/jobs_file.h).
  std::string key_folder;
  uint64_t memory_bytes_max = 0;  ///< of one job
};

/// Replaces switches at shard 0. It has one UDP port, and for each job of path switch a slot machine of its own,
/// exactly as large as that job requires. It is the same machine as in millrace-switch, so that workers talk to both in
/// the same way. The table says which of them decides.
///
/// Threads  one of its own for packets. Everything public: the shard's loop, but for address(), which any thread may
///          call.
class DatagramThread {
 public:
  /// Errors   invalid_argument: an address that no worker could send to; io: the port is in use.
  static Result<std::unique_ptr<DatagramThread>> start(const DatagramOptions& options, uint64_t incarnation_seed);
  ~DatagramThread();
  DatagramThread(const DatagramThread&) = delete;
  DatagramThread& operator=(const DatagramThread&) = delete;

  /// Returns the bound address, "192.0.2.1:7800".
  const std::string& address() const { return address_; }

  /// Returns whether it can serve this job.
  /// Errors   invalid_argument: there is no key, or no valid list of racks, and the remedy; limit_exceeded: memory; the
  ///          refusals of the slot machine.
  Status judge(const protocol::JobSpec& spec, const protocol::SwitchLayout& layout);
  /// Takes the job's memory and serves it soon. The same number again starts again, under another incarnation.
  /// Errors   as judge().
  Status begin(uint64_t job, const protocol::JobSpec& spec, const protocol::SwitchLayout& layout);
  void end(uint64_t job);
  /// Reads the files of the keys again, for jobs that begin from now on. Returns lines for the log, as JobKeys does.
  std::vector<LogLine> reload_keys() { return keys_.reload(); }
  /// Returns a report that is at most kReportEvery old.
  std::optional<AggregatorStatus> report(uint64_t job) const;
  /// Returns the datagrams that no job has seen, by reason; at most kReportEvery old.
  std::vector<NamedCount> dropped() const;

  static constexpr TimeNs kTickEvery = kNsPerMs;
  static constexpr TimeNs kReportEvery = 100 * kNsPerMs;

 private:
  /// One job's machine, and its memory and counters.
  struct Served {
    uint64_t job = 0;
    protocol::JobNumbers numbers;  ///< at the switch
    uint64_t memory_bytes = 0;
    uint32_t racks = 0;
    switch_agg::Aggregator aggregator;
    uint64_t received_bytes = 0;
  };
  /// A command of the loop to the thread.
  struct AggregatorCommand {
    uint64_t job = 0;
    std::unique_ptr<Served> served;  ///< empty: end it
  };

  DatagramThread(const DatagramOptions& options, std::unique_ptr<switch_agg::UdpPort> port, uint64_t incarnation_seed);
  static AggregatorStatus report_of(const Served& served, TimeNs now);
  Result<protocol::JobKey> key_of(uint32_t number);
  /// Returns the workers of each rack; none where there is no list.
  Result<std::vector<uint64_t>> racks_of(uint32_t number) const;
  void run();
  size_t serve_burst(TimeNs now);
  void run_commands();
  void write_reports(TimeNs now);

  DatagramOptions options_;
  std::string address_;
  uint64_t incarnation_seed_;
  uint64_t begun_ = 0;
  JobKeys keys_;

  // Of the thread.
  std::unique_ptr<switch_agg::UdpPort> port_;
  std::vector<std::unique_ptr<Served>> served_;
  uint64_t too_short_ = 0;
  uint64_t wrong_job_ = 0;

  std::atomic<bool> stop_ = false;
  std::atomic<bool> has_commands_ = false;
  mutable std::mutex mutex_;  ///< guards the members below
  std::vector<AggregatorCommand> commands_;
  std::map<uint64_t, AggregatorStatus> reports_;
  std::vector<NamedCount> dropped_;
  std::thread thread_;  ///< last
};

/// Returns the seed of the aggregators' incarnations: two starts must not draw the same.
uint64_t random_incarnation_seed();

/// Returns the memory that a job's slot machine takes with this number of racks in front of it (switch_agg/DESIGN.md,
/// "Memory").
uint64_t aggregator_bytes(const protocol::JobSpec& spec, const protocol::SwitchLayout& layout, size_t racks);

}  // namespace millrace::server
