#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "kernels/base/clock.h"
#include "monitoring/status/shard_status.h"
#include "protocol/job/job_spec.h"
#include "protocol/job/layout.h"
#include "server/base/actions.h"
#include "server/base/limits.h"
#include "server/membership/members.h"
#include "server/membership/membership_changes.h"
#include "server/rejoin/recovery.h"
#include "server/rejoin/settlement.h"
#include "server/rounds/job_rounds.h"
#include "server/shard/switch_health.h"

namespace millrace::server {

/// Holds one open job at this shard: its specification, its members as this shard sees them, and its rounds. The rounds
/// are active or being recovered (R8). The job does not touch the table: ShardCore asks the job for the required
/// change, changes the table and passes the result to the job.
class Job {
 public:
  /// Says whether an earlier start of this shard has served the running job: then its rounds are lost, and the members
  /// have the remaining state.
  enum class Start : uint8_t { kFresh, kSuccessor };
  struct Setup {
    protocol::JobSpec spec;
    protocol::JobLayout layout;
    const MemoryGate& gate;  ///< all that are referred to outlive the job
    const Limits& limits;
    MemoryAccount& shard_memory;
    RefusalLog& refusals;
    uint32_t shard = 0;
    uint64_t shard_incarnation = 0;
    uint32_t shard_count = 1;
    Start start = Start::kFresh;
    CodecCosts codec_costs = {};
    Members::QueuedBytes queued_bytes = {};
  };
  /// Holds the change that this job requires in the table, in the epoch of its membership.
  struct TableChange {
    enum class Kind : uint8_t { kNone, kActivate, kCut, kRemove, kPath, kEnd };
    Kind kind = Kind::kNone;
    uint64_t parent = 0;                            ///< kActivate
    protocol::LogReach reach;                       ///< kActivate
    CutChoice choice;                               ///< kCut
    Leaving leaving = Leaving::kSilent;             ///< kRemove
    std::vector<protocol::Member> members;          ///< kRemove
    protocol::Path path = protocol::Path::kServer;  ///< kPath
    std::string because;                            ///< kPath, kEnd
  };

  explicit Job(Setup setup);
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  const protocol::JobSpec& spec() const { return setup_.spec; }
  const protocol::JobLayout& layout() const { return setup_.layout; }
  uint64_t spec_hash() const { return spec_hash_; }
  uint64_t layout_hash() const { return layout_hash_; }
  const protocol::Membership& membership() const { return members_.membership(); }
  Members& members() { return members_; }
  const Members& members() const { return members_; }
  JobRounds& rounds() { return rounds_; }
  const JobRounds& rounds() const { return rounds_; }

  /// R7a: Takes over a newer membership than the present one (or the first). Members hear of it first, then their
  /// rounds continue in it. While the job has not started, only flush_membership() notifies the members, so that the
  /// joins of many workers take few messages. Returns the connections of workers that are no longer members; they are
  /// notified at once. A cut that the present membership does not know makes this shard's state void: the job recovers
  /// (R10e).
  std::vector<protocol::PeerId> adopt(protocol::Membership membership, TimeNs now, Actions& actions);
  void flush_membership(Actions& actions);

  /// Returns whether the rounds are not known yet: contributions and acks are dropped, workers send them again in the
  /// epoch of the activation.
  bool recovering() const { return recovery_.has_value(); }
  /// R8d, R9: Handles State, Snapshot, Update and Fetched of a member, sent in the membership's epoch.
  void on_return_message(const protocol::Member& from, protocol::Message message, TimeNs now, Actions& actions);
  /// Handles that bytes of an unfinished message came from a member.
  void on_arriving(uint32_t worker, uint64_t bytes, TimeNs now);
  /// Handles that a member has been sent its Welcome.
  void on_welcomed(const protocol::Member& member, TimeNs now, Actions& actions);
  void on_tick(TimeNs now, Actions& actions);
  std::optional<TimeNs> deadline() const;
  TableChange table_change(TimeNs now);
  /// R8e: Records that the table has this shard's activation: the next membership is adopted as active. REQUIRES: the
  /// last required change was kActivate, and no other event came since.
  void activated(uint64_t branch, TimeNs now);
  /// R10f: Returns whether a worker may still come that has the steps which a refused cut lacks. Some worker has left
  /// without finishing, and abandon_ms has not passed since the first refusal in this epoch.
  bool may_wait_for_steps(TimeNs now);
  /// Handles a member's report about the switch, of a job of path switch, in the epoch of the membership.
  void on_switch_report(const protocol::Member& from, const protocol::Heartbeat& said, TimeNs now, Actions& actions);
  /// Records that the table has the path that the job required.
  void path_changed(std::string because, TimeNs now);
  /// Extends deadlines by `paused`, a time in which this process did not run.
  void extend_deadlines(TimeNs paused);

  /// REQUIRES: a Hello with a version in common.
  protocol::Welcome welcome(const protocol::Hello& hello, const std::string& software) const;
  protocol::Heartbeat heartbeat_answer(const protocol::Member& to, uint64_t sequence) const;

  /// Returns members to be removed for silence now. Empty also where only the last one is silent (see abandoned()), and
  /// in a job that recovers, whose recovery chooses the members to remove.
  std::vector<protocol::Member> silent(TimeNs now) const;
  /// Returns why the job is to be ended. Either every member has been silent for limits.abandon_ms and no member is
  /// left to end it. Or the job recovers, and for that time no majority of its members has answered (R8c).
  std::optional<std::string> abandoned(TimeNs now) const;

  JobStatus status(TimeNs now) const;

  /// Returns the present membership for a member that may not know that it is synced, with the steps decided without
  /// it.
  protocol::MembershipChange change_for(const protocol::Member& member) const;

 private:
  TableChange cut_or_end(CutChoice choice) const;
  void announce_membership(const std::vector<protocol::Member>& before, Actions& actions) const;
  void on_state(const protocol::Member& from, const protocol::State& state, TimeNs now, Actions& actions);
  void add_joining(JobStatus& status, TimeNs now) const;
  std::vector<uint32_t> not_joined() const;
  void add_members(JobStatus& status, TimeNs now) const;
  void add_wait(JobStatus& status, TimeNs now) const;
  void add_path(JobStatus& status, TimeNs now) const;

  Setup setup_;
  uint64_t spec_hash_;
  uint64_t layout_hash_;
  Members members_;
  JobRounds rounds_;
  Settlement settlement_;
  std::optional<Recovery> recovery_;           ///< while the rounds are not known
  std::optional<SwitchHealth> switch_health_;  ///< shard 0, of jobs of path switch
  TimeNs recovering_since_ = 0;
  uint32_t left_at_first_ = 0;            ///< workers that had finished before this process served the job
  std::set<uint32_t> may_have_finished_;  ///< workers that left since
  std::optional<TimeNs> cut_refused_;     ///< when a cut was first refused in this epoch
  bool membership_unannounced_ = false;
  TimeNs opened_ = 0;
  TimeNs started_ = 0;  ///< when this shard learned it; 0: not yet
};

}  // namespace millrace::server
