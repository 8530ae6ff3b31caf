#pragma once

#include <algorithm>
#include <cstdint>

#include "protocol/messages/frame.h"

namespace millrace::server {

/// Limits on every amount that a worker can ask for; each refusal names the limit and the flag that raises it.
struct Limits {
  uint32_t jobs_max = 64;                            ///< --jobs-max: open jobs at this shard
  uint32_t workers_max = 1024;                       ///< --workers-max: workers of a job
  uint32_t tensors_max = 16'384;                     ///< --tensors-max: tensors of a job
  uint32_t parts_max = 65'536;                       ///< --parts-max: parts of a job, all shards together
  uint64_t message_bytes_max = uint64_t{256} << 20;  ///< --message-bytes-max: a contribution, a returned update
  /// --job-memory-bytes-max: open, decoded, summed and retained data of one job
  uint64_t job_memory_bytes_max = uint64_t{4} << 30;
  uint64_t shard_memory_bytes_max = uint64_t{8} << 30;  ///< --shard-memory-bytes-max: the same over all jobs
  /// --dead-after-min: least dead_after_ms that a job may ask for
  uint32_t dead_after_ms_min = 50;
  /// --drain: time that rounds in flight may take to finish at shutdown
  uint32_t drain_ms = 10'000;
  /// --abandon-after: a job ends when its last worker has been silent for this time
  uint32_t abandon_ms = 60'000;
  uint32_t table_poll_ms = 50;  ///< how often the table's change counter is read

  /// Returns the largest payload that a shard takes. Runs of weights are as large as an envelope, and pass any
  /// --message-bytes-max.
  constexpr uint64_t received_bytes_max() const {
    return std::max(message_bytes_max, protocol::FrameLimits().envelope_bytes_max);
  }
};

}  // namespace millrace::server
