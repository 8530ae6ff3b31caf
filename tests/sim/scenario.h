#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/random.h"
#include "protocol/job/job_spec.h"
#include "tests/support/sim_network.h"

namespace millrace::testing {

/// One thing that goes wrong in a run, and when.
struct SimFault {
  enum class Kind : uint8_t {
    kPartition,       ///< nodes a and b cannot reach each other
    kOneWay,          ///< nothing from a reaches b
    kIsolate,         ///< node a and the other nodes do not reach each other
    kStall,           ///< node a handles nothing, then everything at once
    kDisconnect,      ///< worker a's connection to shard b breaks
    kKillWorker,      ///< SIGKILL; it starts again after `duration` where the scenario has restarts
    kLeave,           ///< worker a leaves by itself, with a goodbye
    kRestartWorker,   ///< a new process under the identity of worker a (the old one may live: then it is an impostor)
    kKillShard,       ///< SIGKILL; it starts again, empty, after `duration` (0: never)
    kShutdownShard,   ///< SIGTERM: it drains
    kTableFails,      ///< what shard a writes to the membership table fails
    kKillAllWorkers,  ///< SIGKILL of all of them; they start again, each within `duration`
    kTableAway,       ///< the membership table does not answer shard a at all
    kTableMaybe,      ///< what shard a writes to it times out, and takes effect, or not, or later
    kTableSlow,       ///< every answer of it to shard a takes up to b milliseconds
  };
  Kind kind = Kind::kPartition;
  TimeNs at = 0;
  TimeNs duration = 0;
  uint32_t a = 0;
  uint32_t b = 0;
};

inline constexpr uint32_t kNobody = UINT32_MAX;

/// Everything about a run that a seed decides in advance.
struct Scenario {
  uint64_t seed = 0;
  uint32_t shards = 1;
  protocol::JobSpec spec;
  std::vector<uint64_t> steps;     ///< [workers] that each pushes before it finishes
  int grid_exponent = -4;          ///< gradients are multiples of 2^this
  uint32_t grid_steps_max = 64;    ///< ... up to this number
  double link_rate = 0;            ///< bits per second, as stated to all: what codec auto goes by; 0: not stated
  double density_max = 1;          ///< of a pushed gradient
  double sparse_pushes = 0.5;      ///< share of pushes by push_sparse
  double non_finite_pushes = 0;    ///< share of pushes that first try a gradient with NaN or infinity in it
  TimeNs think_max = 0;            ///< between pushes
  uint32_t slow_worker = kNobody;  ///< thinks ten times as long
  bool tensors_in_turn = false;    ///< a bucket's steps are pushed once those of the bucket before are
  double hostile = 0;  ///< share of the workers' messages that a stranger repeats, altered, to the same shard
  uint64_t job_memory_bytes = 0;  ///< a shard's limit for the job; 0: its default
  bool real_bytes = false;
  TimeNs shard_start_max = 300 * kNsPerMs;  ///< shards start within this
  TimeNs task_max = 0;                      ///< tasks take up to this; 0: inline
  bool eager_work = true;                   ///< false: coding is spread over several turns
  SimLinkFaults link;                       ///< until calm_from
  std::vector<SimFault> faults;             ///< all over by calm_from, but for what never heals
  TimeNs calm_from = 0;                     ///< from here on the network is perfect
  bool stop_when_over = false;              ///< do not wait for the calm when all workers are over
  bool has_weights = true;                  ///< workers can give and take snapshots
  /// Workers rejoin: with another's weights, or with none where the shards hold them.
  bool may_rejoin() const { return has_weights || spec.has_store(); }
  bool merged = false;           ///< workers take several steps in one update; exact ones only, their sums are compared
  bool restarts = false;         ///< a killed process starts again
  double saves = 0;              ///< share of pushes after which a worker saves its state
  double forgets = 0;            ///< share of starts that find no saved state
  bool store_saves = false;      ///< shards have a disk for the stores of jobs
  TimeNs store_every = 0;        ///< they save so often; 0: only when there is a reason
  TimeNs disk_max = 0;           ///< a request to the disk takes up to this
  double disk_fails = 0;         ///< share of the requests to it
  bool decided_lists = true;     ///< false: workers see heartbeats without the list of decided parts
  bool own_clocks = false;       ///< every process has a clock of its own, that began at some time
  uint32_t clock_drift_ppm = 0;  ///< ... and runs faster or slower by this, at most
  bool exact = true;             ///< every value stays on a binary grid: the law holds bit for bit
};

/// REQUIRES nothing: every seed is a scenario. Shares: a quarter perfect networks, a quarter lossy ones, half with
/// processes and partitions failing.
Scenario draw_scenario(uint64_t seed);

/// The same seed's scenario in mode asynchronous. Of draw_scenario()'s one in seven is that already.
Scenario draw_asynchronous(uint64_t seed);

/// A few lines for the reader of a trace.
std::string describe(const Scenario& scenario);
std::string describe(const SimFault& fault);

/// True when something in the scenario may make a shard remove a worker that lives.
bool may_silence_workers(const Scenario& scenario);

}  // namespace millrace::testing
