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
#include "protocol/log_digest.h"
#include "worker/core/clip.h"
#include "worker/core/session_core.h"

namespace millrace::worker {

/// O[t]: what was sent into one step of one part, until that step's update.
struct Outstanding {
  uint64_t step = 0;
  uint64_t life = 0;  ///< under which it was sent: the update names it
  HeldStream<float> sent;
  SharedBytes payload;  ///< the bytes that every resend repeats
  uint64_t hash = 0;
  double weight = 1;
  double entered = 0;
  bool on_wire = false;
  bool known = false;  ///< the shard said that it has it: a resend can wait
  uint32_t refusals = 0;
  TimeNs resend_at = 0;
  TimeNs resend_interval = 0;
};

struct PartRun {
  protocol::PartLayout layout;
  size_t at = 0;                                    ///< place among the bucket's parts
  uint64_t n = 0;                                   ///< next step to apply
  uint64_t decided_in = 0;                          ///< epoch of step n - 1's decision
  uint64_t log_digest = protocol::kLogDigestStart;  ///< of the updates of the steps below n
  uint32_t malformed = 0;                           ///< updates of step n that did not decode
  std::deque<Outstanding> outstanding;              ///< by step, ascending
  std::map<uint64_t, protocol::Message> early;      ///< updates of steps after n: the one of n is still missing
  TimeNs ask_at = 0;                                ///< not asked for it again before
};

struct BucketRun {
  std::unique_ptr<Bucket> bucket;
  int32_t priority = 0;
  uint32_t first_part = 0;
  uint32_t part_count = 0;
  // What callers push is numbered one after the other; which step of the job a push goes into is chosen when it is selected. In
  // mode synchronous the two are one number; where steps are decided without this worker it goes into the next that is open.
  uint64_t pushed = 0;  ///< all slots committed
  uint64_t selected = 0;
  uint64_t coded = 0;
  uint64_t answered = 0;       ///< pushes whose steps are below steps_applied
  std::deque<uint64_t> steps;  ///< of the pushes [answered, selected), ascending
  uint64_t coding = 0;         ///< the step of the last push selected
  uint64_t steps_applied = 0;  ///< least n over its parts
  uint32_t parts_behind = 0;   ///< parts whose n is steps_applied
  TimeNs moved_at = 0;         ///< when steps_applied grew, or the first push since came
  size_t committed_slots = 0;
  std::vector<uint32_t> order;  ///< parts in the order of coding: the shards take turns
  size_t next_in_order = 0;
  std::deque<std::pair<uint64_t, TimeNs>> sent_since;  ///< (step, when its first part went out)
  std::vector<double> applied;                         ///< LedgerMode::kPerIndex
};

struct TensorRun {
  uint32_t bucket = 0;
  uint32_t member = 0;
  uint64_t pushed = 0;
  bool committed = false;  ///< for the push that the bucket is collecting
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
  std::string last_trouble;  ///< why the last attempt failed, or what the shard's Refuse said
  ErrorCode trouble_code = ErrorCode::kUnavailable;
  TimeNs last_heard = 0;
  TimeNs next_heartbeat = 0;
  uint64_t heartbeats = 0;
  size_t next_digest = 0;  ///< where the next heartbeat's digests begin, among all parts
  uint64_t message_bytes_max = 0;
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
  std::vector<Link> links;

  /// The steps that pushes go into, alike for all buckets, by push from first_numbered on; and how many buckets have yet to
  /// select theirs.
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
  uint64_t changes = 0;

  // core_links.cc
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
  std::string waiting_for() const;
  std::string shard_text(uint32_t shard) const;

  // core_messages.cc
  void on_message(uint32_t shard, protocol::Message&& message, TimeNs now, Actions& actions);
  bool header_fits(uint32_t shard, const protocol::Header& header, TimeNs now, Actions& actions);
  void on_welcome(uint32_t shard, const protocol::Header& header, const protocol::Welcome& welcome, TimeNs now,
                  Actions& actions);
  void on_refuse(uint32_t shard, const protocol::Refuse& refuse, TimeNs now, Actions& actions);
  void on_refused_contribution(uint32_t shard, const protocol::Refuse& refuse, TimeNs now, Actions& actions);
  void on_duplicate(uint32_t shard, const protocol::Duplicate& duplicate);
  void on_settled(uint32_t shard, const protocol::Settled& settled, TimeNs now, Actions& actions);
  /// False: the session ended over it.
  bool adopt_view(uint32_t shard, const protocol::JobView& next, TimeNs now, Actions& actions);
  bool shards_agree(uint32_t shard, const protocol::JobView& next, TimeNs now, Actions& actions);
  bool find_myself(uint32_t shard, TimeNs now, Actions& actions);
  void begin_when_all_joined(Actions& actions);

  // core_rounds.cc
  bool work(TimeNs now, Actions& actions);
  bool has_work(TimeNs now) const {
    return (phase == Phase::kRunning || phase == Phase::kFinishing) && next_ready(now).has_value();
  }
  /// The bucket of the highest priority with something to select or to code, and that may go on.
  std::optional<uint32_t> next_ready(TimeNs now) const;
  /// The step that the bucket's next push goes into; empty: it is not near enough yet, or clipping waits for other tensors.
  std::optional<uint64_t> step_for_push(const BucketRun& run, TimeNs now) const;
  uint64_t steps_applied_by_all(uint64_t push) const;
  void number(uint64_t push, uint64_t step);
  void select_for(BucketRun& run, uint64_t step, Actions& actions);
  void answer_pushes(BucketRun& run);
  void code_next(uint32_t bucket, TimeNs now, Actions& actions);
  void part_is_coded(uint32_t bucket);
  void send_contribution(PartRun& part, Outstanding& out, TimeNs now, Actions& actions);
  /// Sends what is in flight again: to one shard, or (kAllShards) to all.
  void resend_outstanding(uint32_t shard, TimeNs now, Actions& actions);
  void resend_due(TimeNs now, Actions& actions);
  /// The update of the part's next step has been decided and did not come: its contribution is sent again, which brings it, or
  /// where there is none the update is asked for.
  void ask_again(PartRun& part, TimeNs now);
  void on_heartbeat(uint32_t shard, const protocol::Heartbeat& heartbeat, TimeNs now);
  void keep_early(PartRun& part, uint64_t step, protocol::Message&& message, TimeNs now);
  void on_update(uint32_t shard, protocol::Message&& message, TimeNs now, Actions& actions);
  void apply_update(PartRun& part, const protocol::Update& update, HeldStream<float>&& held, TimeNs now,
                    Actions& actions);
  bool settle(PartRun& part, const protocol::Update& update, const HeldStream<float>& carried);
  void step_applied(BucketRun& run, TimeNs now);
  void malformed_update(uint32_t shard, PartRun& part, const std::string& why, TimeNs now, Actions& actions);
  void replay_held(TimeNs now, Actions& actions);
  Outstanding* find_outstanding(uint32_t shard, uint32_t part, uint64_t step);
  void end_turn(TimeNs now, Actions& actions);
  void leave_when_done(TimeNs now, Actions& actions);

  // core_clip.cc
  /// A sentence about the tensor that clipping waits for; empty where it waits for none.
  std::string clip_waits_for() const;

  // session_core.cc
  void send(uint32_t shard, protocol::Body&& body, SharedBytes payload, Actions& actions);
  void end_session(Error why, TimeNs now, Actions& actions);
  void say_goodbye(protocol::Goodbye::Reason reason, const std::string& sentence, Actions& actions);
  TimeNs jittered(TimeNs interval);
  void set_phase(Phase next) {
    phase = next;
    ++changes;
  }
  bool waits_for_all() const { return config.spec.mode == protocol::Mode::kSynchronous; }
  bool over() const { return phase == Phase::kFinished || phase == Phase::kEnded; }
  static void log(Actions& actions, Severity severity, std::string text) {
    actions.log.push_back({severity, std::move(text)});
  }
};

inline constexpr uint32_t kAllShards = ~0u;
inline constexpr TimeNs kNever = INT64_MAX;

}  // namespace millrace::worker
