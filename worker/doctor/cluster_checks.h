#pragma once

#include <string>
#include <vector>

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

/// Judges the shards together: addresses that lead other hosts nowhere, and the paths that this host does not see.
std::vector<Check> judge_cluster(const std::vector<ShardFacts>& shards);

}  // namespace millrace::doctor
