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
#include "worker/core/rejoin/counted_steps.h"
#include "worker/core/residual/local_clip.h"
#include "worker/core/session_core.h"
#include "worker/switch/switch_path.h"

/// What SessionCore's files share. core_links: connections. core_messages: what shards say, one by one. core_places:
/// views, this worker's place in them, losing it and getting it back. core_returns: where it stands, and how its parts
/// are settled. core_snapshots: weights that leave and come. core_held: updates that wait for acknowledgements.
/// core_rounds: contributions and updates. core_numbers: pushes and steps.
/// core_audit: the law at run time. core_switch: jobs of path switch; core_handovers: coming into one.
/// core_sequences: mode asynchronous.
namespace millrace::worker {

/// O[t]: what was sent into one step of one part, until that step's update.
struct Outstanding {
  uint64_t step = 0;      ///< mode asynchronous: the bucket's push that it is of
  uint64_t life = 0;      ///< under which it was sent: the update names it
  uint64_t sequence = 0;  ///< mode asynchronous: which one of that life
  HeldStream sent;
  SharedBytes payload;  ///< the bytes that every resend repeats
  uint64_t hash = 0;
  double weight = 1;
  double entered = 0;  ///< audit, as of its selection
  double lost = 0;
  double imbalance = 0;
  bool on_wire = false;
  bool known = false;      ///< the shard said that it has it: a resend can wait
  bool shortened = false;  ///< it went out with its indices coded against the history
  uint32_t refusals = 0;
  TimeNs resend_at = 0;
  TimeNs resend_interval = 0;
};

/// An update that was applied, as it came: a shard that lost its state may ask for it (R8). Bytes are shared with
/// whoever else holds them.
struct KeptUpdate {
  protocol::Update body;
  SharedBytes payload;
};

/// Weights of a part that are coming in, run by run.
struct Incoming {
  Buffer<float> values;
  uint64_t n = 0;
  uint64_t decided_in = 0;
  protocol::Summary summary;
};

/// Audit: where the books of a part begin in this process, and what was found when they were last looked at.
struct PartAccount {
  bool loaded = false;  ///< its position is of a saved state that is not settled: what it holds is in no book yet
  // What the log said of this worker's earlier processes, less what this one loaded of it:
  double entered_before = 0;
  double carried_before = 0;
  double doubt = 0;           ///< how far the log's sum may be off, by its roundings
  bool holds_loaded = false;  ///< of what earlier processes held it loaded what was not counted
  bool others = false;        ///< other processes may have been counted in steps that this one skipped
  bool unknown = false;  ///< something was given up as unreturnable: what was carried of it only the log's sum says
  // What went through the slots, as of the last selection: they may be being filled at any other moment.
  double pushed = 0;
  double rounded_in_slots = 0;
  // What contributions say, with all lives of the worker:
  double entered = 0;
  double lost = 0;
  double imbalance = 0;
  Account carried_by_switch;  ///< path switch: what this worker settled as applied
  // The other terms, as of the last look:
  double held = 0;
  double in_flight = 0;
  double rounded_off = 0;
};

/// Taken, and not handed to the application yet.
struct Held {
  DeliveredUpdate update;
  uint64_t needs = 0;  ///< so many steps of the part must be backed
};

struct PartRun {
  protocol::PartLayout layout;
  size_t at = 0;                                    ///< place among the bucket's parts
  uint64_t n = 0;                                   ///< next step to apply
  uint64_t decided_in = 0;                          ///< epoch of step n - 1's decision
  uint64_t decided_without = 0;                     ///< steps that were decided before this worker was waited for again
  uint64_t log_digest = protocol::kLogDigestStart;  ///< of the updates of the steps below n
  uint64_t lineage = 0;                             ///< of the part's shard, by what was applied or settled last
  uint32_t malformed = 0;                           ///< updates of step n that did not decode
  std::deque<Outstanding> outstanding;              ///< by step, ascending
  std::map<uint64_t, protocol::Message>
      early;                    ///< updates of steps after n: the one of n is still missing, or Settle is
  TimeNs ask_at = 0;            ///< not asked for it again before
  std::deque<KeptUpdate> kept;  ///< by step, up to n - 1; what all members have is forgotten, but for the last
  protocol::Summary summary;    ///< as of n, where nothing is kept
  uint64_t answers = 0;         ///< pushes of the bucket that this part has answered
  CountedSteps counted;
  std::unique_ptr<IndexHistory> history;  ///< of jobs with `history`: what the updates below n changed
  uint64_t plain_until = 0;  ///< the shard has another one: contributions to steps below go out as they are
  PartAccount account;
  std::deque<Held> held;     ///< in order, of jobs with apply_after_acks
  uint64_t backed = 0;       ///< ... steps that enough members have: said in this epoch, or handed over before
  uint64_t begins_at = 0;    ///< ... steps in the weights that this process came in with
  size_t first_offered = 0;  ///< path switch: its entries among those of the step that was begun last
  // Mode asynchronous: the number of the next contribution, and the life that it is counted in.
  uint64_t next_sequence = 0;
  uint64_t sequence_life = 0;
  // While this worker is not synced, in the present epoch:
  bool settled = false;
  bool stranded = false;                           ///< nobody can help it to go on (R10)
  std::optional<protocol::Settle> waiting_settle;  ///< path switch: until there is a handover
  std::optional<Incoming> incoming;

  uint64_t dimension() const { return layout.end - layout.begin; }
  uint64_t kept_from() const { return kept.empty() ? n : kept.front().body.step; }
  const protocol::Summary& summary_of_n() const { return kept.empty() ? summary : kept.back().body.summary; }
};

struct BucketRun {
  std::unique_ptr<Bucket> bucket;
  int32_t priority = 0;
  uint32_t first_part = 0;
  uint32_t part_count = 0;
  // What callers push is numbered one after the other; which step of the job a push goes into is chosen when it is
  // selected. In mode synchronous the two are one number; where steps are decided without this worker it goes into the
  // next that is open.
  uint64_t pushed = 0;  ///< all slots committed
  uint64_t selected = 0;
  uint64_t coded = 0;
  uint64_t answered = 0;       ///< pushes whose steps are below steps_applied
  std::deque<uint64_t> steps;  ///< of the pushes [answered, selected), ascending
  uint64_t returned_to =
      0;  ///< pushes below were selected before this worker came back: parts may answer them without a step
  uint64_t number_offset =
      0;                ///< push i is the job's push i + number_offset: not 0 where others were pushed long before
  uint64_t coding = 0;  ///< the step of the last push selected
  uint64_t next_step =
      0;  ///< mode synchronous: after the step of the last push selected, and after all that is outstanding
  uint64_t steps_applied = 0;  ///< least n over its parts
  uint32_t parts_behind = 0;   ///< parts whose n is steps_applied
  TimeNs moved_at = 0;         ///< when steps_applied grew, or the first push since came
  size_t committed_slots = 0;
  std::vector<uint32_t> order;  ///< parts in the order of coding: the shards take turns
  size_t next_in_order = 0;
  /// A step under way, since its first part went out.
  struct Sent {
    uint64_t step = 0;
    TimeNs since = 0;
    uint64_t bytes_up = 0;  ///< payloads, so far
    uint64_t bytes_down = 0;
  };
  std::deque<Sent> sent;        ///< by step
  HeldStream offered;           ///< path switch: to the step that begins when all buckets have offered
  std::vector<double> applied;  ///< LedgerMode::kPerIndex
  uint64_t audit_credit = 0;    ///< entries that the audit may go over
  uint32_t audit_next = 0;      ///< whose turn it is, among the parts
};

/// Path switch: a step whose update is delivered. The update has been waited for, what became of the offers has not:
/// that is found out in a quiet moment, or when something depends on it.
struct UnsettledStep {
  SwitchStepDone done;
  std::vector<Outstanding> sent;  ///< by part
  size_t next_part = 0;           ///< those before are settled
};

struct TensorRun {
  uint32_t bucket = 0;
  uint32_t member = 0;
  uint64_t pushed = 0;
  bool committed = false;  ///< for the push that the bucket is collecting
};

/// What the shards may hold of this worker's state (R8, R9).
enum class Standing : uint8_t {
  kSynced = 1,    ///< a member whose weights are the log's
  kLoaded = 2,    ///< state from a save, or none: never settled with the log (R9b)
  kExpelled = 3,  ///< was synced, and lost its place: holds residual and outstanding contributions (R9c)
};

enum class LinkState : uint8_t {
  kDown = 1,        ///< to be connected at `next_attempt`
  kConnecting = 2,  ///< the shell was asked
  kGreeting = 3,    ///< connected; Hello is out, or waits for `next_attempt`
  kWelcomed = 4,
};

struct Link {
  std::string address;
  LinkState state = LinkState::kDown;
  bool ever_welcomed = false;
  bool accepted = false;  ///< somebody took the present attempt's connection, whoever that is
  uint64_t shard_life = 0;
  TimeNs next_attempt = 0;
  TimeNs retry_interval = 0;
  uint32_t attempts = 0;
  std::string last_trouble;      ///< why the last attempt failed, or what the shard's Refuse said
  bool refused_for_now = false;  ///< that is a Refuse that passes: the shard lives
  ErrorCode trouble_code = ErrorCode::kUnavailable;
  TimeNs last_heard = 0;
  TimeNs next_heartbeat = 0;
  uint64_t heartbeats = 0;
  size_t next_digest = 0;  ///< where the next heartbeat's digests begin, among all parts
  uint64_t message_bytes_max = 0;
  uint64_t told_epoch = 0;  ///< of the latest view it has sent
  std::vector<protocol::Ack::Entry> acks;
  std::vector<protocol::Message> held;  ///< updates of an epoch that this worker has not seen yet
  std::vector<uint32_t> waited_for;
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
  LinkRate link_rate;                       ///< to and from the shards
  std::unique_ptr<SwitchPath> switch_path;  ///< of jobs with it
  protocol::Heartbeat::Switch told_of_switch = protocol::Heartbeat::Switch::kNoWord;
  std::vector<GiveWeights> asked_at_rest;  ///< path switch: what others asked for; given between two steps
  ByteBuffer incoming_handover;            ///< as much as has come, while this worker is not synced
  std::optional<uint64_t> handed_step;     ///< ... all of it has: the next step of the job
  uint64_t left_life = 0;                  ///< ... the life that it was synced with before
  std::optional<UnsettledStep> unsettled_step;
  std::optional<SwitchStepDone> left_step;  ///< what came of the step in which this worker was removed
  std::vector<Link> links;

  Standing standing = Standing::kLoaded;
  bool has_place = false;      ///< the view has this process, under `life`
  bool came_back = false;      ///< steps may have been decided without this worker, in any mode
  bool lost_place = false;     ///< at some time
  uint64_t resigned = 0;       ///< the life that it gave up itself
  uint64_t synced_in = 0;      ///< the last epoch in which it was synced
  uint64_t synced_since = 0;   ///< the first one of this time
  bool aside_pending = false;  ///< a slot was being filled when the residual was to be put apart
  bool finish_asked = false;   ///< while it comes back
  TimeNs progress_at = 0;      ///< when coming back last got further

  /// The steps that pushes go into, alike for all buckets, by push from first_numbered on; and how many buckets have
  /// yet to select theirs.
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
  protocol::JobView view;  ///< job 0: none yet
  uint64_t life = 0;
  TimeNs started_at = 0;
  TimeNs resend_check_at = INT64_MAX;            ///< no outstanding resend is due before
  std::set<std::pair<int64_t, uint32_t>> ready;  ///< (-priority, bucket) with something to select or to code
  std::set<uint32_t> unsettled;  ///< buckets that may have something to settle; select() may have done it
  CoreCounters counters;
  std::set<uint64_t> own_lives;     ///< of this process; others have, or had, those between
  bool loaded_of_this_job = false;  ///< its positions in the logs mean something here
  double told_lost = 0;             ///< of what was lost off the log, the log line has said so much
  uint64_t told_void = 0;
  uint64_t audit_checks = 0;
  uint32_t audit_lines = 0;
  std::vector<UnreturnableView> unreturnable;  ///< LedgerMode::kPerIndex
  uint64_t changes = 0;

  // session_core_links.cc
  void start(TimeNs now, Actions& actions);
  void open(uint32_t shard, TimeNs now, Actions& actions);
  void on_accepted(uint32_t shard);
  void on_connected(uint32_t shard, TimeNs now, Actions& actions);
  void on_disconnected(uint32_t shard, const std::string& reason, TimeNs now, Actions& actions);
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
  void on_refuse(uint32_t shard, const protocol::Refuse& refuse, TimeNs now, Actions& actions);
  /// The shard could not read what went out shortened.
  void send_plain(PartRun& part, Outstanding& out, TimeNs now, Actions& actions);
  void on_refused_contribution(uint32_t shard, const protocol::Refuse& refuse, TimeNs now, Actions& actions);
  void on_duplicate(uint32_t shard, const protocol::Duplicate& duplicate);
  void on_settled(uint32_t shard, const protocol::Settled& settled, TimeNs now, Actions& actions);
  void on_abort(uint32_t shard, const protocol::Abort& abort, TimeNs now, Actions& actions);
  void on_message_of_returns(uint32_t shard, const protocol::Message& message, TimeNs now, Actions& actions);

  // session_core_membership.cc
  /// Of this process in that view; 0: it is not in it.
  uint64_t life_in(const protocol::JobView& of) const;
  /// It goes on with the weights of another, or with none: those that the shards hold.
  /// Not in a reproducible job over shards: whoever gave it weights does not say what exponents go with them.
  bool may_return() const {
    return (by_switch() || !config.spec.reproducible) && (config.has_weights || config.spec.has_store());
  }
  /// Values that a snapshot of the part has for this worker.
  uint64_t snapshot_values(const PartRun& part) const { return config.has_weights ? part.dimension() : 0; }
  bool synced() const { return standing == Standing::kSynced; }
  /// The job runs, and knows this life as one that comes (back) in.
  bool joining() const { return has_place && !synced() && view.started && !over(); }
  /// False: the session ended over it.
  bool adopt_view(uint32_t shard, const protocol::JobView& next, TimeNs now, Actions& actions);
  void take_decided(uint32_t shard, const protocol::ViewChange& change);
  void forget_decided(uint32_t shard);
  bool shards_agree(uint32_t shard, const protocol::JobView& next, TimeNs now, Actions& actions);
  /// Shards that were started again: their addresses and lives; whoever was connected to the earlier one connects anew.
  void follow_shards(const protocol::JobView& before, TimeNs now, Actions& actions);
  bool find_myself(uint32_t shard, const protocol::JobView& before, TimeNs now, Actions& actions);
  void take_first_place(const protocol::Member& own);
  bool take_new_life(const protocol::Member& own, TimeNs now, Actions& actions);
  bool stand_as(const protocol::Member& own, const protocol::JobView& before, TimeNs now, Actions& actions);
  /// Stops applying and sending (R7); says Hello for a new life where the view does not have one yet (R9).
  void lose_place(TimeNs now, Actions& actions);
  void greet_again(TimeNs now, Actions& actions);
  /// Gives up its place, because a shard has forgotten what it needs next (R6).
  void resign(uint32_t shard, const std::string& why, TimeNs now, Actions& actions);
  void put_aside();
  void begin_when_all_joined(TimeNs now, Actions& actions);
  void become_synced(TimeNs now, Actions& actions);
  void log_what_was_lost(Actions& actions);
  void give_up_returning(TimeNs now, Actions& actions);
  std::string returning_text() const;

  // session_core_rejoin.cc
  void begin_settling(Actions& actions);
  void send_state(uint32_t shard, Actions& actions);
  bool all_settled() const;
  void on_fetch(uint32_t shard, const protocol::Fetch& fetch, Actions& actions);
  void on_settle(uint32_t shard, const protocol::Settle& settle, TimeNs now, Actions& actions);
  void settle_account(PartRun& part, const protocol::Settle& settle, uint64_t next);
  void account_settled(PartRun& part, const protocol::Settle& settle, double carried);
  void settle_outstanding(PartRun& part, const protocol::Settle& settle, uint64_t next);
  void settle_decided(PartRun& part, Outstanding&& out, const protocol::Settle& settle);
  /// What of the contribution goes out, this time.
  SharedBytes payload_on_wire(const PartRun& part, Outstanding& out);
  void remember_update(PartRun& part, const protocol::Update& update, const StreamView& sum) const;
  /// Counted in that step: of what was sent all was applied (`carried` is null), or what the update carries.
  void note_unsettled(uint32_t bucket);
  void was_applied(PartRun& part, uint64_t step, const Outstanding& out, const HeldStream* carried);
  void lose_unreturnable(PartRun& part, const Outstanding& out);
  /// R9a: nothing of the part's state counts.
  void drop_off_log(PartRun& part, const protocol::Settle& settle);
  void take_snapshot(PartRun& part, const protocol::Settle& settle, Actions& actions);
  void keep_for_settling(PartRun& part, protocol::Message&& message);
  void repeat_joining(uint32_t shard, Actions& actions);
  /// The job's log goes on from this worker's state (R10).
  Status go_on_from_cut();

  // session_core_rounds.cc
  bool sends_now() const { return (phase == Phase::kRunning || phase == Phase::kFinishing) && synced(); }
  bool work(TimeNs now, Actions& actions);
  bool has_work(TimeNs now) const { return sends_now() && next_ready(now).has_value(); }
  /// The bucket of the highest priority with something to select or to code, and that may go on.
  std::optional<uint32_t> next_ready(TimeNs now) const;
  /// The step that the bucket's next push goes into; empty: it is not near enough yet, or clipping waits for other
  /// tensors.
  std::optional<uint64_t> step_for_push(const BucketRun& run, TimeNs now) const;
  uint64_t steps_applied_by_all(uint64_t push) const;
  void select_for(BucketRun& run, uint64_t step, TimeNs now, Actions& actions);
  void choose_codecs(uint32_t bucket, Actions& actions);
  void code_next(uint32_t bucket, TimeNs now, Actions& actions);
  void part_is_coded(uint32_t bucket);
  /// The shard takes no step that is further ahead: after a return the log of one part may have gone back behind the
  /// others'.
  bool may_be_taken(const PartRun& part, const Outstanding& out) const {
    return asynchronous() || out.step <= part.n + config.spec.staleness + 1;
  }
  void send_contribution(PartRun& part, Outstanding& out, TimeNs now, Actions& actions);
  /// Sends what is in flight again: to one shard, or (kAllShards) to all.
  void resend_outstanding(uint32_t shard, TimeNs now, Actions& actions);
  void resend_due(TimeNs now, Actions& actions);
  /// The update of the part's next step has been decided and did not come: its contribution is sent again, which brings
  /// it, or where there is none the update is asked for.
  void ask_again(PartRun& part, TimeNs now);
  void on_heartbeat(uint32_t shard, const protocol::Heartbeat& heartbeat, TimeNs now);
  void keep_early(PartRun& part, uint64_t step, protocol::Message&& message, TimeNs now);
  void on_update(uint32_t shard, protocol::Message&& message, TimeNs now, Actions& actions);
  /// One update, judged and applied or put where it belongs. True: applied, the next one's turn has come.
  bool take_update(uint32_t shard, protocol::Message&& message, TimeNs now, Actions& actions);
  void apply_update(PartRun& part, const protocol::Update& update, HeldStream&& held, TimeNs now, Actions& actions);
  /// Keeps what a successor of the shard may ask for. Returns the update, where it is now.
  static const protocol::Update& keep_update(PartRun& part, protocol::Update& update, SharedBytes&& payload);
  bool settle(PartRun& part, const protocol::Update& update, const HeldStream& carried);
  /// The update has counted it, in that step: what it does not carry of it comes back.
  void settle_counted(PartRun& part, uint64_t step, Outstanding& out, const protocol::Update& update,
                      const HeldStream& carried);
  /// It will never be counted.
  void give_back(PartRun& part, const Outstanding& out);
  /// Settles by the update, and says which push it answers.
  void answer_by(PartRun& part, const protocol::Update& update, DeliveredUpdate& delivered, Actions& actions);
  void step_applied(BucketRun& run, TimeNs now);
  void count_communication(BucketRun& run, TimeNs now, Actions& actions);
  void count_parts_behind(BucketRun& run);
  void malformed_update(uint32_t shard, PartRun& part, const std::string& why, TimeNs now, Actions& actions);
  void replay_held(TimeNs now, Actions& actions);
  Outstanding* find_outstanding(uint32_t shard, uint32_t part, uint64_t step);
  void end_turn(TimeNs now, Actions& actions);
  void leave_when_done(TimeNs now, Actions& actions);

  // session_core_audit.cc
  /// What the log, as of step n, has counted of this worker; nullptr: nothing.
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
  bool holds_updates() const { return protocol::holds_updates(config.spec); }
  /// Steps of the part that the application has, or will have with what is delivered by now.
  uint64_t handed_steps(const PartRun& part) const;
  /// Pushes of the bucket whose answers the application has.
  uint64_t answers_handed(const BucketRun& run) const;
  /// To the application: now, or when so many steps of the part are backed and what came before is handed over.
  void hand_over(PartRun& part, DeliveredUpdate&& update, uint64_t needs, Actions& actions);
  void release(PartRun& part, Actions& actions);
  void on_backed(uint32_t shard, const protocol::Message& message, Actions& actions);
  void forget_backed();
  void void_held(PartRun& part);
  void ask_what_is_backed(uint32_t shard);
  /// The application's weights are where the shard waits for this worker.
  bool has_begun(const PartRun& part) const;
  std::string held_text() const;

  // session_core_clip.cc
  /// A sentence about the tensor that clipping, or the switch, waits for; empty where none does.
  std::string push_waits_for() const;

  // session_core_switch.cc
  bool by_switch() const { return switch_path != nullptr; }
  /// What select() took out is in flight from now on; with the last bucket's the step begins.
  void offer(uint32_t bucket, uint64_t step, TimeNs now, Actions& actions);
  Status begin_switch_step(uint64_t step, TimeNs now);
  HeldStream offered_in_array(size_t count);
  void on_packet(const protocol::ReceivedPacket& packet, TimeNs now, Actions& actions);
  void follow_path(TimeNs now, Actions& actions);
  void tick_path(TimeNs now, Actions& actions);
  /// Tells shard 0 at once when there is something new to tell of the switch.
  void tell_of_switch(TimeNs now, Actions& actions);
  void finish_switch_step(TimeNs now, Actions& actions);
  /// Settles one part of the unsettled step. False: there is none.
  bool settle_switch_part();
  /// Before anybody looks at what is held or in the books, or changes it.
  void settle_switch_step();
  /// What of an offer comes back. What was applied is in the books then; what is neither is lost by name.
  struct SwitchFate {
    Stream back;
    uint64_t whole = 0;  ///< entries of `back` of which nothing was applied
  };
  SwitchFate fate_by_switch(PartRun& part, const Outstanding& out, const SwitchStepDone& step);
  void deliver_by_switch(PartRun& part, const SwitchStepDone& step, TimeNs now, Actions& actions);
  bool may_leave_switch(TimeNs now, Actions& actions);

  // session_core_handovers.cc: who comes into a job of path switch that runs, from both sides
  /// The part by whose number a handover travels: one behind the last.
  uint32_t handover_part() const { return static_cast<uint32_t>(parts.size()); }
  void give_later(const GiveWeights& asked, Actions& actions);
  void give_at_rest(Actions& actions);
  void send_handover(const GiveWeights& asked, Actions& actions);
  void forget_handovers();
  void on_handover_run(const protocol::Snapshot& run, ByteSpan bytes, TimeNs now, Actions& actions);
  void settle_left_step(PartRun& part);
  void return_revoked(PartRun& part);
  /// Steps of the part as shards know them: on path switch they see none.
  uint64_t steps_at_shard(const PartRun& part) const { return by_switch() ? 0 : part.n; }
  // session_core_step_numbers.cc
  void number(uint64_t push, uint64_t step, TimeNs now, Actions& actions);
  void answer_pushes(BucketRun& run);
  /// Pushes to come are numbered from what this worker came back with; those it had sent are answered, now or by the
  /// updates that settle what is left of them. False: the session ended over it.
  bool restart_numbers(TimeNs now, Actions& actions);
  void recall_pushes(BucketRun& run);
  void answer_returned(PartRun& part, Actions& actions);
  void answer_without_update(PartRun& part, uint64_t push, uint64_t step, Actions& actions);
  /// An empty contribution to every step of [n, below) that this worker has none for (R9e): nobody waits for one that
  /// never comes.
  void fill_gaps(BucketRun& run, uint64_t below);
  /// All wait for this worker in every step: those that the bucket's next push passes over get an empty contribution.
  /// So do, with a quorum of all, the steps before the first push of a bucket that held up nobody while it was not
  /// pushed.
  bool owes_gaps(const BucketRun& run) const {
    return came_back && !asynchronous() && (waits_for_all() || run.selected == 0);
  }
  /// Those before a push whose step another bucket has chosen.
  void fill_numbered_gaps(TimeNs now, Actions& actions);
  void send_unsent(BucketRun& run, TimeNs now, Actions& actions);
  void send_unsent(PartRun& part, TimeNs now, Actions& actions);
  void make_empty(const PartRun& part, Outstanding& out) const;
  uint64_t number_of(const BucketRun& run) const { return run.selected + run.number_offset; }

  // session_core_asynchronous.cc
  bool asynchronous() const { return config.spec.mode == protocol::Mode::kAsynchronous; }
  /// What a shard calls a contribution: its step, or its number.
  uint64_t named(const Outstanding& out) const { return asynchronous() ? out.sequence : out.step; }
  /// Sent under an earlier life: its fate is waited for, it is not sent again.
  bool of_earlier_life(const Outstanding& out) const { return asynchronous() && out.life != life; }
  /// The part has decided the step: nothing can go into it any more.
  bool is_decided(const PartRun& part, uint64_t step) const { return !asynchronous() && part.n > step; }
  /// Whose random draws those of a step are. Pushes of a process that began anew are numbered from 0 again.
  uint64_t draws_of_worker() const { return asynchronous() ? config.worker + (life << 32) : config.worker; }
  uint64_t take_sequence(PartRun& part) const;
  /// What its sum is divided by; of merged steps the first one's.
  double denominator_of(const protocol::Update& update) const;
  /// Several steps whose sum is what they would do one after the other.
  bool may_be_merged(const protocol::Update& update) const;
  /// This worker's contributions that the update names, in their order.
  struct OwnContribution {
    protocol::ContributorId id;
    uint64_t step = 0;  ///< of the log
  };
  std::vector<OwnContribution> own_contributions(const protocol::Update& update) const;
  /// The last push of which the update names the contribution; empty: none of this worker's.
  std::optional<uint64_t> settle_named(PartRun& part, const protocol::Update& update, const HeldStream& carried,
                                       Actions& actions);
  void settle_sequences(PartRun& part, const protocol::Settle& settle, uint64_t next);
  void restart_sequences(Actions& actions);

  // session_core_snapshots.cc: weights that leave and come
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
  /// To the shards that have let it in, and to those that may yet: their Hello is not answered.
  void say_goodbye(protocol::Goodbye::Reason reason, const std::string& sentence, Actions& actions);
  TimeNs jittered(TimeNs interval);
  void set_phase(Phase next) {
    phase = next;
    ++changes;
  }
  /// No step can be decided without this worker: every member is waited for, and it has been one all the time.
  bool waits_for_all() const { return config.spec.mode == protocol::Mode::kSynchronous; }
  /// Nothing can have been decided without this worker.
  bool is_in_every_step() const { return waits_for_all() && !came_back; }
  bool over() const { return phase == Phase::kFinished || phase == Phase::kEnded; }
  static void log(Actions& actions, Severity severity, std::string text) {
    actions.log.push_back({severity, std::move(text)});
  }
};

inline constexpr uint32_t kAllShards = ~0u;
inline constexpr TimeNs kNever = INT64_MAX;

}  // namespace millrace::worker
