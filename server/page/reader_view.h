#pragma once

#include <functional>
#include <optional>
#include <string>

/// The part of a shard's answers that a named token may read. Pure.
namespace millrace::server {

/// Says whether the jobs of that name may be shown.
using ShowsJob = std::function<bool(const std::string& name)>;

/// Returns the answer of /status without all that concerns other jobs: reports, ends, refusals, and the table's
/// sentence, which may name any job. Sums over all jobs stay. Nothing: the text is no status of a shard.
std::optional<std::string> status_shown(const std::string& status, const ShowsJob& shows);

/// Returns the answer of /cluster with such statuses, and without the workers of other jobs. A worker that did not
/// answer may be of any job, and is left out, too.
std::string cluster_shown(const std::string& cluster, const ShowsJob& shows);

}  // namespace millrace::server
