#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/result.h"
#include "switch_agg/aggregator/aggregator.h"

namespace millrace::switch_agg {

/// Limits the size of a jobs file, which lists the jobs that a switch serves:
///
///   {"jobs": [{"name": "resnet", "job": 7, "key_file": "resnet.key", "role": "reduce", "workers": 4,
///              "window_indices": 16384, "slots": 64}]}
///
/// Optional fields:
/// - "lanes": lcores that share its windows, each with a job number, from "job" on
/// - "packet_bytes": longest datagram of the job (1472), as at its workers
/// - "reselect_k", "result_index_codec" (raw, gap, bitmap), "lease_seconds"
/// - with "role": "combine": "shard": "192.0.2.9:7600", the workers "rack": [0, 1, 2, 3], and "rack_number" (0), its
///   index in the shard's list
/// - with "role": "reduce", where racks' switches add up in front of it: "racks": [[0, 1, 2, 3], [4, 5, 6, 7]]
///
/// A name of a key file is relative to the folder of this file.
inline constexpr size_t kJobsFileBytesMax = 1 << 20;

/// Reads and checks the file.
///
/// Errors   io: the file or a key file cannot be read, and why. invalid_argument: the fault with its line and job, and
///          the expected value.
Result<std::vector<SwitchJob>> read_jobs_file(const std::string& path);

/// Does the same with the file's text. `folder`: of relative key files.
Result<std::vector<SwitchJob>> parse_jobs(std::string_view text, const std::string& folder);

}  // namespace millrace::switch_agg
