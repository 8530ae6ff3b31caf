#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/result.h"
#include "protocol/job/layout.h"
#include "protocol/table/membership_table.h"

/// Changes of a job's row in the membership table. Each one is a compare-and-swap: a pure function of the record, and a
/// loop that tries it until no other process was faster. The table is the sole judge of the members and their
/// incarnations.
namespace millrace::server {

/// Says whether a transform changed a record.
enum class Change : uint8_t { kNone, kChanged };

/// Alters a record, or finds nothing to do, or refuses with the error that is sent to the asker.
using Transform = std::function<Result<Change>(protocol::JobRecord&)>;

/// Reads the job, transforms its record, raises its epoch and swaps it in; starts again when another process was
/// faster. Returns the record as it is in the table afterwards.
///
/// Errors   the transform's; the table's; unavailable: beaten too often in a row; not_a_member: the job is gone.
Result<protocol::JobRecord> change_job(protocol::MembershipTable& table, uint64_t job, const Transform& transform);

/// Reads the job and swaps in the result of `transform` iff its epoch is `epoch`. Findings about one epoch hold for no
/// other (R8e, R9e, R10c). Returns the record as it is in the table afterwards; empty: the table has another epoch.
///
/// Errors   the transform's; the table's; not_a_member: the job is gone.
Result<std::optional<protocol::JobRecord>> change_job_in(protocol::MembershipTable& table, uint64_t job, uint64_t epoch,
                                                         const Transform& transform);

/// R11c: Refuses a process that knows a later epoch of the job than the table: the table is an older copy.
///
/// header   of its Hello. REQUIRES: it names this job, or none.
/// Errors   not_a_member.
Status judge_past(const protocol::JobRecord& record, const protocol::Header& header);

/// Holds a worker's request to become a member.
struct Joiner {
  uint32_t worker = 0;
  uint64_t nonce = 0;
  /// The incarnation of an earlier process of the worker that may be replaced: it is silent, or this process
  /// reported its end. 0: none.
  uint64_t replaces = 0;
  bool returns = false;  ///< its first Hello asks to return: the worker's processes do when they are restarted
};

/// Makes the worker a member under a new incarnation.
///
/// The worker is synced while the job has not started; the join that makes spec.workers members starts the job. It is
/// joining in a running job (R9), and in a job that begins with the weights of worker 0 if it is another worker. The
/// same nonce again changes nothing. If `joiner` may, the same change replaces an earlier process of the worker.
///
/// Errors   identity_in_use: another process is that member; unavailable: the job has just ended, so its name is free.
Result<Change> join(protocol::JobRecord& record, const Joiner& joiner, const protocol::JobSpec& spec);

enum class Leaving : uint8_t {
  kFinished,  ///< sent Goodbye(finished)
  kFailed,    ///< sent Goodbye with another reason
  kSilent,    ///< not heard for dead_after_ms
  kWrong,     ///< sends no update where it reported one as retained (R8d)
  /// Alive, and needs updates that no member retains, or makes others retain too many (R6a). It rejoins (R9).
  kBehind,
};

/// Takes the member out if it still has that incarnation.
///
/// The last member that leaves of its own accord finishes the job. The only member of a running job is never evicted
/// for silence (R11) or for being behind. A running job ends when failure or silence leaves it fewer than workers_min
/// members. Then `finished` is set with members still listed, and every shard aborts the job.
///
/// reach    R10f: how far a member had come that leaves as finished, by shard. Noted where it is synced.
Change leave(protocol::JobRecord& record, const protocol::Member& who, Leaving leaving, uint32_t workers_min,
             std::span<const protocol::LogReach> reach = {});

/// R10f: Returns whether a log has, in the parts of that shard, the steps of all members that left as finished.
///
/// reach    how far the log goes in these parts.
///
/// Errors   stale: it lacks some.
Status has_finished_steps(const protocol::JobRecord& record, uint32_t shard, const protocol::LogReach& reach);

/// Says how a shard stands to a job's shard map, as claim_shard() found it.
enum class Claim : uint8_t {
  kKnown,  ///< this start is in the map
  kFirst,  ///< nothing can have been decided here: the job has not started, or no start of this shard was ever in it
  kSuccessor,  ///< an earlier start took part in the running job: this one must recover (R8a)
};

/// Writes this start of a shard into the job's shard map.
///
/// Errors   unavailable: a later start is in it.
Result<Claim> claim_shard(protocol::JobRecord& record, uint32_t shard, const protocol::ShardEntry& entry);

/// Writes the addresses of the next start of a shard before that start has heard of the job. Its incarnation it writes
/// itself, because a shard that succeeds an earlier incarnation has to recover.
Change redirect(protocol::JobRecord& record, uint32_t shard, const protocol::ShardEntry& entry);

/// S6.1, S6.7: Gives the job's next epoch this path.
Change take_path(protocol::JobRecord& record, protocol::Path path);

/// R9e: Makes a joining member synced: it has settled every part.
Change synced(protocol::JobRecord& record, uint32_t worker, uint64_t incarnation);

/// R8e: Records that the shard serves again, by a new branch of its log that starts from `parent`.
///
/// reach    how far the branch goes.
/// Errors   limit_exceeded: more activations than a membership holds; as has_finished_steps().
Result<Change> activate(protocol::JobRecord& record, uint32_t shard, uint64_t parent, const protocol::LogReach& reach);

/// Names a state that all members return to.
struct CutChoice {
  uint32_t worker = 0;
  std::vector<uint64_t> parents;               ///< by shard: the log branch of that worker's state
  std::vector<protocol::LogReach> reach = {};  ///< by shard: how far that state goes
};

/// R10c: Makes every shard's log continue from the state of one member, which is synced from now on; all others join
/// again. Drops the state of every shard: view.cut is the new epoch. REQUIRES: the swap is conditional on the epoch of
/// `record` (change_job_in).
///
/// Errors   as activate(); not_a_member: the chosen one is none; stale: as has_finished_steps().
Result<Change> cut_logs(protocol::JobRecord& record, const CutChoice& choice);

/// Returns one of the members' states that no other exceeds in every part.
///
/// States are compared by (log branch, epoch of the last step, steps), in the order of the parts. Of equal ones, the
/// lowest worker's is taken. REQUIRES: not empty; every state has all parts of the layout.
CutChoice choose_for_cut(const std::map<uint32_t, protocol::State>& states, const protocol::JobLayout& layout,
                         const protocol::Membership& membership);

/// Ends the job as it is, if it is open: protocol::end_record().
Change end(protocol::JobRecord& record, const Error& why);

/// Returns the message with which every shard aborts the members that are left. REQUIRES: the job is finished.
protocol::Abort end_abort(const protocol::JobRecord& record);

/// Returns "job 'NAME' has ended: REASON". REQUIRES: it is finished.
std::string end_sentence(const protocol::JobRecord& record);

/// Returns the member's entry in the membership, or nullptr.
const protocol::Member* find_member(const protocol::Membership& membership, uint32_t worker);
bool is_member(const protocol::Membership& membership, uint32_t worker, uint64_t incarnation);

}  // namespace millrace::server
