#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "worker/cluster_status/fetch_status.h"
#include "worker/program/outcome.h"

namespace millrace::cli {

/// The picture for a person: a verdict a job, what it rests on, the shards.
std::string report_text(const ClusterPicture& picture, const Answers& answers);

/// The same for programs: {"jobs": [...], "shards": [...], "missing": [...], "refusals": [...], "troubles": [...],
/// "unanswered": {address: why}, "said": {address: what it said}}. Times in seconds.
nlohmann::json report_json(const ClusterPicture& picture, const Answers& answers);

/// The outcome of `millrace status`: the first that holds of unreachable (4), weights that disagree (11), an audit that
/// does not balance (12), standing still (9), waiting to start (10).
Outcome outcome_of(const ClusterPicture& picture, const Answers& answers);

}  // namespace millrace::cli
