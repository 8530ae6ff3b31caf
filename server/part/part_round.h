#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "kernels/base/clock.h"
#include "protocol/job/layout.h"
#include "protocol/messages/messages.h"
#include "server/aggregation/tasks.h"
#include "server/base/memory_account.h"
#include "server/membership/members.h"
#include "server/part/contribution_queue.h"
#include "server/part/log_digests.h"
#include "server/part/part_history.h"

namespace millrace::server {

/// Holds the rounds of one part on its shard, as pure state. It implements the rules R2 (admit), R3 (decide), R5 (ack,
/// forget), R7a (epoch change) and R9a (on the log?). The callers (JobRounds) handle messages, tasks and the table.
/// server/DESIGN.md has the table of rules and files.
///
/// Invariants   steps are decided strictly in order. At most one attempt at a decision runs, identified by its token.
///              Open contributions are of the membership's synced members under their present incarnations. Updates of
///              the steps [stable, decided) are retained. stable does not pass the last argument of hold().
class PartRound {
 public:
  using Verdict = Admission;

  /// The stage of the attempt to decide the step decided().
  enum class Stage : uint8_t {
    kCollecting,  ///< contributions arrive
    kReducing,    ///< a ReduceTask is out
    kSummed,      ///< waits for the bucket's threshold
    kQuota,       ///< a QuotaTask is out
    kEncoding,    ///< an EncodeTask is out
  };

  using Open = OpenContribution;

  struct RetainedUpdate {
    protocol::Update body;  ///< as first sent, but for `stable`
    SharedBytes payload;
    MemoryCharge charge;

    /// Returns about the bytes that the update takes in memory, and in a message, without its payload.
    uint64_t bytes_beside_payload() const;
    uint64_t bytes() const { return payload.bytes.size() + bytes_beside_payload(); }
  };

  struct Attempt {
    uint64_t token = 0;
    std::vector<protocol::ContributorId> contributors;  ///< ascending by worker
    SharedStream sum;
    SharedHistogram histogram;
    MemoryCharge charge;
    TimeNs begun = 0;
  };

  struct Decision {
    uint64_t epoch = 0;
    TimeNs at = 0;
    bool whole_sum = true;
    SharedBytes payload;
    std::vector<double> carried;  ///< audit, by contributor; empty: not asked
    IndexBuffer changed;          ///< jobs with `history`
    double threshold = 0;
  };

  /// Holds the state from which a successor continues (R8d).
  struct Restored {
    uint64_t decided = 0;
    protocol::Summary summary;             ///< as of `decided`
    std::vector<RetainedUpdate> retained;  ///< of the last steps decided, without a gap
  };

  struct Adopted {
    uint64_t dropped = 0;    ///< open contributions of workers that are no longer members
    bool restarted = false;  ///< the attempt lost a contributor and was given up
  };

  /// The times of a step of this part, for metrics.
  struct Timing {
    TimeNs first = 0;
    TimeNs last = 0;
  };

  /// spec  outlives this.
  PartRound(protocol::PartLayout layout, const protocol::JobSpec& spec)
      : layout_(layout), spec_(&spec), arrivals_(spec.staleness), history_(spec, layout.end - layout.begin) {}

  const protocol::PartLayout& layout() const { return layout_; }
  uint64_t dimension() const { return layout_.end - layout_.begin; }
  uint64_t decided() const { return decided_; }  ///< number of steps decided; the next to decide
  uint64_t stable() const { return stable_; }
  Stage stage() const { return stage_; }
  const Attempt& attempt() const { return attempt_; }
  const protocol::Summary& summary() const { return summary_; }
  /// Returns the history that contributions to the step decided() may be coded against; null: none.
  std::shared_ptr<const IndexHistory> history() const { return history_.view(); }
  /// Returns the digest of the log after n steps. Empty: not decided yet, too long ago, or not by this process.
  std::optional<uint64_t> digest_after(uint64_t n) const;
  Timing timing() const;
  /// Returns when the step before decided() was decided; 0: there is none.
  TimeNs last_decided_at() const { return last_decided_at_; }
  TimeNs collecting_since() const;      ///< since when the step decided() has contributions and could be decided
  uint32_t here() const;                ///< contributions to it
  bool is_here(uint32_t worker) const;  ///< decoded or not

  /// R2: Returns the verdict on a contribution of a member under its present incarnation. Changes nothing. In mode
  /// asynchronous, `step` is the contribution's number, here and below.
  Verdict judge(uint32_t worker, uint64_t incarnation, uint64_t step, uint64_t hash) const;

  /// R2: Admits the contribution. REQUIRES: judge() returned kAdmit.
  void admit(uint32_t worker, uint64_t step, Open open, TimeNs now);

  /// Returns the first step that the member can contribute to, or (mode asynchronous) the number of its next
  /// contribution.
  uint64_t next_of(uint32_t worker, uint64_t incarnation) const {
    return asynchronous() ? arrivals_.next_of(worker, incarnation, counted_of(worker)) : decided_;
  }
  /// Returns whether another step is decided before the contribution can be.
  bool is_ahead(uint32_t worker, uint64_t incarnation, uint64_t step) const;

  /// Takes the decoded payload of an open contribution. False: that contribution is not open any more (or decoded
  /// already).
  bool decoded(const DecodeTask::Input& input, SharedStream stream, MemoryCharge charge);

  /// Drops an open contribution whose payload does not decode: the slot is empty again. False: it was not open any
  /// more.
  bool reject(const DecodeTask::Input& input);

  /// Returns whether the contribution goes into a step that has some already. Draining admits such only.
  bool joins_others(uint64_t step) const { return !asynchronous() && open_.contains(step); }
  /// Returns whether a contribution that can be decided is open. Those out of order (mode asynchronous) may wait
  /// forever.
  bool has_any_open() const { return !open_.empty() || arrivals_.any_in_order(); }

  /// Mode asynchronous: Gives the next contribution its turn, where the step decided() has none: it alone will be that
  /// step.
  void open_next_arrival();

  /// R3a: Returns when the step decided() may be decided with the present contributions: at that time, or now where it
  /// has passed. Empty: not without more of them, or an attempt runs. part_round_readiness.cc has the rules of the
  /// modes.
  std::optional<TimeNs> due(const Members& members) const;

  /// R3: Begins an attempt: its inputs in worker order. REQUIRES: due().
  std::vector<SharedStream> begin(uint64_t token, TimeNs now);
  /// Returns the inputs of the running attempt, by contributor. REQUIRES: an attempt runs.
  std::vector<SharedStream> inputs() const;
  /// Audit: Returns, by contributor of the running attempt, the imbalance of the part that it reported. REQUIRES: an
  /// attempt runs.
  std::vector<std::pair<uint32_t, double>> reported_imbalances() const;
  bool is_current(uint64_t token, Stage stage) const { return stage_ == stage && attempt_.token == token; }
  void summed(SharedStream sum, SharedHistogram histogram, MemoryCharge charge);
  void set_stage(Stage stage) { stage_ = stage; }

  /// R3, DECIDE: Fixes the contributors, retains the update, extends the summary and ends the step, in one action.
  const RetainedUpdate& keep(Decision decision, MemoryAccount& retained_account);

  /// R2b: Returns the retained update of a decided step; nullptr once forgotten.
  const RetainedUpdate* retained(uint64_t step) const;
  const std::deque<RetainedUpdate>& all_retained() const { return retained_; }

  /// R2b: Returns whether the summary counts the contribution (step, incarnation) of the worker. Empty: the step is
  /// further back than the summary reaches. The worker cannot have such a step in flight: its last counted step is at
  /// most `staleness` steps after its oldest.
  std::optional<bool> counted(uint32_t worker, uint64_t incarnation, uint64_t step) const;

  /// R5: Records that the steps below n are applied at `worker`. A member that has joined and not acknowledged counts
  /// as 0. False: n exceeds the decided steps (malformed input; nothing changes).
  bool acknowledge(uint32_t worker, uint64_t n, std::span<const protocol::Member> members);
  uint64_t acknowledged(uint32_t worker) const;
  uint64_t acknowledged_by_all(std::span<const protocol::Member> members) const;

  /// Returns the replicated step count of a job that holds updates back: apply_after_acks synced members have
  /// acknowledged the steps below it. Where workers have left and fewer members are synced, all of them have. Joiners
  /// do not count: a successor could not continue from their state (R18a). Starts from zero with every membership.
  uint64_t replicated() const { return replicated_; }
  /// Raises replicated(). Returns true if more steps are replicated than before.
  bool advance_replicated(const Members& members);

  /// Retains updates of the steps from n on even where all members have them: the weights that a store has saved lack
  /// them. UINT64_MAX: retains none beyond that. The next forget_stable() drops updates that are retained without need.
  void retain_from(uint64_t n) { retained_from_ = n; }
  /// R5: Forgets the updates that all members have acknowledged and that hold() does not retain.
  void forget_stable(std::span<const protocol::Member> members);

  /// R7a: Takes over another set of members, incarnations or states. Joiners that this part has settled have to be
  /// settled again (R9f).
  Adopted adopt(std::span<const protocol::Member> before, const Members& view);

  /// R8d: Continues from the members' state. REQUIRES: nothing was decided or admitted here.
  void restore(Restored restored, TimeNs now);
  /// R8e: Records that the member has reported the steps below n as applied. For all of a restored part's members,
  /// before forget_stable().
  void restore_acknowledged(uint32_t worker, uint64_t n) { acknowledged_[worker] = std::min(n, decided_); }

  /// R9a: Returns whether the state (n steps, the last of them decided in that epoch) is one that this part's log went
  /// through. The caller checks that its log branch is on the path.
  bool is_in_log(uint64_t n, uint64_t decided_in) const;
  /// R9d: Returns whether all updates that are missing after n steps are retained.
  bool retains_from(uint64_t n) const { return n >= stable_ && n <= decided_; }
  /// Returns the counts of the worker's contributions; nullptr: none was ever counted.
  const protocol::SummaryEntry* counted_of(uint32_t worker) const;
  /// R9: Records that a joining member has received its Settle: its acks count.
  void settle(uint32_t worker) { settled_.insert(worker); }
  bool is_settled(uint32_t worker) const { return settled_.contains(worker); }
  bool takes(const protocol::Member& member) const {
    return member.state == protocol::MemberState::kSynced || is_settled(member.worker);
  }

  /// Returns the members whose contribution to the step decided() is expected, and missing or not decoded.
  std::vector<uint32_t> waited_for(const Members& members) const;

 private:
  struct OpenStep {
    std::map<uint32_t, Open> by_worker;
    size_t decoded = 0;
    Timing timing;
  };

  bool asynchronous() const { return spec_->mode == protocol::Mode::kAsynchronous; }
  bool is_in(uint32_t worker) const;
  uint64_t left_out(uint32_t worker) const;
  void count_in(const protocol::ContributorId& who, const Open& contribution, double carried);
  void count_next(protocol::SummaryEntry& at, const protocol::ContributorId& who) const;
  void count_step(protocol::SummaryEntry& at, const protocol::ContributorId& who) const;

  protocol::PartLayout layout_;
  const protocol::JobSpec* spec_;
  uint64_t decided_ = 0;
  TimeNs last_decided_at_ = 0;  ///< when the step before was decided
  uint64_t stable_ = 0;
  uint64_t retained_from_ = UINT64_MAX;
  uint64_t replicated_ = 0;
  Stage stage_ = Stage::kCollecting;
  Attempt attempt_;
  std::map<uint64_t, OpenStep> open_;          ///< by step
  Arrivals arrivals_;                          ///< mode asynchronous: contributions for steps after decided()
  std::deque<RetainedUpdate> retained_;        ///< steps [stable_, decided_)
  std::map<uint32_t, uint64_t> acknowledged_;  ///< by worker, of its present incarnation
  protocol::Summary summary_;
  LogDigests digests_;
  PartHistory history_;
  std::set<uint32_t> settled_;  ///< joining members, in this epoch
};

}  // namespace millrace::server
