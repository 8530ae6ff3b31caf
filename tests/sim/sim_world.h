#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "protocol/job/layout.h"
#include "protocol/table/membership_table.h"
#include "tests/sim/cluster_oracle.h"
#include "tests/sim/scenario.h"
#include "tests/support/memory_table.h"
#include "tests/support/sim_network.h"

namespace millrace::testing {

class SimShard;
class SimWorker;

/// The state that the processes of one run share. Nodes of the network: shards first, then the workers' identities.
struct SimWorld {
  explicit SimWorld(const Scenario& drawn);
  ~SimWorld();

  uint32_t worker_node(uint32_t worker) const { return scenario.shards + worker; }

  /// A line of the trace: printed when MILLRACE_SIM_TRACE is set.
  void trace(const std::string& line);
  /// Reports a violation. The run continues, so that the trace shows the consequences.
  void fault(const std::string& sentence);
  /// Reads every change of the table into the oracle. Called after any code that may have swapped it.
  void watch_table();

  Scenario scenario;
  SimScheduler scheduler;
  SimNetwork network;
  protocol::JobLayout layout;
  ClusterOracle oracle;
  std::shared_ptr<millrace::testing::MemoryTableState> table_state;
  std::unique_ptr<protocol::MembershipTable> table;
  std::vector<std::unique_ptr<SimShard>> shards;
  std::vector<std::unique_ptr<SimWorker>> workers;  ///< processes; the first are the job's own, others start later
  std::vector<std::string> faults;
  uint64_t table_changes = 0;
  uint64_t connections = 0;               ///< opened so far
  uint64_t job = 0;                       ///< its number, once it is in the table
  TimeNs job_ended_at = 0;                ///< 0: it has not
  std::optional<ErrorCode> job_end_code;  ///< of an end that is not all workers' own
  bool tracing = false;
};

/// A process of the run: it can be stalled and killed, and has one timer.
class SimProcess {
 public:
  SimProcess(SimWorld& world, std::string name);
  virtual ~SimProcess() = default;

  bool alive() const { return alive_; }
  /// Grows when the process is killed or started: a message for an earlier process does not reach a later one.
  uint64_t generation() const { return generation_; }
  void stall_until(TimeNs until) { stalled_until_ = std::max(stalled_until_, until); }
  bool stalled() const { return stalled_until_ > world_.scheduler.now(); }
  const std::string& name() const { return name_; }
  /// By this process's clock.
  TimeNs now() const { return clock_.at(world_.scheduler.now()); }

 protected:
  /// Runs `body` as this process: now, or when its stall is over, or never when it died.
  void run(const std::function<void()>& body);
  void run_in(uint64_t generation, const std::function<void()>& body);
  void set_alive(bool alive);
  /// Makes tick() be called no later than `deadline`.
  void arm(TimeNs deadline);
  virtual void tick() = 0;
  virtual TimeNs deadline() const = 0;

  SimWorld& world_;

 private:
  /// A monotonic clock: not that of others, and not as fast.
  struct Clock {
    TimeNs began = 0;
    int64_t drift_ppm = 0;
    TimeNs at(TimeNs time) const { return began + time + time * drift_ppm / 1'000'000; }
    /// The first time at which the clock shows `shown` or later.
    TimeNs when(TimeNs shown) const;
  };

  void draw_clock();
  void fire();

  RandomSequence clock_random_;
  Clock clock_;
  std::string name_;
  bool alive_ = false;
  uint64_t generation_ = 0;
  TimeNs stalled_until_ = 0;
  TimeNs armed_for_ = kNever;
  uint32_t ticks_without_progress_ = 0;

  static constexpr TimeNs kNever = INT64_MAX;
};

}  // namespace millrace::testing
