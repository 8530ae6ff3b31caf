#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/result.h"
#include "protocol/job/layout.h"
#include "protocol/table/membership_table.h"

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

/// Reads the job and swaps in what `transform` makes of it iff its epoch is `epoch`: what was found out about one epoch
/// holds for no other (R8e, R9e, R10c). Returns the record as it is in the table afterwards; empty: another epoch is
/// there.
///
/// Errors   the transform's; the table's; not_a_member: the job is gone.
Result<std::optional<protocol::JobRecord>> change_job_in(protocol::MembershipTable& table, uint64_t job, uint64_t epoch,
                                                         const Transform& transform);

/// Who asks to be a member.
struct Joiner {
  uint32_t worker = 0;
  uint64_t nonce = 0;
  uint64_t replaces =
      0;  ///< the life of an earlier process of the worker that may go: silent, and said to be over; 0: none
  bool returns = false;  ///< its first Hello asks to return: the worker's processes do when they are restarted
};

/// Makes the worker a member under a new life: synced while the job has not started (the join that makes spec.workers
/// members starts it), joining in a job that runs (R9), and in one that begins with the weights of worker 0 if it is
/// another one. The same nonce again: nothing to do. An earlier process that is in the way is replaced in the same
/// change, if `joiner` may.
///
/// Errors   identity_in_use: another process is that member; not_a_member: the job has ended.
Result<Change> join(protocol::JobRecord& record, const Joiner& joiner, const protocol::JobSpec& spec);

enum class Leaving : uint8_t {
  kFinished,  ///< said Goodbye(finished)
  kFailed,    ///< said Goodbye with another reason
  kSilent,    ///< not heard for dead_after_ms
  kWrong,     ///< gives no update where it says that it keeps one (R8d)
  kBehind,    ///< alive, and needs updates that nobody keeps, or has too many kept for it (R6a): it rejoins (R9)
};

/// Takes the member out if it still has that life. The last one that leaves by its own word finishes the job; the only
/// one is never taken out for silence while the job runs (R11), nor for being behind. When a job that runs is left with
/// fewer than workers_min by failure or silence it ends: finished is set with members still listed, which tells every
/// shard to abort.
Change leave(protocol::JobRecord& record, const protocol::Member& who, Leaving leaving, uint32_t workers_min);

/// What claim_shard() found.
enum class Claim : uint8_t {
  kKnown,  ///< this start is in the map
  kFirst,  ///< nothing can have been decided here: the job has not started, or no start of this shard was ever in it
  kSuccessor,  ///< an earlier start took part in the running job: it is to be recovered (R8a)
};

/// Writes this start of a shard into the job's shard map.
///
/// Errors   unavailable: a later start is in it.
Result<Claim> claim_shard(protocol::JobRecord& record, uint32_t shard, const protocol::ShardEntry& entry);

/// Says where the next start of a shard is to be found, before that one has heard of the job: the addresses alone. Its
/// life is its own to write, since who takes over from an earlier life has to recover.
Change redirect(protocol::JobRecord& record, uint32_t shard, const protocol::ShardEntry& entry);

/// S6.1, S6.7: The job's next epoch has this path.
Change take_path(protocol::JobRecord& record, protocol::Path path);

/// R9e: A member that joins has settled every part.
Change synced(protocol::JobRecord& record, uint32_t worker, uint64_t life);

/// R8e: The shard serves again, by a new branch of its log that grew out of `parent`.
///
/// Errors   limit_exceeded: more activations than a view holds.
Result<Change> activate(protocol::JobRecord& record, uint32_t shard, uint64_t parent);

/// A state that all go back to.
struct CutChoice {
  uint32_t worker = 0;
  std::vector<uint64_t> parents;  ///< by shard: the lineage of that worker's state
};

/// R10c: Every shard's log goes on from the state of one member, which is synced from now on; all others join anew.
/// Drops what every shard has: view.cut is the new epoch. REQUIRES: the swap is conditional on the epoch of `record`
/// (change_job_in).
///
/// Errors   as activate(); not_a_member: the chosen one is none.
Result<Change> cut(protocol::JobRecord& record, const CutChoice& choice);

/// Of the members' states one that no other beats in every part, by (lineage, epoch of the last step, steps): the
/// greatest in the order of the parts, the lowest worker of equals. REQUIRES: not empty; every state has all parts of
/// the layout.
CutChoice choose_for_cut(const std::map<uint32_t, protocol::State>& states, const protocol::JobLayout& layout,
                         const protocol::JobView& view);

/// Ends the job as it is; members still listed means that it ended with an error.
Change end(protocol::JobRecord& record);

/// The member's place in the view, or nullptr.
const protocol::Member* find_member(const protocol::JobView& view, uint32_t worker);
bool is_member(const protocol::JobView& view, uint32_t worker, uint64_t life);

}  // namespace millrace::server
