#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/sim/scenario.h"

namespace millrace::testing {

/// Holds the results of a run.
struct SimReport {
  std::vector<std::string> faults;  ///< empty: everything that must hold held
  uint64_t trace_hash = 0;
  uint64_t events = 0;
  uint64_t steps_decided = 0;  ///< of parts
  uint32_t finished = 0;       ///< workers that finished
  uint32_t ended = 0;          ///< ... that ended with an error that the scenario explains
  uint32_t killed = 0;
  uint64_t refused = 0;  ///< messages that shards refused
  uint64_t digests_agreed = 0;
  uint32_t removed = 0;            ///< removals by shards
  uint64_t returns = 0;            ///< workers that became synced again
  uint64_t shortened = 0;          ///< contributions that went out coded against the history
  uint64_t shortened_refused = 0;  ///< ... that the shard could not read
  uint64_t shard_restarts = 0;
  uint64_t cuts = 0;
  uint64_t steps_void = 0;      ///< steps of parts that were decided twice
  uint64_t updates_merged = 0;  ///< messages with several steps in one update
  uint64_t law_checks = 0;
  double lost = 0;                  ///< sum of |value| over the ledgers of all workers, dead ones included
  uint64_t store_checks = 0;        ///< of a part's weights at its shard
  uint64_t stores_found_again = 0;  ///< shards that were killed and had a job's weights again
  uint32_t stores_lost = 0;         ///< 1: the job ended since they could not be found
  TimeNs virtual_time = 0;
  TimeNs first_finished = 0;  ///< the first worker; 0: none
};

enum class SimTrace : uint8_t { kSilent, kPrinted };

/// Runs a whole cluster of production cores (shards, workers, the in-memory table) through the scenario. Checks,
/// against accounts that it keeps itself:
/// - the law, per tensor and index, for every worker that lives, at random moments and at the end;
/// - every update against the contributions that it names; nothing counted twice; one update per part and step for all;
/// - weights bit by bit against the replay of the updates' contributors;
/// - weights that shards hold, and save, the same way;
/// - that the digests of workers' applied updates equal those of the decided updates;
/// - that every worker that lives finishes within bounded time after the network is calm, or ends with an error that
///   the
///   scenario explains;
/// - that dead workers are evicted, and that no process polls in a busy loop.
SimReport run_cluster(const Scenario& scenario, SimTrace trace = SimTrace::kSilent);

}  // namespace millrace::testing
