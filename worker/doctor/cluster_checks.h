#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kernels/base/clock.h"
#include "worker/doctor/check.h"
#include "worker/doctor/cluster_facts.h"

/// Judges the facts of a cluster. Pure functions.
namespace millrace::doctor {

/// Says which process judges.
struct OwnFacts {
  std::string software;   ///< software_name() of this build
  bool has_keys = false;  ///< --key and --server-key were given
};

std::vector<Check> judge_table(const TableFacts& facts);

/// Judges one shard, and the path from this host to it.
std::vector<Check> judge_shard(const ShardFacts& facts, const OwnFacts& own);

/// Judges the round trip of one path.
Check judge_latency(const std::string& subject, std::optional<TimeNs> round_trip);

/// Judges the rate of one path. A transfer of few round trips shows none.
Check judge_transfer(const std::string& subject, const TransferFacts& transfer, std::optional<TimeNs> round_trip);

/// Judges the shards together: addresses that lead other hosts nowhere, and the paths that this host does not see.
///
/// table  its location, as of --table; empty: not given.
std::vector<Check> judge_cluster(const std::vector<ShardFacts>& shards, const std::string& table);

}  // namespace millrace::doctor
