#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/random.h"
#include "kernels/codec/history/index_history.h"
#include "protocol/messages/log_digest.h"
#include "worker/core/link.h"
#include "worker/core/rejoin/counted_steps.h"
#include "worker/core/residual/local_clip.h"
#include "worker/core/session_core.h"
#include "worker/switch/switch_path.h"

/// Declares the state that SessionCore's files share. session_core_links: connections. session_core_messages: the
/// handlers of the shards' messages. session_core_membership: memberships, this worker's place in them, eviction and
/// rejoin. session_core_rejoin: membership state, and how the parts are settled. session_core_snapshots: weights sent
/// and received. session_core_replication: updates that await acks. session_core_rounds: contributions and updates.
/// session_core_step_numbers: pushes and steps. session_core_audit: the conservation law at run time.
/// session_core_switch: path switch. session_core_handovers: joining its jobs. session_core_asynchronous: that mode.
namespace millrace::worker {

/// Holds O[t]: the contribution to one step of one part, until that step's update.
struct Outstanding {
  uint64_t step = 0;         ///< mode asynchronous: number of the bucket's push
  uint64_t incarnation = 0;  ///< incarnation under which it was sent; the update names it
  uint64_t sequence = 0;     ///< mode asynchronous: its sequence number within that incarnation
  SharedStream sent;
  SharedBytes payload;  ///< the bytes that every retransmission repeats
  uint64_t hash = 0;
  double weight = 1;
  double entered = 0;  ///< audit, as of its selection
  double lost = 0;
  double imbalance = 0;
  bool on_wire = false;
  bool known = false;      ///< the shard reported that it has the contribution: a retransmission can wait
  bool shortened = false;  ///< it was sent with its indices coded against the history
  bool asked_for = false;  ///< the shard lacks it: `resend_at` is no time-out, which a queue would delay
  uint32_t refusals = 0;
  TimeNs resend_at = 0;
  TimeNs resend_interval = 0;
  uint64_t sent_heartbeat = 0;       ///< the last one to the shard when it was sent
  TimeNs delayed_until = INT64_MAX;  ///< other bytes delay its retransmission no longer
};

/// Retains an applied update as received: a shard that lost its state may ask for it (R8). Its bytes may be shared.
struct RetainedUpdate {
  protocol::Update body;
  SharedBytes payload;
};

/// Collects the weights of a part that arrive run by run.
struct Incoming {
  Buffer<float> values;
  uint64_t n = 0;
  uint64_t decided_in = 0;
  protocol::Summary summary;
};

/// Holds, for the audit, the start of a part's account in this process, and the results of the last check.
struct PartAccount {
  /// The part's position is of a saved state that is not settled. No account has the part's values yet.
  bool loaded = false;
  // The log's sums of this worker's earlier processes, less the values that this process loaded of them:
  double entered_before = 0;
  double carried_before = 0;
  double doubt = 0;                  ///< bound on the rounding error of the log's sum
  bool has_unaudited_state = false;  ///< it loaded the uncounted values that earlier processes held
  bool others = false;               ///< other processes may have been counted in steps that this one skipped.
  uint64_t others_until = 0;         ///< steps below it may count other processes of this worker
  bool unknown = false;              ///< a contribution was unreturnable: only the log's sum has its carried values
  // Values that went through the slots, as of the last selection. At any other moment a caller may be filling a slot.
  double pushed = 0;
  double rounded_in_slots = 0;
  // Sums of the contributions, of all incarnations of the worker:
  double entered = 0;
  double lost = 0;
  double imbalance = 0;
  Account carried_by_switch;  ///< path switch: sums of the offers that this worker resolved as applied
  // The other terms, as of the last check:
  double in_residual = 0;
  double in_flight = 0;
  double rounded_off = 0;
};

/// Holds an update that was taken, and not handed to the application yet.
struct AwaitingAcks {
  DeliveredUpdate update;
  uint64_t needs = 0;  ///< number of the part's steps that must be replicated first
};

struct PartRun {
  protocol::PartLayout layout;
  size_t at = 0;                                    ///< index among the bucket's parts
  uint64_t n = 0;                                   ///< next step to apply
  uint64_t decided_in = 0;                          ///< epoch of step n - 1's decision.
  uint64_t decided_without = 0;                     ///< steps that were decided before steps needed this worker again
  uint64_t log_digest = protocol::kLogDigestStart;  ///< of the updates of the steps below n.
  uint64_t branch = 0;                  ///< log branch of the part's shard, from the last update or settlement
  uint32_t malformed = 0;               ///< updates of step n that did not decode
  std::deque<Outstanding> outstanding;  ///< by step, ascending.
  /// Updates of steps after n. The update of n, or SETTLE, is still missing.
  std::map<uint64_t, protocol::Message> early;
  uint64_t settling_bytes = 0;          ///< payloads put into `early` since the settling began
  TimeNs ask_at = 0;                    ///< not asked for again before.
  std::deque<RetainedUpdate> retained;  ///< by step, up to n - 1: those that some member lacks, and the last
  protocol::Summary summary;            ///< as of n, where no update is retained
  uint64_t answers = 0;                 ///< pushes of the bucket that this part has answered
  CountedSteps counted;
  /// Of jobs with `history`: the entries that the updates below n changed.
  std::unique_ptr<IndexHistory> history;
  uint64_t plain_until = 0;  ///< the shard has another history: contributions to steps below are sent uncoded
  PartAccount account;
  std::deque<AwaitingAcks> awaiting_acks;  ///< in order, of jobs with apply_after_acks.
  uint64_t replicated = 0;   ///< of these jobs: steps that enough members have, by this epoch's reports or handed over.
  uint64_t begins_at = 0;    ///< of jobs with apply_after_acks: steps in the weights with which this process joined.
  size_t first_offered = 0;  ///< path switch: index of its first entry among those of the last step that was begun.
  // Mode asynchronous: the next contribution's sequence number, and the incarnation that it belongs to.
  uint64_t next_sequence = 0;
  uint64_t sequence_incarnation = 0;
  // While this worker is not synced, in the present epoch:
  bool settled = false;
  bool stranded = false;                           ///< no live member can help the part to continue (R10)
  std::optional<protocol::Settle> waiting_settle;  ///< path switch: until a handover arrives
  std::optional<Incoming> incoming;

  uint64_t dimension() const { return layout.end - layout.begin; }
  uint64_t retained_from() const { return retained.empty() ? n : retained.front().body.step; }
  const protocol::Summary& summary_of_n() const { return retained.empty() ? summary : retained.back().body.summary; }
};

struct BucketRun {
  std::unique_ptr<Bucket> bucket;
  int32_t priority = 0;
  uint32_t first_part = 0;
  uint32_t part_count = 0;
  // The pushes of callers are numbered consecutively. The selection chooses the step of the job for a push. In mode
  // synchronous both have the same number. In modes that decide steps without this worker, a push goes into the next
  // open step.
  uint64_t pushed = 0;  ///< all slots are committed
  uint64_t selected = 0;
  uint64_t coded = 0;
  uint64_t answered = 0;       ///< pushes whose steps are below steps_applied
  std::deque<uint64_t> steps;  ///< of the pushes [answered, selected), ascending.
  /// Pushes below it were selected before this worker rejoined: parts may answer them without a step.
  uint64_t returned_to = 0;
  /// Push i is the job's push i + number_offset. Not 0 where other buckets were pushed long before.
  uint64_t number_offset = 0;
  uint64_t coding = 0;  ///< the step of the last push selected.
  /// Mode synchronous: the step after that of the last push selected, and after all outstanding steps.
  uint64_t next_step = 0;
  uint64_t steps_applied = 0;  ///< least n over its parts
  uint32_t parts_behind = 0;   ///< parts whose n is steps_applied
  TimeNs moved_at = 0;         ///< time at which steps_applied grew, or of the first push since then
  size_t committed_slots = 0;
  std::vector<uint32_t> order;  ///< parts in the order of coding: the shards alternate
  size_t next_in_order = 0;
  /// Holds a step that is under way, since its first part was sent.
  struct Sent {
    uint64_t step = 0;
    TimeNs since = 0;
    uint64_t bytes_up = 0;  ///< payloads, so far
    uint64_t bytes_down = 0;
  };
  std::deque<Sent> sent;  ///< by step.
  /// Path switch: entries offered to the step that begins when all buckets have offered.
  SharedStream offered;
  uint64_t audit_credit = 0;  ///< number of entries that the audit may check
  uint32_t audit_next = 0;    ///< the part that is audited next
};

/// Holds a delivered step of path switch, until the worker is idle or needs the outcome of the step's offers.
struct UnresolvedStep {
  SwitchStepDone done;
  std::vector<Outstanding> sent;  ///< by part
  size_t next_part = 0;           ///< the parts before it are resolved
};

struct TensorRun {
  uint32_t bucket = 0;
  uint32_t member = 0;
  uint64_t pushed = 0;
  bool committed = false;  ///< for the push that the bucket is collecting
};

/// Says which part of this worker's state the shards may have (R8, R9).
enum class MembershipState : uint8_t {
  kSynced = 1,   ///< a member whose weights are the log's
  kLoaded = 2,   ///< state from a save, or none: never settled with the log (R9b)
  kEvicted = 3,  ///< was synced, and was evicted: holds residual and outstanding contributions (R9c)
};

struct SessionCore::Impl {
  explicit Impl(CoreConfig config_);

  CoreConfig config;
  uint64_t spec_hash = 0;
  protocol::JobLayout layout;
  uint64_t layout_hash = 0;
  std::vector<BucketRun> buckets;
  std::vector<PartRun> parts;
  std::vector<TensorRun> tensors;
  LocalClip clip;
  LinkRate link_rate;                       ///< bandwidth to and from the shards
  std::unique_ptr<SwitchPath> switch_path;  ///< of jobs with it
  protocol::Heartbeat::Switch last_reported_switch = protocol::Heartbeat::Switch::kNoReport;
  /// Path switch: handovers that others asked for. Given between two steps.
  std::vector<GiveWeights> asked_at_rest;
  ByteBuffer incoming_handover;          ///< the handover's bytes received so far, while this worker is not synced.
  std::optional<uint64_t> handed_step;   ///< set when the handover is complete: the next step of the job
  uint64_t interrupted_incarnation = 0;  ///< ... the incarnation with which it was synced before
  std::optional<UnresolvedStep> unresolved_step;
  std::optional<SwitchStepDone> left_step;  ///< the results of the step in which this worker was evicted
  std::vector<Link> links;

  MembershipState membership_state = MembershipState::kLoaded;
  bool is_member = false;           ///< the membership has this process, under `incarnation`
  bool has_rejoined = false;        ///< steps may have been decided without this worker, in any mode
  bool was_evicted = false;         ///< ... at some time
  uint64_t resigned = 0;            ///< the incarnation that this worker gave up itself
  uint64_t synced_in = 0;           ///< the last epoch in which it was synced
  uint64_t synced_since = 0;        ///< the first epoch of this membership in which it was synced.
  bool quarantine_pending = false;  ///< the residual must be quarantined, and a caller was filling a slot
  bool finish_asked = false;        ///< during a rejoin
  TimeNs progress_at = 0;           ///< last progress of a rejoin

  /// Holds the steps of the pushes, by push from first_numbered on, and the number of buckets that must select theirs.
  struct Numbered {
    uint64_t step = 0;
    size_t buckets_left = 0;
  };
  std::deque<Numbered> numbered;
  uint64_t first_numbered = 0;
  uint64_t next_step = 0;  ///< after the last of them
  RandomSequence jitter;

  Phase phase = Phase::kJoining;
  std::optional<Error> error;
  protocol::Membership membership;  ///< job 0: none yet
  uint64_t incarnation = 0;
  TimeNs started_at = 0;
  std::optional<std::pair<TimeNs, Error>> two_numbers;  ///< two shards know two jobs: when and how the session ends
  TimeNs resend_check_at = INT64_MAX;                   ///< no outstanding contribution needs a retransmission before
  std::set<std::pair<int64_t, uint32_t>> ready;         ///< (-priority, bucket) with something to select or to code.
  std::set<uint32_t> unresolved;  ///< buckets that may have postponed work; select() may have done it
  CoreCounters counters;
  std::set<uint64_t> own_incarnations;  ///< of this process; the incarnations between them are other processes'
  bool loaded_of_this_job = false;      ///< its log positions are valid for this job.
  double last_reported_lost = 0;        ///< amount of values lost off the log that the log lines have reported
  uint64_t last_reported_void = 0;
  uint64_t audit_checks = 0;
  uint32_t audit_lines = 0;
  uint64_t changes = 0;

  // session_core_links.cc
  void start(TimeNs now, Actions& actions);
  void open(uint32_t shard, TimeNs now, Actions& actions);
  void on_connected(uint32_t shard, TimeNs now, Actions& actions);
  void on_disconnected(uint32_t shard, const Error& trouble, TimeNs now, Actions& actions);
  void schedule_retry(Link& link, TimeNs now);
  void tick_link(uint32_t shard, TimeNs now, Actions& actions);
  void on_tick(TimeNs now, Actions& actions);
  TimeNs next_deadline() const;
  void say_hello(uint32_t shard, TimeNs now, Actions& actions);
  void send_heartbeat(uint32_t shard, TimeNs now, Actions& actions);
  Error not_reached(uint32_t shard, TimeNs now) const;
  TimeNs join_deadline() const;
  std::string waiting_for() const;
  std::string shard_text(uint32_t shard) const;

  // session_core_messages.cc
  void on_message(uint32_t shard, protocol::Message&& message, TimeNs now, Actions& actions);
  bool header_fits(uint32_t shard, const protocol::Message& message);
  void on_welcome(uint32_t shard, const protocol::Header& header, const protocol::Welcome& welcome, TimeNs now,
                  Actions& actions);
  void on_refuse(uint32_t shard, const protocol::Header& header, const protocol::Refuse& refuse, TimeNs now,
                 Actions& actions);
  /// Sends the contribution uncoded, since the shard could not read the shortened form.
  void send_plain(PartRun& part, Outstanding& out, TimeNs now, Actions& actions);
  void on_refused_contribution(uint32_t shard, const protocol::Refuse& refuse, TimeNs now, Actions& actions);
  void on_duplicate(uint32_t shard, const protocol::Duplicate& duplicate, TimeNs now);
  void on_heartbeat(uint32_t shard, const protocol::Heartbeat& heartbeat, TimeNs now);
  void on_step_decided(uint32_t shard, const protocol::StepDecided& settled, TimeNs now, Actions& actions);
  void on_abort(uint32_t shard, const protocol::Abort& abort, TimeNs now, Actions& actions);
  void on_message_of_returns(uint32_t shard, const protocol::Message& message, TimeNs now, Actions& actions);

  // session_core_membership.cc
  /// Returns the incarnation of this process in that membership. 0: it is not a member.
  uint64_t incarnation_in(const protocol::Membership& of) const;
  /// Says whether this worker can rejoin. A snapshot lacks the exponents that a reproducible job over shards needs.
  bool may_rejoin() const {
    return (by_switch() || !config.spec.reproducible) && (config.has_weights || config.spec.has_store());
  }
  /// Returns the number of values that a snapshot of the part has for this worker.
  uint64_t snapshot_values(const PartRun& part) const { return config.has_weights ? part.dimension() : 0; }
  bool synced() const { return membership_state == MembershipState::kSynced; }
  /// Says that the job runs, and that the membership has this incarnation as a joiner.
  bool joining() const { return is_member && !synced() && membership.started && !over(); }
  /// Returns false where the membership ended the session.
  bool adopt_membership(uint32_t shard, const protocol::Membership& next, TimeNs now, Actions& actions);
  void take_decided(uint32_t shard, const protocol::MembershipChange& change);
  void forget_decided(uint32_t shard);
  bool shards_agree(uint32_t shard, const protocol::Membership& next, TimeNs now, Actions& actions);
  /// Takes the addresses and incarnations of restarted shards, and connects again to each restarted shard.
  void follow_shards(const protocol::Membership& before, TimeNs now, Actions& actions);
  bool find_myself(uint32_t shard, const protocol::Membership& before, TimeNs now, Actions& actions);
  void adopt_first_membership(const protocol::Member& own);
  bool adopt_incarnation(const protocol::Member& own, TimeNs now, Actions& actions);
  bool adopt_member_state(const protocol::Member& own, const protocol::Membership& before, TimeNs now,
                          Actions& actions);
  /// Stops applying and sending (R7). Sends Hello for a new incarnation where the membership has none yet (R9).
  void on_evicted(TimeNs now, Actions& actions);
  void greet_again(TimeNs now, Actions& actions);
  /// Gives up its membership, because a shard no longer retains the update that this worker needs next (R6).
  void resign(uint32_t shard, const std::string& why, TimeNs now, Actions& actions);
  void quarantine_residuals();
  void begin_when_all_joined(TimeNs now, Actions& actions);
  void become_synced(TimeNs now, Actions& actions);
  void log_what_was_lost(Actions& actions);
  void give_up_rejoin(TimeNs now, Actions& actions);
  std::string rejoining_text() const;

  // session_core_rejoin.cc
  void begin_settling(Actions& actions);
  void send_state(uint32_t shard, Actions& actions);
  bool all_settled() const;
  void on_fetch(uint32_t shard, const protocol::Fetch& fetch, Actions& actions);
  void on_settle(uint32_t shard, const protocol::Settle& settle, TimeNs now, Actions& actions);
  void resolve_against_log(PartRun& part, const protocol::Settle& settle, uint64_t next);
  void account_after_settle(PartRun& part, const protocol::Settle& settle, uint64_t n, double carried);
  void resolve_outstanding(PartRun& part, const protocol::Settle& settle, uint64_t next);
  void resolve_decided(PartRun& part, Outstanding&& out, const protocol::Settle& settle);
  /// Returns the bytes of the contribution for this transmission.
  SharedBytes payload_on_wire(const PartRun& part, Outstanding& out);
  void remember_update(PartRun& part, const protocol::Update& update, const StreamView& sum) const;
  /// Accounts a counted contribution in that step. `carried` is null where the update carried all of it.
  void note_unresolved(uint32_t bucket);
  void was_applied(PartRun& part, uint64_t step, const Outstanding& out, const SharedStream* carried);
  void lose_unreturnable(PartRun& part, const Outstanding& out);
  /// Drops the part's state, since it is not on the log (R9a).
  void drop_off_log(PartRun& part, const protocol::Settle& settle);
  void take_snapshot(PartRun& part, const protocol::Settle& settle, Actions& actions);
  void keep_for_settling(PartRun& part, protocol::Message&& message);
  void repeat_joining(uint32_t shard, TimeNs now, Actions& actions);
  /// Continues the job's log from this worker's state (R10).
  Status go_on_from_cut();

  // session_core_rounds.cc
  bool sends_now() const { return (phase == Phase::kRunning || phase == Phase::kFinishing) && synced(); }
  bool work(TimeNs now, Actions& actions);
  bool has_work(TimeNs now) const { return sends_now() && next_ready(now).has_value(); }
  /// Returns the bucket of the highest priority that may continue with a selection or a coding.
  std::optional<uint32_t> next_ready(TimeNs now) const;
  /// Returns the step of the bucket's next push. Empty: it is too far ahead, or clipping waits for other tensors.
  std::optional<uint64_t> step_for_push(const BucketRun& run, TimeNs now) const;
  void select_for(BucketRun& run, uint64_t step, TimeNs now, Actions& actions);
  void choose_codecs(uint32_t bucket, Actions& actions);
  void code_next(uint32_t bucket, TimeNs now, Actions& actions);
  void part_is_coded(uint32_t bucket);
  /// Returns the selected entries that are not coded yet to the residual.
  void skip_uncoded(BucketRun& run);
  /// Says whether the shard may take the contribution now. After a rejoin one part may have fewer steps than others.
  bool may_be_taken(const PartRun& part, const Outstanding& out) const {
    return asynchronous() || out.step <= part.n + config.spec.staleness + 1;
  }
  void send_contribution(PartRun& part, Outstanding& out, TimeNs now, Actions& actions);
  /// Sends the contributions in flight again: to one shard, or (kAllShards) to all.
  void resend_outstanding(uint32_t shard, TimeNs now, Actions& actions);
  void resend_due(TimeNs now, Actions& actions);
  /// Asks for the part's next update, which did not arrive: sends the contribution again, or a request without one.
  void ask_again(PartRun& part, TimeNs now);
  void defer_early(PartRun& part, uint64_t step, protocol::Message&& message, TimeNs now);
  void on_update(uint32_t shard, protocol::Message&& message, TimeNs now, Actions& actions);
  /// Checks one update, and applies it or stores it. Returns true where it was applied and the next one may follow.
  bool take_update(uint32_t shard, protocol::Message&& message, TimeNs now, Actions& actions);
  void apply_update(PartRun& part, const protocol::Update& update, SharedStream&& held, TimeNs now, Actions& actions);
  /// Retains the update for a successor of the shard. Returns the update at its new place.
  static const protocol::Update& retain_update(PartRun& part, protocol::Update& update, SharedBytes&& payload);
  bool resolve(PartRun& part, const protocol::Update& update, const SharedStream& carried);
  /// Resolves a contribution that the update of that step counted: its uncarried entries return to the residual.
  void resolve_counted(PartRun& part, uint64_t step, Outstanding& out, const protocol::Update& update,
                       const SharedStream& carried);
  /// Returns the whole contribution to the residual, since no step will count it.
  void give_back(PartRun& part, const Outstanding& out);
  /// Resolves contributions by the update, and sets the push that it answers.
  void answer_by(PartRun& part, const protocol::Update& update, DeliveredUpdate& delivered, Actions& actions);
  void step_applied(BucketRun& run, TimeNs now);
  void count_communication(BucketRun& run, TimeNs now, Actions& actions);
  void count_parts_behind(BucketRun& run);
  void malformed_update(uint32_t shard, PartRun& part, const std::string& why, TimeNs now, Actions& actions);
  void replay_deferred(TimeNs now, Actions& actions);
  Outstanding* find_outstanding(uint32_t shard, uint32_t part, uint64_t step);
  void end_pass(TimeNs now, Actions& actions);
  void leave_when_done(TimeNs now, Actions& actions);

  // session_core_audit.cc
  /// Returns the log's sums of this worker's counted contributions, as of step n. nullptr: none was counted.
  const protocol::SummaryEntry* counted_in(const PartRun& part) const;
  double carried_in(const PartRun& part) const;
  void open_account(PartRun& part);
  void read_slots(PartRun& part);
  void tell_account(PartRun& part);
  void account_update(PartRun& part, const protocol::Update& update,
                      const std::optional<protocol::SummaryEntry>& before);
  void audit_part(PartRun& part, Actions& actions);
  bool sends_what_entered(const PartRun& part) const;
  void audit_some(BucketRun& run, Actions& actions);
  AuditSums audit_sums() const;
  // session_core_replication.cc
  bool applies_after_acks() const { return protocol::applies_after_acks(config.spec); }
  /// Returns the number of the part's steps that the application has, or has after the deliveries so far.
  uint64_t delivered_steps(const PartRun& part) const;
  /// Returns the number of the bucket's pushes whose answers the application has.
  uint64_t answers_handed(const BucketRun& run) const;
  /// Hands the update to the application, once all earlier ones are and `needs` steps of the part are replicated.
  void hand_over(PartRun& part, DeliveredUpdate&& update, uint64_t needs, Actions& actions);
  void release(PartRun& part, Actions& actions);
  void on_replicated(uint32_t shard, const protocol::Message& message, Actions& actions);
  void forget_replicated();
  void void_awaiting_acks(PartRun& part);
  void request_replicated(uint32_t shard);
  /// Says whether the application's weights have reached the step from which the shard needs this worker.
  bool has_begun(const PartRun& part) const;
  std::string awaiting_acks_text() const;

  // session_core_switch.cc
  bool by_switch() const { return switch_path != nullptr; }
  /// Moves the selected entries of the bucket in flight. The last bucket's offer begins the step.
  void offer(uint32_t bucket, uint64_t step, TimeNs now, Actions& actions);
  Status begin_switch_step(uint64_t step, TimeNs now);
  SharedStream offered_in_array(size_t count);
  void on_packet(const protocol::ReceivedPacket& packet, TimeNs now, Actions& actions);
  void follow_path(TimeNs now, Actions& actions);
  void tick_path(TimeNs now, Actions& actions);
  /// Notifies shard 0 at once of a new state of the switch.
  void tell_of_switch(TimeNs now, Actions& actions);
  void finish_switch_step(TimeNs now, Actions& actions);
  /// Resolves one part of the unresolved step. Returns false where there is none.
  bool resolve_switch_part();
  /// Resolves the unresolved step. Needed before any read or change of the residual or the accounts.
  void resolve_switch_step();
  /// Holds the entries of an offer that return to the residual. Entries that are not applied either count as lost.
  struct OfferOutcome {
    Stream back;
    uint64_t whole = 0;  ///< number of entries of `back` of which no part was applied
  };
  OfferOutcome outcome_by_switch(PartRun& part, const Outstanding& out, const SwitchStepDone& step);
  void deliver_by_switch(PartRun& part, const SwitchStepDone& step, TimeNs now, Actions& actions);
  bool may_leave_switch(TimeNs now, Actions& actions);

  // session_core_handovers.cc: both sides of joining a running job of path switch
  /// Returns the part number of a handover: one behind the last part.
  uint32_t handover_part() const { return static_cast<uint32_t>(parts.size()); }
  void give_later(const GiveWeights& asked, Actions& actions);
  void give_at_rest(Actions& actions);
  void send_handover(const GiveWeights& asked, Actions& actions);
  void forget_handovers();
  void on_handover_run(const protocol::Snapshot& run, ByteSpan bytes, TimeNs now, Actions& actions);
  void resolve_interrupted_step(PartRun& part);
  void return_revoked(PartRun& part);
  /// Returns the part's steps as the shards count them: on path switch they see none.
  uint64_t steps_at_shard(const PartRun& part) const { return by_switch() ? 0 : part.n; }
  // session_core_step_numbers.cc
  /// Returns a sentence about the tensor that its fused neighbours, clipping, or the switch are blocked on. Or empty.
  std::string push_waits_for() const;
  void number(uint64_t push, uint64_t step, TimeNs now, Actions& actions);
  void answer_pushes(BucketRun& run);
  /// Numbers new pushes from the position with which this worker rejoined. Pushes sent before are answered now, or by
  /// the updates that resolve their outstanding contributions. Returns false where the session ended over it.
  bool restart_numbers(TimeNs now, Actions& actions);
  void recall_pushes(BucketRun& run);
  void answer_returned(PartRun& part, Actions& actions);
  void answer_without_update(PartRun& part, uint64_t push, uint64_t step, Actions& actions);
  /// Adds empty contributions for the steps of [n, below) that lack one of this worker (R9e): no step waits for it.
  void send_empty_contributions(BucketRun& run, uint64_t below);
  /// Says whether this worker must send empty contributions for the steps before the bucket's next push. It must where
  /// every step needs every worker, and before a bucket's first push: with a quorum of all they need this worker too.
  bool must_fill_gaps(const BucketRun& run) const {
    return has_rejoined && !asynchronous() && (waits_for_all() || run.selected == 0);
  }
  /// Fills the gaps before a push whose step another bucket has chosen.
  void fill_numbered_gaps(TimeNs now, Actions& actions);
  void send_unsent(BucketRun& run, TimeNs now, Actions& actions);
  void send_unsent(PartRun& part, TimeNs now, Actions& actions);
  void make_empty(const PartRun& part, Outstanding& out) const;
  uint64_t number_of(const BucketRun& run) const { return run.selected + run.number_offset; }

  // session_core_asynchronous.cc
  bool asynchronous() const { return config.spec.mode == protocol::Mode::kAsynchronous; }
  /// Returns the number by which a shard names a contribution: its step, or its sequence number.
  uint64_t wire_number(const Outstanding& out) const { return asynchronous() ? out.sequence : out.step; }
  /// Says that the contribution is of an earlier incarnation: the worker awaits its outcome and does not send it again.
  bool is_of_earlier_incarnation(const Outstanding& out) const {
    return asynchronous() && out.incarnation != incarnation;
  }
  /// Says that the part has decided the step: the step takes no further contribution.
  bool is_decided(const PartRun& part, uint64_t step) const { return !asynchronous() && part.n > step; }
  /// Returns the worker whose random draws a step uses. A restarted process numbers its pushes from 0 again.
  uint64_t draws_of_worker() const { return asynchronous() ? config.worker + (incarnation << 32) : config.worker; }
  uint64_t take_sequence(PartRun& part) const;
  /// Returns the divisor of its sum; of merged steps the first one's.
  double denominator_of(const protocol::Update& update) const;
  /// Says whether the update may hold several steps whose sum has the same effect as the steps in order.
  bool may_be_merged(const protocol::Update& update) const;
  /// Holds one of this worker's contributions that the update names, in their order.
  struct OwnContribution {
    protocol::ContributorId id;
    uint64_t step = 0;  ///< of the log
  };
  std::vector<OwnContribution> own_contributions(const protocol::Update& update) const;
  /// Returns the last push of which the update names the contribution; empty: none of this worker's.
  std::optional<uint64_t> resolve_listed(PartRun& part, const protocol::Update& update, const SharedStream& carried,
                                         Actions& actions);
  void resolve_sequences(PartRun& part, const protocol::Settle& settle, uint64_t next);
  void restart_sequences(Actions& actions);

  // session_core_snapshots.cc: weights sent and received
  void on_snapshot_request(uint32_t shard, const protocol::SnapshotRequest& request, Actions& actions);
  void on_snapshot(uint32_t shard, const protocol::Message& message, TimeNs now, Actions& actions);
  void give_weights(const GiveWeights& asked, std::span<const float> weights, Actions& actions);

  // session_core_saved_state.cc
  void load(SavedState& saved);
  void take_saved_positions();
  SavedState saved_state() const;

  // session_core.cc
  void send(uint32_t shard, protocol::Body&& body, SharedBytes payload, Actions& actions);
  void end_session(Error why, TimeNs now, Actions& actions);
  /// Sends Goodbye to the shards that welcomed this worker, and to those that have not answered its Hello.
  void say_goodbye(protocol::Goodbye::Reason reason, const std::string& sentence, Actions& actions);
  TimeNs jittered(TimeNs interval);
  void set_phase(Phase next) {
    phase = next;
    ++changes;
  }
  /// Says that every step needs every member.
  bool waits_for_all() const { return config.spec.mode == protocol::Mode::kSynchronous; }
  /// Says that no step was decided without this worker.
  bool is_in_every_step() const { return waits_for_all() && !has_rejoined; }
  bool over() const { return phase == Phase::kFinished || phase == Phase::kEnded; }
  static void log(Actions& actions, Severity severity, std::string text) {
    actions.log.push_back({severity, std::move(text)});
  }
};

inline constexpr uint32_t kAllShards = ~0u;
inline constexpr TimeNs kNever = INT64_MAX;

}  // namespace millrace::worker
