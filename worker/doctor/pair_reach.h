#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "worker/doctor/cluster_facts.h"
#include "worker/doctor/cluster_reach.h"

namespace millrace::doctor {

/// Asks each shard that answered to measure the paths from the other shards of its status. One path at a time, so that
/// no two measurements share a link.
///
/// Cost    2 MiB over each path; kPairsTime and one path's time. Each shard reads the table once a path.
/// Limits  kPairsMax paths. A shard that gives no answer is not asked for another one.
PairsFacts collect_pairs(const std::vector<ShardFacts>& shards, const ReachOptions& options);

/// No path is begun later.
inline constexpr TimeNs kPairsTime = 60 * kNsPerS;
/// 64 shards, each from each other one.
inline constexpr size_t kPairsMax = 64 * 63;

/// Reads a shard's answer of /path (server/page/shard_paths.h): another process's text.
PairFacts read_path_answer(uint32_t receiver, uint32_t sender, std::string_view answer);

}  // namespace millrace::doctor
