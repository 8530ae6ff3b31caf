#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kernels/base/clock.h"
#include "monitoring/status/shard_status.h"
#include "protocol/messages/messages.h"
#include "protocol/messages/peer_id.h"
#include "protocol/table/membership_table.h"
#include "server/base/actions.h"
#include "server/base/join_request.h"
#include "server/base/limits.h"
#include "server/base/memory_account.h"
#include "server/membership/membership_changes.h"
#include "server/shard/job.h"
#include "server/status/refusal_log.h"

namespace millrace::server {

struct ShardConfig {
  uint32_t shard = 0;
  uint32_t shard_count = 1;
  uint64_t incarnation = 0;  ///< from MembershipTable::start_shard
  std::string software = "millrace";
  Limits limits;
  JobStore::Saves saves = {};  ///< of the stores of jobs: whether there is a place for them
  CodecCosts codec_costs = {};
  /// Shard 0, where it has an aggregator of datagrams.
  struct Datagrams {
    /// Returns whether the aggregator can replace this job's switch: it has the key and room. Empty: there is no
    /// aggregator.
    std::function<Status(const protocol::JobSpec&, const protocol::SwitchLayout&)> judge = {};
  };
  Datagrams datagrams = {};
  /// Returns whether the process can serve another worker. Empty: always.
  std::function<Status(TimeNs now)> room_for_worker = {};
  /// Returns whether the other end closed this connection some time ago. A live process, whose connection the network
  /// broke, has opened another one by then. Empty: the transport does not say it.
  std::function<bool(const protocol::PeerId&)> is_closed = {};
  Rights rights = {};
  /// Returns the bytes that wait to be sent to the peer. Empty: the transport does not say it.
  Members::QueuedBytes queued_bytes = {};
};

/// Holds one shard: its jobs, its limits, and the identities of its peers.
///
/// A state machine: (state, message, now) -> actions; it has no socket, clock or thread. The one effect inside is the
/// membership table, which the core reads and swaps synchronously. The table is the sole judge of membership, and a
/// decision that waited for it would need a state of its own. Errors of the table are logged, counted and tried again.
///
/// Actions   every method appends to `actions`; the caller carries them out in order after the method has returned.
/// Time      `now` never decreases. Nothing happens by itself: call on_tick() at next_deadline(), or earlier.
/// Hostile   any message from any peer in any order: it is admitted, answered or dropped, and counted; it never
///           corrupts a round.
/// Memory    std::bad_alloc stays inside. The work under way is dropped and counted as "out_of_memory". A job whose
///           rounds were being changed ends with limit_exceeded, at once or at the next tick. The other jobs continue.
/// Threads   one at a time (the loop's). Tasks run anywhere.
class ShardCore {
 public:
  /// REQUIRES: start_shard() of this table gave config.incarnation; `table` outlives the core.
  ShardCore(ShardConfig config, protocol::MembershipTable& table, TimeNs now);
  ~ShardCore();
  ShardCore(const ShardCore&) = delete;
  ShardCore& operator=(const ShardCore&) = delete;

  /// Handles a message from a connection that a worker or another shard opened to this one.
  void on_message(const protocol::PeerId& from, protocol::Message message, TimeNs now, Actions& actions);

  /// Handles that bytes of an unfinished message came from a connection: its worker is not silent.
  void on_arriving(const protocol::PeerId& from, uint64_t bytes, TimeNs now);

  /// Handles that the connection to another shard was made again after it broke. The driver of a transport that loses
  /// connections calls it.
  void on_shard_reconnected(uint32_t shard, TimeNs now, Actions& actions);

  /// Handles a message from the connection that this shard opened to shard `shard` (ConnectShard): a Refuse.
  void on_shard_reply(uint32_t shard, const protocol::Message& message, TimeNs now, Actions& actions);

  /// Counts a message that the transport could not decode; it is never answered.
  void on_malformed(const Error& error, TimeNs now, Actions& actions);

  /// Handles a task of an earlier Actions::tasks whose run() has returned.
  void on_task_done(const std::shared_ptr<Task>& task, TimeNs now, Actions& actions);

  /// Handles the result of a StoreRequest of an earlier Actions::store_requests.
  void on_store_written(uint64_t number, const Status& written, TimeNs now, Actions& actions);
  void on_store_loaded(uint64_t number, Result<StoreFile> loaded, TimeNs now, Actions& actions);

  /// Returns the weights of an open job, for observers; nullptr: there are none.
  const JobStore* store(uint64_t number) const;
  /// Saves the stores of all jobs now, at the request of an administrator.
  void save_stores(TimeNs now, Actions& actions);

  /// Handles deadlines: silent members, silent shards, the table's change counter, the end of draining.
  void on_tick(TimeNs now, Actions& actions);

  /// Returns the latest time at which on_tick() must be called.
  TimeNs next_deadline() const;

  /// Leaves the number to a spare that waits, as after an operator's drain, where the core has jobs without a store.
  /// Otherwise, once no spare waits any more, or after half of limits.drain_ms, it stops admitting new jobs and steps.
  /// Rounds in flight may finish for the rest of limits.drain_ms.
  ///
  /// Then the core ends the jobs in the table and sends every member Goodbye(kShutdown), and stopped() holds. A table
  /// that cannot be written is tried again until the end of drain_ms, for a second at least. The core logs each job
  /// whose end it could not write.
  void begin_shutdown(TimeNs now, Actions& actions);

  /// Returns whether all work is over: the process may exit once its sends are flushed.
  bool stopped() const { return stopped_; }

  /// Returns why it stops by itself: another process has started under this shard's number, or the table is not the one
  /// that it began with. Empty after an orderly shutdown, and where this process had left its number to a spare.
  const std::optional<Error>& failure() const { return failure_; }

  StatusReport status(TimeNs now) const;

  /// Returns whether a Hello or ShardHello of this connection holds.
  bool has_session(const protocol::PeerId& peer) const;
  /// Ends the sessions of workers' connections that `is_over` says, and sends them a Refuse with the reason. Their
  /// workers stay members until they count as dead.
  void end_sessions(const std::function<bool(const protocol::PeerId&)>& is_over, const Error& why, TimeNs now,
                    Actions& actions);

 private:
  struct Session {
    uint64_t job = 0;
    uint32_t worker = 0;
    uint64_t incarnation = 0;
    bool is_of(const Session& other) const {
      return job == other.job && worker == other.worker && incarnation == other.incarnation;
    }
  };
  /// Another shard, as the table and its ShardHello describe it.
  struct Neighbour {
    protocol::ShardEntry entry;            ///< of the table, as last read
    std::optional<protocol::PeerId> peer;  ///< sent ShardHello in this incarnation
    std::optional<TimeNs> hello_at;        ///< from then on, this shard must send it a ShardHello
  };
  /// A job that is open in the table and cannot continue here: it is ended in the table once its workers count as dead.
  struct LostJob {
    enum class LostJobAction : uint8_t {
      kOver,  ///< the job has ended here, and the table could not be written.
      /// A row from before this start, or one that no worker joined: its workers may still connect.
      kUnlessReopened,
    };
    std::string name;
    TimeNs since = 0;
    uint32_t silent_ms_max = 0;
    LostJobAction action = LostJobAction::kOver;
    Error why;  ///< of its end

    TimeNs due_at() const { return since + TimeNs{silent_ms_max} * kNsPerMs; }
    bool due(TimeNs now) const { return now >= due_at(); }
  };
  /// Holds the end of a job, for the status report.
  struct Ended {
    std::string name;
    uint64_t job = 0;
    std::string how;
    std::string sentence;
    TimeNs at = 0;
  };
  static constexpr size_t kEndedMax = 16;
  /// Failures of the table less than kTroubleOver apart.
  struct TableTrouble {
    Error error;
    uint64_t count = 0;
    TimeNs first = 0;
    TimeNs last = 0;
  };
  static constexpr TimeNs kTroubleOver = 10 * kNsPerS;
  /// A member that leaves a job.
  struct Leaver {
    uint64_t job = 0;
    protocol::Member member;
    Leaving leaving = Leaving::kFinished;
    std::vector<protocol::LogReach> reach = {};  ///< R10f: Goodbye::reach
  };
  /// A Hello that is admitted, with its job and member; or the message that the members of its ended job got.
  struct Admitted {
    Job* job = nullptr;
    protocol::Member member = {};
    std::optional<protocol::Abort> ended = {};
  };
  class Gate;

  // shard_core.cc: the sender of a message, and its treatment
  /// Runs `work`; false: it broke off. job: whose rounds it changes, and which therefore cannot go on when that
  /// happens.
  template <typename Work>
  bool catch_out_of_memory(std::optional<uint64_t> job, Actions& actions, const Work& work) {
    try {
      work();
      return true;
    } catch (const std::bad_alloc&) {     // NOLINT(bugprone-empty-catch): below, when the memory is free again
    } catch (const std::length_error&) {  // NOLINT(bugprone-empty-catch)
    }
    on_out_of_memory(job, actions);
    return false;
  }
  void on_out_of_memory(std::optional<uint64_t> number, Actions& actions) noexcept;
  void handle_message(const protocol::PeerId& from, protocol::Message message, TimeNs now, Actions& actions);
  Job* find_job(uint64_t job);
  void count(Metric metric, std::string_view label, Actions& actions) const;
  void log(Severity severity, std::string text, Actions& actions) const;
  void reply(const protocol::PeerId& to, const protocol::Header& about, protocol::Body body, Actions& actions) const;
  void on_worker_message(const protocol::PeerId& from, protocol::Message message, TimeNs now, Actions& actions);
  void on_member_message(const protocol::PeerId& from, Job& job, const protocol::Member& member,
                         protocol::Message message, TimeNs now, Actions& actions);
  /// Fills in the worker that the connection's Hello admitted. False: there is none.
  bool name_by_session(const protocol::PeerId& from, protocol::Header& header) const;
  bool fits_session(const protocol::PeerId& from, const protocol::Header& header, Actions& actions);
  bool may_be_reach(std::span<const protocol::LogReach> reach, const Job& job) const;
  void on_goodbye(Job& job, const protocol::Member& member, const protocol::Goodbye& goodbye, TimeNs now,
                  Actions& actions);
  void on_synced(Job& job, const protocol::Member& member, TimeNs now, Actions& actions);
  void on_histogram(const protocol::PeerId& from, const protocol::Message& message, TimeNs now, Actions& actions);

  // shard_core_store.cc: the stores of jobs
  void on_pull(Job& job, const protocol::Member& member, protocol::Message message, Actions& actions);
  /// job_bytes_max  the memory that the job may use
  Status judge_store(const protocol::JobSpec& spec, const protocol::JobLayout& layout, uint64_t job_bytes_max) const;
  uint64_t array_bytes(const protocol::JobSpec& spec, const protocol::JobLayout& layout) const;
  uint64_t job_bytes_max_of(const std::string& key_name, const std::string& job) const;
  void end_store(Job& job, Actions& actions);
  JobStore* ending_store(uint64_t job);
  void on_last_task_done(const StoreTask& task, Actions& actions);
  void forget_ended_store(uint64_t job, Actions& actions);
  void give_up_save(uint64_t job, const JobStore& store, Actions& actions) const;
  void retry_last_saves(TimeNs now, Actions& actions);
  void give_up_last_saves(Actions& actions);
  uint64_t bytes_of_ending_stores() const;

  // shard_core_refusals.cc: answers to Hellos that are not admitted
  void refuse_hello(const protocol::PeerId& from, const protocol::Header& header, const protocol::Hello& hello,
                    const Error& why, TimeNs now, Actions& actions);
  void turn_away(const protocol::PeerId& from, const protocol::Header& header, const protocol::Hello& hello,
                 protocol::Body answer, TimeNs now, Actions& actions);
  Result<Admitted> end_or_refusal(uint64_t number, const std::string& name, const Error& refusal);

  // shard_core_hello.cc: admission of workers and of other shards
  void on_hello(const protocol::PeerId& from, const protocol::Header& header, const protocol::Hello& hello, TimeNs now,
                Actions& actions);
  Status judge_hello(const protocol::Header& header, const protocol::Hello& hello) const;
  Status judge_spec(const protocol::JobSpec& spec) const;
  Status judge_datagrams(const protocol::JobSpec& spec, const protocol::JobLayout& layout) const;
  enum class JobKnown : uint8_t { kYes, kNo };
  Status judge_rights(const protocol::PeerId& from, const protocol::Header& header, const protocol::Hello& hello,
                      JobKnown known);
  Result<Admitted> admit(const protocol::PeerId& from, const protocol::Header& header, const protocol::Hello& hello,
                         TimeNs now, Actions& actions);
  Result<Job*> admit_newcomer(const protocol::PeerId& from, const protocol::Header& header,
                              const protocol::Hello& hello, TimeNs now, Actions& actions);
  Result<Job*> admit_by_table(const protocol::PeerId& from, const protocol::Header& header,
                              const protocol::Hello& hello, TimeNs now, Actions& actions);
  Status judge_opening(const std::string& key_name, const std::string& job) const;
  std::string name_of_key(const protocol::PeerId& peer) const;
  Job* open_job(const std::string& key_name, uint64_t number, const protocol::JobSpec& spec, protocol::JobLayout layout,
                Actions& actions);
  Result<protocol::JobRecord> open_record(const protocol::PeerId& from, const protocol::Header& header,
                                          const protocol::Hello& hello, const protocol::JobLayout& layout);
  /// Returns the record after the join, or after this shard has taken over a job that refused the join: `refused` then
  /// has the reason.
  Result<protocol::JobRecord> join_job(const protocol::PeerId& from, const protocol::JobRecord& record,
                                       const protocol::Header& header, const protocol::Hello& hello, TimeNs now,
                                       std::optional<Error>& refused);
  uint64_t replaceable_incarnation(uint64_t job, const protocol::Header& header, const protocol::Hello& hello,
                                   TimeNs now);
  std::optional<Error> of_dead_run(const protocol::PeerId& from, const protocol::Header& header,
                                   const protocol::Hello& hello, TimeNs now, Actions& actions);
  /// Returns for how long a job whose workers are all silent keeps its name: longer where their processes return.
  uint32_t silent_ms_max_of(const protocol::JobRecord& record, uint32_t dead_after_ms) const;
  std::string time_in_the_way(uint64_t number, uint32_t worker, TimeNs now);
  std::optional<Error> left_behind(const protocol::PeerId& from, const protocol::JobRecord& record,
                                   const protocol::JobSpec& theirs, const protocol::Header& header,
                                   const protocol::Hello& hello, TimeNs now);
  Job* named(std::string_view name);
  void on_shard_hello(const protocol::PeerId& from, const protocol::Header& header, const protocol::ShardHello& hello,
                      TimeNs now, Actions& actions);
  void say_shard_hello(uint32_t shard, Actions& actions) const;
  void say_owed_hellos(TimeNs now, Actions& actions);

  // shard_core_drain.cc: the number left to a spare
  void refresh_drain(Actions& actions);
  TimeNs half_of_drain() const;
  std::string refuses_drain() const;
  std::string refuses_departure() const;
  std::string finishes_first() const;
  bool is_asked_to_leave() const;
  bool is_leaving_number() const;
  void hold_or_release_lease(Actions& actions);
  void release_lease(Actions& actions);
  void refuse_drain(std::string refusal, Actions& actions);
  void advance_departure(TimeNs now, Actions& actions);
  std::string ends_departure(TimeNs now, Actions& actions);

  // shard_core_table.cc: the table, silence
  void table_failed(const Error& error, Actions& actions);
  void note_table_trouble(const Error& error);
  void poll_table(TimeNs now, Actions& actions);
  void refresh(TimeNs now, Actions& actions);
  void refresh_from(const Result<uint64_t>& counter, TimeNs now, Actions& actions);
  void refresh_neighbours(TimeNs now, Actions& actions);
  void refresh_lost(TimeNs now, Actions& actions);
  void redirect_shards(protocol::JobRecord& record, Actions& actions);
  void hand_over(Job& job, const protocol::Membership& membership, Actions& actions);
  void adopt(Job& job, protocol::JobRecord record, TimeNs now, Actions& actions);
  /// Removes members of one job, all for one reason.
  void remove(Job& job, std::span<const Leaver> leavers, TimeNs now, Actions& actions);
  static std::vector<Leaver> leavers_of(const Job& job, std::span<const protocol::Member> members, Leaving leaving);
  void remove_leavers(TimeNs now, Actions& actions);
  bool is_leaving(uint64_t job, const protocol::Member& member) const;
  void remove_silent(TimeNs now, Actions& actions);
  /// Makes the change in the table that the job requires, if any. The job may be over afterwards.
  void apply_table_change(uint64_t number, TimeNs now, Actions& actions);
  void apply_removal(Job& job, Job::TableChange table_change, TimeNs now, Actions& actions);
  void tell_change(const Job& job, const Job::TableChange& table_change, uint64_t branch, Actions& actions) const;
  void superseded(Actions& actions);
  void lose_table(const Error& why, TimeNs now, Actions& actions);
  Result<bool> is_number_taken(const Error& loss) const;
  void note_time(TimeNs now);

  // shard_core_ends.cc: the ends of jobs and of the shard
  /// Whether the end of a job saves its store. Where another process has this shard's number, none is saved: that
  /// process has later steps.
  enum class StoreEnd : uint8_t { kSave = 1, kDrop = 2 };
  void end_in_table(Job& job, Error why, std::string_view label, Actions& actions);
  bool close_if_over(Job& job, const protocol::JobRecord& record, StoreEnd store, Actions& actions);
  void close(Job& job, std::optional<protocol::Body> last_message, std::string_view label, Actions& actions,
             StoreEnd store = StoreEnd::kSave);
  void close_if_failed(Job& job, Actions& actions);
  void advance_shutdown(TimeNs now, Actions& actions);
  void end_at_shutdown(Job& job, TimeNs now, Actions& actions);

  ShardConfig config_;
  protocol::MembershipTable& table_;
  std::unique_ptr<MemoryGate> gate_;
  MemoryAccount memory_;
  /// The name of the key that created a job, and the limits of the job.
  struct Opened {
    std::string by;
    Limits limits;
    uint64_t fixed_bytes = 0;  ///< of its arrays and records
  };
  std::map<uint64_t, Opened> opened_;              ///< of jobs_; the jobs refer to it
  std::map<uint64_t, std::unique_ptr<Job>> jobs_;  ///< open at this shard, by number
  std::map<uint64_t, LostJob> lost_;
  RefusalLog refusals_;
  std::vector<Ended> ended_;  ///< the latest last
  std::optional<TableTrouble> table_trouble_;
  std::map<uint64_t, std::unique_ptr<JobStore>>
      ending_stores_;               ///< of jobs that are over: their last save is not written
  std::vector<Leaver> leavers_;     ///< sent Goodbye, are still in the table; at most one a member of an open job
  std::set<uint64_t> successions_;  ///< running jobs that an earlier start of this shard has served
  std::unordered_map<protocol::PeerId, Session> sessions_;
  std::unordered_map<protocol::PeerId, uint32_t> shard_sessions_;  ///< which shard
  std::vector<Neighbour> neighbours_;                              ///< by shard number, this one included
  std::optional<uint64_t> table_counter_;                          ///< when the table was last read
  std::optional<TimeNs> table_reported_at_;                        ///< when a failure of it was last logged
  TimeNs next_poll_;
  TimeNs pursue_after_ = 0;  ///< the table has just failed
  TimeNs last_call_;
  std::optional<TimeNs> departing_until_;  ///< a shutdown leaves the number to a spare until then
  bool spares_gone_ = false;               ///< the last look of the departure found none that waits
  std::optional<TimeNs> draining_until_;
  /// The rounds are over: until then, the shard tries to write the ends of the jobs to the table.
  std::optional<TimeNs> ending_until_;
  TimeNs next_ending_ = 0;
  std::optional<protocol::DrainNote> drain_;  ///< of this start, as last read
  bool drain_wait_logged_ = false;            ///< once a departure
  bool lease_released_ = false;               ///< so that a spare takes this number
  std::optional<TimeNs> superseded_at_;       ///< when this process found that another one has its number
  bool stopped_ = false;
  std::optional<Error> failure_;
};

}  // namespace millrace::server
