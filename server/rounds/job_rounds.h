#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/clock.h"
#include "protocol/job/job_spec.h"
#include "protocol/job/layout.h"
#include "protocol/messages/messages.h"
#include "server/aggregation/bucket_threshold.h"
#include "server/aggregation/step_threshold.h"
#include "server/base/actions.h"
#include "server/base/limits.h"
#include "server/base/memory_account.h"
#include "server/membership/members.h"
#include "server/part/part_round.h"
#include "server/rounds/digest_watch.h"
#include "server/rounds/job_audit.h"
#include "server/rounds/update_delivery.h"
#include "server/status/refusal_log.h"
#include "server/status/wait.h"
#include "server/store/job_store.h"

namespace millrace::server {

/// Answers how much memory a job may still take. The shard implements it, since it sees all jobs.
class MemoryGate {
 public:
  virtual ~MemoryGate() = default;
  /// Returns why `bytes` more are refused for this job, naming the limit and the flag. Empty: they are allowed.
  virtual std::optional<Error> refuses(const MemoryAccount& job, uint64_t bytes) const = 0;
};

/// Returns about the memory of a job's records on a shard once all its workers have joined. Each part has one, and each
/// worker at each part. A small job has 0.
uint64_t record_bytes(const protocol::JobSpec& spec, const protocol::JobLayout& layout, uint32_t shard);

/// Holds the rounds of one job on one shard: its parts, the thresholds of its buckets, and the tasks between them.
/// Pure: it takes messages and finished tasks, and gives messages and tasks.
class JobRounds {
 public:
  /// Says which steps take contributions: all open steps, or, while the shard drains, only those that have some
  /// already.
  enum class Intake : uint8_t { kOpen, kDraining };

  struct Setup {
    const protocol::JobSpec& spec;  ///< all that are referred to outlive this
    const protocol::JobLayout& layout;
    const Members& members;
    const MemoryGate& gate;
    const Limits& limits;
    MemoryAccount& shard_memory;
    RefusalLog& refusals;
    uint32_t shard = 0;
    uint32_t shard_count = 1;
    CodecCosts codec_costs = {};
  };

  explicit JobRounds(Setup setup);

  /// Refuses a contribution of a job of path switch: datagrams carry contributions, none is taken from a message.
  void refuse_by_path(const protocol::Member& from, const protocol::Contribution& body, TimeNs now,
                      Actions& actions) const;
  /// R2: Handles a contribution of a member under its present incarnation. That of a joiner is dropped: the worker
  /// sends it again once it is synced.
  void on_contribution(const protocol::Member& from, const protocol::Contribution& body, SharedBytes payload,
                       Intake intake, TimeNs now, Actions& actions);
  /// R5: Takes acknowledgements, part by part.
  void on_ack(const protocol::Member& from, const protocol::Ack& body, TimeNs now, Actions& actions);
  /// R5: Handles acks of all parts: every part of the worker has applied the steps below n.
  void on_steps_applied(const protocol::Member& from, uint64_t n, TimeNs now, Actions& actions);
  /// Compares the steps that a member reports as applied with the steps decided here.
  void on_digests(const protocol::Member& from, std::span<const protocol::Heartbeat::Digest> digests, TimeNs now,
                  Actions& actions);
  const DigestWatch& digest_watch() const { return digest_watch_; }
  /// Handles that a member pushes nothing more: the steps no longer block on it.
  void on_finishing(TimeNs now, Actions& actions);
  void on_histogram(uint32_t shard, const protocol::ThresholdHistogram& body, const SharedBytes& payload, TimeNs now,
                    Actions& actions);
  void on_task_done(Task& task, TimeNs now, Actions& actions);
  /// R7a: Handles a new membership in `members`; `before` are the members of the one before. Retained updates that a
  /// member has not acknowledged are sent again, in the new epoch.
  void on_membership(const std::vector<protocol::Member>& before, TimeNs now, Actions& actions);
  void on_tick(TimeNs now, Actions& actions);
  std::optional<TimeNs> deadline() const;

  // job_rounds_restore.cc: shards that recover and workers that rejoin
  // R8, R10e: Forgets all admitted and decided steps. Only the state given to restore() continues.
  void drop();
  /// R8e: Serves again, as the activation of that log branch. parts: this shard's, ascending. on_membership() notifies
  /// the members. REQUIRES: drop() before, or nothing was ever decided.
  void restore(std::vector<PartRound::Restored> parts, uint64_t branch, TimeNs now);
  /// R8e: Records the steps that the member reported as applied; after restore().
  void restore_acknowledged(uint32_t worker, const protocol::State& state);
  uint64_t branch() const { return branch_; }
  const std::vector<PartRound>& parts() const { return parts_; }
  /// Returns a part. REQUIRES: it is of this shard.
  const PartRound& part(uint32_t number) const { return parts_.at(local_at_.at(number)); }
  /// R9: Lets a joining member continue with the part, in this epoch.
  void settle(uint32_t number, uint32_t worker);
  /// R9e: Returns whether the joiner is settled with every part of this shard.
  bool is_settled(uint32_t worker) const;
  /// Sends the retained updates of the steps [from, below).
  void serve_between(const protocol::Member& to, const PartRound& part, uint64_t from, uint64_t below,
                     Actions& actions) const;
  /// R6a: Returns the members whose missing acknowledgements have held back decisions for dead_after_ms, for lack of
  /// memory. Empty where no other synced member is further. Restarts the count.
  std::vector<protocol::Member> behind(TimeNs now);
  /// Extends the deadlines by a time in which this process itself did not run.
  void extend_deadlines(TimeNs paused);
  MemoryAccount& retained_account() { return retained_account_; }

  /// Returns why the job cannot continue: a sum or an update could not be made, or memory does not suffice.
  const std::optional<Error>& failure() const { return failure_; }
  /// Records that work on this job broke off for lack of memory: its rounds may be half changed. Takes no memory
  /// itself.
  void on_out_of_memory() noexcept;

  bool idle() const;  ///< nothing is open
  /// Sends the decided steps that wait to be merged for a member now, step by step.
  void send_rest(Actions& actions);
  uint64_t steps_decided() const;
  /// Returns the least number over the parts of steps decided, or in mode asynchronous of steps sent to the worker.
  uint64_t steps_sent(uint32_t worker) const;
  uint64_t steps_decided_max() const;
  uint64_t steps_applied(uint32_t worker) const;
  /// Returns parts that have decided more than `least` steps and more than the worker has acknowledged, at most as many
  /// as a heartbeat holds.
  std::vector<protocol::Ack::Entry> unacknowledged(uint32_t worker, uint64_t least) const;
  /// The contributions that were taken of a worker's present incarnation since this shard opened the job.
  struct Received {
    uint64_t incarnation = 0;
    uint64_t contribution_bytes = 0;
    uint64_t dense_bytes = 0;  ///< of the same steps as plain f32 of every index
  };
  Received received_of(const protocol::Member& member) const;
  uint64_t retained_bytes() const { return retained_account_.used_bytes(); }
  uint64_t retained_updates() const;
  const MemoryAccount& account() const { return account_; }
  /// Returns the reason why the job waits (job_rounds_waits.cc).
  std::optional<Waiting> waiting() const;
  /// Returns how parts are coded on their way down, of jobs that leave it to this shard; at most `count_max` of them.
  std::vector<CodecStatus> codecs(size_t count_max) const;
  /// Returns the audit. Empty: the job does not ask for it.
  std::optional<AuditStatus> audit() const { return audit_ ? std::optional(audit_->status(parts_)) : std::nullopt; }
  /// Returns when a step was decided last; 0: none yet.
  TimeNs decided_at() const;

  /// Returns the weights of a job that has a store; nullptr: it has none.
  JobStore* store() { return store_.get(); }
  const JobStore* store() const { return store_.get(); }
  /// Handles progress of the store: steps may be decided.
  void on_store_moved(TimeNs now, Actions& actions);
  void on_store_written(const Status& written, TimeNs now, Actions& actions);
  /// Gives the store away for its last save, which outlives the job.
  std::unique_ptr<JobStore> take_store() { return std::move(store_); }

 private:
  struct Bucket {
    const protocol::BucketLayout* layout = nullptr;
    size_t first = 0;  ///< of its parts in parts_
    size_t count = 0;
    uint64_t decided = 0;                        ///< by all of its local parts
    std::unique_ptr<BucketThreshold> threshold;  ///< where sums are cut
    std::unique_ptr<StepThreshold> steps;        ///< in its place, in reproducible jobs
    bool selects_from_sum() const { return threshold != nullptr || steps != nullptr; }
  };
  /// The refused contribution since which those that a step needs find no memory: none is taken, nothing is decided.
  struct Starved {
    TimeNs since = 0;
    uint32_t worker = 0;
    uint64_t incarnation = 0;
    std::string because = {};  ///< the sentence of that worker's last such refusal
    WaitingStep at = {};       ///< of its contribution
  };
  /// About as many bytes as may wait for one worker (PortGuard): more updates at once would be dropped. The next ack,
  /// or the next request, brings the rest.
  static constexpr uint64_t kServedBytesMax = uint64_t{256} << 20;

  PartRound* local_part(uint32_t part);
  const PartRound* oldest_open() const;
  void wait_of_attempt(const PartRound& part, Waiting& waiting) const;
  void wait_of_collecting(const PartRound& part, Waiting& waiting) const;
  void make_threshold(Bucket& bucket);
  Bucket& bucket_of(const PartRound& part) { return buckets_.at(bucket_at_.at(part.layout().bucket)); }
  const Bucket& bucket_of(const PartRound& part) const { return buckets_.at(bucket_at_.at(part.layout().bucket)); }
  size_t index_in(const Bucket& bucket, const PartRound& part) const;
  void count(Metric metric, std::string_view label, double value, Actions& actions) const;
  void refuse(const protocol::Member& to, protocol::Refuse refusal, TimeNs now, Actions& actions) const;
  void answer_decided(const protocol::Member& to, const PartRound& part, const protocol::Contribution& body,
                      Actions& actions) const;
  std::optional<Error> admission_error(const protocol::Member& from, const PartRound& part,
                                       const protocol::Contribution& body, const SharedBytes& payload, Intake intake,
                                       TimeNs now);
  std::string_view what_step_is() const {
    return setup_.spec.mode == protocol::Mode::kAsynchronous ? "contribution" : "step";
  }
  const CodecSpec& codec_up_of(const PartRound& part) const {
    return setup_.layout.buckets[part.layout().bucket].codec_up;
  }
  void admit(const protocol::Member& from, PartRound& part, const protocol::Contribution& body, SharedBytes payload,
             TimeNs now, Actions& actions);
  void serve(const protocol::Member& to, const PartRound& part, const PartRound::RetainedUpdate& kept,
             Actions& actions) const;
  /// Sends the updates that members have not acknowledged, in the present epoch. A member that has just become synced
  /// asks for those that it lacks.
  void serve_all(std::span<const protocol::Member> before, Actions& actions);
  /// Sends the retained updates of the steps from `step` on, as far as there is room; takes it from `room`.
  void serve_from(const protocol::Member& to, PartRound& part, uint64_t step, uint64_t& room, Actions& actions);
  /// Returns below which step the retained updates of [from, below) may be sent at once; takes their bytes from `room`.
  static uint64_t served_below(const PartRound& part, uint64_t from, uint64_t below, uint64_t& room);

  // job_rounds_delivery.cc: mode asynchronous
  bool asynchronous() const { return setup_.spec.mode == protocol::Mode::kAsynchronous; }
  Delivery& delivery_of(const PartRound& part);
  const Delivery& delivery_of(const PartRound& part) const;
  Delivery::Pace pace(const PartRound& part, const protocol::Member& to) const;
  /// Sends the updates that the member may receive now.
  void deliver(const protocol::Member& to, PartRound& part, Actions& actions) {
    uint64_t room = kServedBytesMax;
    deliver(to, part, room, actions);
  }
  /// Sends those of them that there is room for; takes it from `room`.
  void deliver(const protocol::Member& to, PartRound& part, uint64_t& room, Actions& actions);
  void deliver_at(Delivery::Pace how, const protocol::Member& to, PartRound& part, uint64_t& room, Actions& actions);
  /// Shortens `steps` where they would be too many for one sum; returns the bytes that their payloads decode to.
  static uint64_t limit_merged(const PartRound& part, Delivery::Steps& steps);
  void begin_merge(const protocol::Member& to, PartRound& part, Delivery::Steps steps, uint64_t decoded_bytes,
                   Actions& actions);
  void on_merged(const MergeTask& task, Actions& actions);
  void serve_merged(const protocol::Member& to, const PartRound& part, Delivery::Steps steps,
                    const SharedBytes& payload, Actions& actions) const;
  /// Records that the member has the steps below n: more can follow.
  void acknowledged(const protocol::Member& from, PartRound& part, uint64_t n, Actions& actions);
  void deliver_anew(std::span<const protocol::Member> before, Actions& actions);
  /// Returns the steps that the worker has, or that are on their way to it.
  uint64_t sent_to(uint32_t worker, const PartRound& part) const {
    return asynchronous() ? std::min(part.decided(), delivery_of(part).sent_to(worker)) : part.decided();
  }

  // job_rounds_replication.cc: updates that wait for k acknowledgements
  bool applies_after_acks() const { return protocol::applies_after_acks(setup_.spec); }
  /// Says whether an ack adds steps. A repeated ack means that our last answer for the part may have been lost.
  enum class AckKind : uint8_t { kNew, kRepeated };
  void advance_replicated(const protocol::Member& from, const std::map<PartRound*, AckKind>& acks, Actions& actions);
  void advance_all_replicated(Actions& actions);
  void announce_replicated(std::span<const PartRound* const> parts, std::span<const protocol::Member> to,
                           Actions& actions) const;
  const PartRound* least_replicated() const;
  void wait_of_replication(const PartRound& part, Waiting& waiting) const;

  void advance(PartRound& part, TimeNs now, Actions& actions);
  void advance_all(TimeNs now, Actions& actions);
  void on_decoded(DecodeTask& task, TimeNs now, Actions& actions);
  void on_reduced(ReduceTask& task, TimeNs now, Actions& actions);
  void on_quota(const QuotaTask& task, Actions& actions);
  void on_encoded(const EncodeTask& task, TimeNs now, Actions& actions);
  void on_stored(const StoreTask& task, TimeNs now, Actions& actions);
  /// R8d, R17e: Recovers the store. After restore() and the membership that activates it, and when a save was read.
  void recover_store(Actions& actions);
  /// Makes parts retain the updates that the store's last save lacks.
  void retain_for_store();
  /// Reports the acknowledged and the forgotten steps to the store: a save counts once all members have acknowledged
  /// its steps.
  void tell_store(Actions& actions);
  void forget_stored();
  void announce_retained(const PartRound& part, Actions& actions);
  /// Calls announce_retained() where no step is decided: retained updates may block all decisions, and no other event
  /// asks for a save.
  void check_retained(Actions& actions);
  const PartRound* longest_retained() const;
  /// Returns the job's memory that is left for the rounds.
  uint64_t memory_for_rounds() const;
  std::optional<FusedThreshold> fused_threshold(const PartRound& part);
  void reduce(PartRound& part, std::optional<FusedThreshold> quick, Actions& actions);
  void on_quick(PartRound& part, const ReduceTask::Output& output, TimeNs now, Actions& actions);
  void after_sum(PartRound& part, TimeNs now, Actions& actions);

  // job_rounds_reproducible.cc: reproducible jobs that re-select
  bool lacks_counts(const PartRound& part) const;
  /// Counts the entries that the part decided in `step`; steps that waited for the count continue.
  void count_step(PartRound& part, uint64_t step, SharedHistogram histogram, TimeNs now, Actions& actions);
  void on_step_histogram(Bucket& bucket, uint32_t shard, uint64_t step, SharedHistogram histogram, TimeNs now,
                         Actions& actions);
  void repeat_histograms(TimeNs now, Actions& actions);
  void say_histogram(const Bucket& bucket, uint64_t step, const MagnitudeHistogram& own, std::span<const uint32_t> to,
                     Actions& actions) const;
  void advance_bucket(const Bucket& bucket, TimeNs now, Actions& actions);

  void share_histogram(const Bucket& bucket, uint64_t step, const MagnitudeHistogram& own, Actions& actions) const;
  void agree_on_threshold(Bucket& bucket, uint64_t step, Actions& actions);
  void split_quota(Bucket& bucket, std::span<PartRound* const> waiting, BucketThreshold::LocalThreshold cut,
                   Actions& actions);
  void encode(PartRound& part, PartThreshold cut, Actions& actions);
  void encode_by(PartRound& part, EncodePlan plan, Actions& actions);
  EncodePlan plan_for(const PartRound& part) const;
  std::vector<PartRound*> waiting_parts(const Bucket& bucket, uint64_t step);
  void finish(PartRound& part, EncodedUpdate update, TimeNs now, Actions& actions);
  /// Warns once where an update is too large for its way back to a shard that restarts.
  void check_size(const PartRound& part, uint64_t update_bytes, Actions& actions);
  void note_choice(const PartRound& part, CodecChooser chooser, Actions& actions);
  const CodecChooser& chooser_of(const PartRound& part) const {
    return choosers_[static_cast<size_t>(&part - parts_.data())];
  }
  bool is_blocked_on_memory() const;
  /// Returns the workers that still take over the initial weights: the part's first step is blocked on them.
  std::vector<uint32_t> initializing_members(const PartRound& part) const;
  RoundKey key_of(const PartRound& part) const;

  Setup setup_;
  MemoryAccount account_;
  MemoryAccount retained_account_;
  MemoryCharge fixed_charge_;  ///< histories and records
  MemoryCharge epochs_charge_;
  std::unique_ptr<JobStore> store_;
  std::vector<PartRound> parts_;           ///< this shard's, ascending by number
  std::vector<CodecChooser> choosers_;     ///< by part, of automatic codecs
  std::vector<Delivery> deliveries_;       ///< by part, in mode asynchronous
  std::map<uint32_t, Received> received_;  ///< by worker
  std::vector<uint32_t> local_at_;         ///< by part number: index in parts_, or kNowhere
  std::vector<Bucket> buckets_;            ///< with parts on this shard
  std::vector<uint32_t> bucket_at_;        ///< by bucket number: index in buckets_, or kNowhere
  DigestWatch digest_watch_;
  std::optional<JobAudit> audit_;  ///< of a job that asks for it
  uint64_t next_token_ = 1;
  std::optional<TimeNs>
      next_due_;  ///< the first deadline of a step that has its quorum; a passed one is looked at again
  bool blocked_on_memory_ = false;  ///< a decision waits for acknowledgements to free memory
  std::optional<TimeNs> blocked_since_;
  bool goes_on_ = true;  ///< false from drop() to restore()
  bool has_large_update_ = false;
  uint64_t branch_ = 0;  ///< log branch of the activation that this shard serves under.
  std::optional<Starved> starved_;
  std::optional<Error> failure_;
  Error no_memory_{ErrorCode::kLimitExceeded, kNotRun};  ///< made while there was some
};

}  // namespace millrace::server
