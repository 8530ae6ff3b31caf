#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/result.h"

namespace millrace::server {

/// Reads the racks of one job whose switches add up in front of shard 0. The owner of shard 0 wrote them into a file
/// beside the job's key (DESIGN.md, "Racks in jobs"). It lists the workers of each rack, in the order of the racks'
/// numbers. A deciding switch has the same in its list of jobs (jobs_file.h).
///
///   {"racks": [[0, 1, 2, 3], [4, 5, 6, 7]]}
///
/// Returns  a bit a worker. No worker is in two racks.
/// Errors   io: the file cannot be read. invalid_argument: with the expected form.
Result<std::vector<uint64_t>> read_racks_file(const std::string& path);

/// Reads the same from the file's text.
Result<std::vector<uint64_t>> parse_racks(std::string_view text);

}  // namespace millrace::server
