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
#include "protocol/layout.h"
#include "protocol/messages.h"
#include "server/arrivals.h"
#include "server/log_digests.h"
#include "server/members.h"
#include "server/memory_account.h"
#include "server/part_history.h"
#include "server/tasks.h"

namespace millrace::server {

/// The rounds of one part on its shard: R2 (admit), R3 (decide), R5 (ack, forget), R7a (epoch change) and R9a (on the
/// log?), as pure state. It judges and remembers; messages, tasks and the table are the callers' (JobRounds).
/// server/DESIGN.md has the table of rules and files.
///
/// Invariants   steps are decided strictly in order; at most one attempt at a decision runs, told by its token; open
///              contributions are of the view's synced members under their present lives; updates of the steps [stable,
///              decided) are kept; stable does not pass what hold() said last.
class PartRound {
 public:
  using Verdict = Admission;

  /// Where the attempt to decide the step decided() stands.
  enum class Stage : uint8_t {
    kCollecting,  ///< contributions come in
    kReducing,    ///< a ReduceTask is out
    kSummed,      ///< waits for the bucket's threshold
    kQuota,       ///< a QuotaTask is out
    kEncoding,    ///< an EncodeTask is out
  };

  using Open = OpenContribution;

  struct KeptUpdate {
    protocol::Update body;  ///< as first sent, but for `stable`
    SharedBytes payload;
    MemoryCharge charge;

    /// About what it takes in memory, and in a message, but for its payload.
    uint64_t bytes_beside_payload() const;
  };

  struct Attempt {
    uint64_t token = 0;
    std::vector<protocol::ContributorId> contributors;  ///< ascending by worker
    HeldStream sum;
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

  /// What a successor goes on from (R8d).
  struct Restored {
    uint64_t decided = 0;
    protocol::Summary summary;     ///< as of `decided`
    std::vector<KeptUpdate> kept;  ///< of the last steps decided, without a gap
  };

  struct Adopted {
    uint64_t dropped = 0;    ///< open contributions of who is no longer a member
    bool restarted = false;  ///< the attempt lost a contributor and was given up
  };

  /// How a step of this part went, for measures.
  struct Timing {
    TimeNs first = 0;
    TimeNs last = 0;
  };

  /// spec  outlives this
  PartRound(protocol::PartLayout layout, const protocol::JobSpec& spec)
      : layout_(layout), spec_(&spec), arrivals_(spec.staleness), history_(spec, layout.end - layout.begin) {}

  const protocol::PartLayout& layout() const { return layout_; }
  uint64_t dimension() const { return layout_.end - layout_.begin; }
  uint64_t decided() const { return decided_; }  ///< number of steps decided; the next to decide
  uint64_t stable() const { return stable_; }
  Stage stage() const { return stage_; }
  const Attempt& attempt() const { return attempt_; }
  const protocol::Summary& summary() const { return summary_; }
  /// What contributions to the step decided() may be coded against; null: nothing.
  std::shared_ptr<const IndexHistory> history() const { return history_.view(); }
  /// The digest of the log after n steps. Empty: not decided yet, too long ago, or not by this process.
  std::optional<uint64_t> digest_after(uint64_t n) const;
  Timing timing() const;
  TimeNs turned_at() const { return turned_at_; }  ///< when the step before decided() was decided; 0: there is none
  TimeNs collecting_since() const;                 ///< the step decided() has contributions and could be decided
  uint32_t here() const;                           ///< contributions to it
  bool is_here(uint32_t worker) const;             ///< decoded or not

  /// R2: What becomes of a contribution of a member under its present life. Changes nothing. `step` is, in mode
  /// asynchronous, the contribution's number, here and below.
  Verdict judge(uint32_t worker, uint64_t life, uint64_t step, uint64_t hash) const;

  /// R2. REQUIRES: judge() said kAdmit.
  void admit(uint32_t worker, uint64_t step, Open open, TimeNs now);

  /// The first step that the member can contribute to, or (mode asynchronous) the number of its next contribution.
  uint64_t next_of(uint32_t worker, uint64_t life) const {
    return asynchronous() ? arrivals_.next_of(worker, life, counted_of(worker)) : decided_;
  }
  /// Something else is decided before the contribution can be.
  bool is_ahead(uint32_t worker, uint64_t life, uint64_t step) const;

  /// The payload of an open contribution decoded. False: that contribution is not open any more (or decoded already).
  bool decoded(const DecodeTask::Input& input, HeldStream stream, MemoryCharge charge);

  /// The payload of an open contribution does not decode: the slot is empty again. False: it was not open any more.
  bool reject(const DecodeTask::Input& input);

  /// The contribution goes into a step that has some already. Draining admits such only.
  bool joins_others(uint64_t step) const { return !asynchronous() && open_.contains(step); }
  /// Of contributions out of order (mode asynchronous) nothing may ever come.
  bool has_any_open() const { return !open_.empty() || arrivals_.any_in_order(); }

  /// Mode asynchronous: the next contribution's turn has come, where the step decided() has none: it alone will be that step.
  void take_turn();

  /// R3a: When the step decided() may be decided with the contributions that are here: at that time, or now where it
  /// has passed. Empty: not without more of them, or an attempt runs. patience.cc has the rules of the modes.
  std::optional<TimeNs> due(const Members& members) const;

  /// R3: Begins an attempt: its inputs in worker order. REQUIRES: due().
  std::vector<HeldStream> begin(uint64_t token, TimeNs now);
  /// Inputs of the running attempt, by contributor. REQUIRES: an attempt runs.
  std::vector<HeldStream> inputs() const;
  /// Audit: by contributor of the running attempt, what its books of the part miss, as it says. REQUIRES: an attempt runs.
  std::vector<std::pair<uint32_t, double>> said_imbalances() const;
  bool is_current(uint64_t token, Stage stage) const { return stage_ == stage && attempt_.token == token; }
  void summed(HeldStream sum, SharedHistogram histogram, MemoryCharge charge);
  void set_stage(Stage stage) { stage_ = stage; }

  /// R3: DECIDE: contributors are fixed, the update is kept, the summary grows, the step is over: one action.
  const KeptUpdate& keep(Decision decision, MemoryAccount& kept_account);

  /// R2b: The kept update of a decided step; nullptr once forgotten.
  const KeptUpdate* kept(uint64_t step) const;
  const std::deque<KeptUpdate>& all_kept() const { return kept_; }

  /// R2b: Was (step, life) of the worker counted, by the summary? Empty: further back than it reaches, where the worker
  /// cannot have anything in flight (what it counted last is at most `staleness` steps after its oldest).
  std::optional<bool> counted(uint32_t worker, uint64_t life, uint64_t step) const;

  /// R5: Steps below n are applied at `worker`. One that has joined and not acknowledged counts as 0. False: n is more
  /// than was ever decided (a lie; nothing changes).
  bool acknowledge(uint32_t worker, uint64_t n, std::span<const protocol::Member> members);
  uint64_t acknowledged(uint32_t worker) const;
  uint64_t acknowledged_by_all(std::span<const protocol::Member> members) const;

  /// Of jobs that hold updates back: apply_after_acks synced members have acknowledged the steps below; all synced ones, where
  /// workers have left and fewer members are there. Those who join do not count: a successor could not go on from what they have
  /// (R18a). Begins anew with every view.
  uint64_t backed() const { return backed_; }
  /// True: more steps are.
  bool raise_backed(const Members& members);

  /// From now on updates of the steps from n on are kept also where everybody has them: the weights that a store has saved lack
  /// them. UINT64_MAX: as nothing was said. What is kept too long goes with the next forget_stable().
  void hold(uint64_t n) { hold_ = n; }
  /// R5: Forgets what all members have acknowledged, and nobody holds.
  void forget_stable(std::span<const protocol::Member> members);

  /// R7a: Another set of members, lives or states. Whom this part has settled has to be settled again (R9f).
  Adopted adopt(std::span<const protocol::Member> before, const Members& view);

  /// R8d: Goes on where the members stand. REQUIRES: nothing was decided or admitted here.
  void restore(Restored restored, TimeNs now);
  /// R8e: The member said that it has applied the steps below n. For all of a restored part's members, before
  /// forget_stable().
  void trust(uint32_t worker, uint64_t n) { acknowledged_[worker] = std::min(n, decided_); }

  /// R9a: Whether the state (n steps, the last of them decided in that epoch) is one that this part's log went through.
  /// That its lineage is on the path is the caller's to see.
  bool is_in_log(uint64_t n, uint64_t decided_in) const;
  /// R9d: All that is lacking after n steps is kept.
  bool keeps_from(uint64_t n) const { return n >= stable_ && n <= decided_; }
  /// What was counted of the worker; nothing: it never was.
  const protocol::SummaryEntry* counted_of(uint32_t worker) const;
  /// R9: A joining member has been told how it goes on: it gets updates, and its acks count.
  void settle(uint32_t worker) { settled_.insert(worker); }
  bool is_settled(uint32_t worker) const { return settled_.contains(worker); }
  bool takes(const protocol::Member& member) const {
    return member.state == protocol::MemberState::kSynced || is_settled(member.worker);
  }

  /// Those of whom a contribution to the step decided() is expected, and missing or not decoded.
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
  TimeNs turned_at_ = 0;  ///< when the step before was decided
  uint64_t stable_ = 0;
  uint64_t hold_ = UINT64_MAX;
  uint64_t backed_ = 0;
  Stage stage_ = Stage::kCollecting;
  Attempt attempt_;
  std::map<uint64_t, OpenStep> open_;          ///< by step
  Arrivals arrivals_;                          ///< mode asynchronous: what is to be a step after decided()
  std::deque<KeptUpdate> kept_;                ///< steps [stable_, decided_)
  std::map<uint32_t, uint64_t> acknowledged_;  ///< by worker, of its present life
  protocol::Summary summary_;
  LogDigests digests_;
  PartHistory history_;
  std::set<uint32_t> settled_;  ///< joining members, in this epoch
};

}  // namespace millrace::server
