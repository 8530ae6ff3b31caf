#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "worker/doctor/check.h"
#include "worker/doctor/cluster_facts.h"

/// Judges the paths between shards. Pure functions.
namespace millrace::doctor {

/// Returns a check for the slowest path by round trip, and one for the slowest by bandwidth. A path that takes no
/// connection has a check of its own, and one check has all that were not measured.
std::vector<Check> judge_pairs(const PairsFacts& facts);

/// Returns the matrix of the paths for a person; of many shards the flag that shows it. Empty: there is no path.
std::string pairs_text(const std::vector<PairFacts>& pairs);

/// Returns an array: {"receiver", "sender", "round_trip_ms", "mbit_per_s", "problem"}. Only a measured path has
/// numbers. "problem" is a sentence, where there is one.
nlohmann::json pairs_json(const std::vector<PairFacts>& pairs);

}  // namespace millrace::doctor
