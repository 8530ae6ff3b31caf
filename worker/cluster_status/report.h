#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "worker/cluster_status/fetch_status.h"
#include "worker/program/outcome.h"

namespace millrace::cluster_status {

/// Returns the picture for a person: a verdict a job, its evidence, the shards.
std::string report_text(const ClusterSnapshot& picture, const Answers& answers);

/// Returns the same for programs: {"jobs": [...], "shards": [...], "missing": [...], "refusals": [...], "troubles":
/// [...], "unanswered": {address: why}, "said": {address: status}}. Times in seconds.
nlohmann::json report_json(const ClusterSnapshot& picture, const Answers& answers);

/// Returns the outcome of `millrace status`. It is the first that holds of: unreachable (4), weights that disagree
/// (11), audit mismatch (12), stalled (9), waiting to start (10).
program::Outcome outcome_of(const ClusterSnapshot& picture, const Answers& answers);

}  // namespace millrace::cluster_status
