#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace millrace::server {

/// What a person asks of a shard: who is there, who is waited for, since when, and why a job does not start or stands
/// still.
struct MemberStatus {
  uint32_t worker = 0;
  uint64_t life = 0;
  bool connected = false;      ///< said Hello to this shard
  int64_t silent_ms = 0;       ///< since its last message here
  uint64_t steps_applied = 0;  ///< least step count that it acknowledged here
};

/// A member whose digest of a part is not the shard's: its weights are not those of the others.
struct DisagreementStatus {
  uint32_t worker = 0;
  uint32_t part = 0;
  uint64_t steps = 0;    ///< after so many it was found
  int64_t since_ms = 0;  ///< when
};

struct JobStatus {
  std::string name;
  uint64_t job = 0;
  uint64_t epoch = 0;
  bool started = false;
  uint32_t workers = 0;  ///< expected
  std::vector<MemberStatus> members;
  std::vector<DisagreementStatus> disagreements;
  uint32_t parts = 0;                ///< of this shard
  uint64_t steps_decided = 0;        ///< by the slowest part
  uint64_t steps_decided_max = 0;    ///< by the fastest part
  std::vector<uint32_t> waited_for;  ///< workers that the oldest open step, or the start, waits for
  int64_t waiting_ms = 0;            ///< since when
  std::string waiting_because;       ///< one sentence; empty when nothing is waited for
  uint64_t kept_updates = 0;         ///< that some member has not acknowledged
  uint64_t kept_bytes = 0;
  uint64_t memory_bytes = 0;
  uint64_t memory_bytes_max = 0;
};

struct PeerShardStatus {
  uint32_t shard = 0;
  std::string address;
  uint64_t life = 0;
  bool heard = false;  ///< said ShardHello to this shard in that life
};

struct StatusReport {
  uint32_t shard = 0;
  uint32_t shard_count = 0;
  uint64_t life = 0;
  bool shutting_down = false;
  uint64_t memory_bytes = 0;
  uint64_t memory_bytes_max = 0;
  std::vector<JobStatus> jobs;
  std::vector<PeerShardStatus> peers;
};

}  // namespace millrace::server
