#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/result.h"

namespace millrace::server {

/// The racks whose switches add up in front of shard 0, of one job, as shard 0's owner wrote them down beside the job's
/// key (DESIGN.md, "Racks in jobs"): workers of each, in the order of their numbers. What a switch that decides has in
/// its list of jobs (jobs_file.h).
///
///   {"racks": [[0, 1, 2, 3], [4, 5, 6, 7]]}
///
/// Returns  a bit a worker. That racks have no worker in common is the aggregator's to check.
/// Errors   io: the file cannot be read. invalid_argument: what is expected.
Result<std::vector<uint64_t>> read_racks_file(const std::string& path);

/// The same of the file's text.
Result<std::vector<uint64_t>> parse_racks(std::string_view text);

}  // namespace millrace::server
