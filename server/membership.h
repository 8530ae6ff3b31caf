#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "kernels/base/result.h"
#include "protocol/table.h"

/// Changes of a job's row in the membership table, each one compare-and-swap: pure functions of the record, and the
/// loop that tries them until nobody was faster. The table is the sole judge of who is a member and under which life.
namespace millrace::server {

/// What a transform did to a record.
enum class Change : uint8_t { kNone, kChanged };

/// Alters a record, or finds nothing to do, or refuses with the error that the asker is told.
using Transform = std::function<Result<Change>(protocol::JobRecord&)>;

/// Reads the job, transforms its record, raises its epoch and swaps it in; starts over when somebody was faster.
/// Returns the record as it is in the table afterwards.
///
/// Errors   the transform's; the table's; unavailable: beaten too often in a row; not_a_member: the job is gone.
Result<protocol::JobRecord> change_job(protocol::MembershipTable& table, uint64_t job, const Transform& transform);

/// Makes the worker a member under a new life while the job has not started; the join that makes `workers` members
/// starts it. The same nonce again: nothing to do.
///
/// Errors   identity_in_use: another process is that member; not_a_member: the job has started without it, or has
///          ended.
Result<Change> join(protocol::JobRecord& record, uint32_t worker, uint64_t nonce, uint32_t workers);

enum class Leaving : uint8_t {
  kFinished,  ///< said Goodbye(finished)
  kFailed,    ///< said Goodbye with another reason
  kSilent,    ///< not heard for dead_after_ms
};

/// Takes the member out if it still has that life. The last one that leaves by its own word finishes the job; the last
/// one is never taken out for silence while the job runs. When a job that runs is left with fewer than workers_min by
/// failure or silence it ends: finished is set with members still listed, which tells every shard to abort.
Change leave(protocol::JobRecord& record, const protocol::Member& who, Leaving leaving, uint32_t workers_min);

/// Writes this start of a shard into the job's shard map, where that is safe: before the job has started, or when no
/// start of this shard was ever in it (then nothing can have been decided there).
///
/// Errors   shard_lost: an earlier start of this shard took part in the running job, and its state is gone;
///          unavailable: a later start is in it.
Result<Change> claim_shard(protocol::JobRecord& record, uint32_t shard, const protocol::ShardEntry& entry);

/// Ends the job as it is; members still listed means that it ended with an error.
Change end(protocol::JobRecord& record);

/// The member's place in the view, or nullptr.
const protocol::Member* find_member(const protocol::JobView& view, uint32_t worker);
bool is_member(const protocol::JobView& view, uint32_t worker, uint64_t life);

}  // namespace millrace::server
