#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/result.h"
#include "kernels/stream/stream.h"
#include "worker/bench/rounds/serve_oracle.h"

namespace millrace::bench {

/// Workers dealt over racks in runs, as even as they go: [rack] its workers, ascending.
/// REQUIRES: 1 <= racks <= workers.
std::vector<std::vector<uint32_t>> rack_members(uint32_t workers, uint32_t racks);

/// Describes the least code of a round's contributions once every rack's are one sum, all racks together.
struct CodedUnion {
  uint64_t entries = 0;  ///< indices of the racks' sums
  uint64_t bytes = 0;    ///< of their codes, gaps and integers of the grid, without any packet's header
};

/// grid_exponent   values are integers x 2^grid_exponent.
/// window_indices  the code restarts with each window, as it does in packets.
CodedUnion coded_union(const ServeJob& job, const std::vector<std::vector<uint32_t>>& racks, uint32_t round,
                       uint32_t window_indices, int grid_exponent);

/// Judges an update whose racks re-selected. Every entry is the sum of some of the racks' sums there (other racks
/// omitted theirs). Hardly any entry is missing that is well over its rack's own threshold (the k-th share largest) and
/// over the decider's.
///
/// share   entries that a rack keeps of its sums.
/// Source  protocol/SWITCH.md (S7).
ServeVerdict judge_selected_update(const ServeJob& job, const std::vector<std::vector<uint32_t>>& racks, uint64_t share,
                                   uint32_t round, const StreamView& update);

/// Returns the bytes of datagrams that shard 0 has received for its one job of path switch, from its status page.
/// Errors  as fetch_status(); malformed: it serves no such job.
Result<uint64_t> datagram_bytes(const std::string& http_address);

}  // namespace millrace::bench
