#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/clock.h"
#include "monitoring/status/shard_status.h"
#include "protocol/job/layout.h"
#include "protocol/messages/messages.h"
#include "server/base/actions.h"
#include "server/base/memory_account.h"
#include "server/membership/members.h"
#include "server/part/part_round.h"
#include "server/store/save_format.h"
#include "server/store/store_task.h"

namespace millrace::server {

/// Returns the bytes of weights and state that this shard would hold of the job; 0 without a store.
uint64_t store_bytes(const protocol::JobSpec& spec, const protocol::JobLayout& layout, uint32_t shard);

/// Holds the weights of one job at one shard (R17): DESIGN.md, "The store". Pure: it takes decided steps, messages,
/// finished tasks and answers of the disk, and gives tasks, messages and requests to the disk.
///
/// Invariants   on a part, one operation runs at a time, in the order of requests. position.n is the number of steps in
///              its arrays. Steps are handed on in order, each once.
/// Life         may outlive its job, until its last save is written (end()).
class JobStore {
 public:
  /// The most steps of a part that may wait to be applied; more block decisions.
  static constexpr uint64_t kStepsBehindMax = 4;
  static constexpr size_t kPullsMax = 64;  ///< of one worker, waiting.
  /// Updates that are retained for it may take this many bytes, or twice those of its arrays. From half of that on, a
  /// save is made.
  static constexpr uint64_t kRetainedBytesMin = uint64_t{8} << 20;
  static constexpr TimeNs kRetryAfter = 10 * kNsPerS;  ///< a save that failed
  /// Bytes of placed weights and of indices to pull that may wait, of all workers.
  static constexpr uint64_t kQueuedBytesMax = uint64_t{64} << 20;

  struct Setup {
    const protocol::JobSpec& spec;  ///< these two are read while it is made
    const protocol::JobLayout& layout;
    uint32_t shard = 0;
    uint32_t shard_count = 1;
    MemoryAccount& account;  ///< until end()
  };
  /// The place of saves.
  struct Saves {
    bool possible = false;
    TimeNs every = 0;  ///< 0: only when asked, and at the end
    /// Finds out whether a save of the job of that name could take its place. Empty: only the save itself finds it out.
    std::function<Status(const std::string& name)> judge = {};
  };
  /// REQUIRES: the specification has a store.
  explicit JobStore(const Setup& setup);

  /// kSuccessor: of a job that an earlier start of this shard has served; recover() brings its log.
  enum class StartKind : uint8_t { kFresh, kSuccessor };
  void open(uint64_t job, Saves saves, StartKind begin, TimeNs now, Actions& actions);

  /// Returns the first step whose updates this shard and the workers must retain for it: a successor of this shard
  /// begins with the last save. UINT64_MAX: none.
  uint64_t needs_from(uint32_t number) const;
  /// Reports that updates of `bytes` are retained, for it and for others, of at most `bytes_max`. Where `bytes` is
  /// large, a save is made. If the save is late, the updates need not be retained any longer.
  void on_retained(uint64_t bytes, uint64_t bytes_max, Actions& actions);

  /// Returns whether that step of the part may be decided: its weights are there, and few enough steps wait to be
  /// applied.
  bool takes(uint32_t part, uint64_t step) const;
  /// Handles a decided step of a part. REQUIRES: the step after the one before, or after restore().
  void decided(const protocol::Update& body, const SharedBytes& payload, Actions& actions);

  // job_store_recovery.cc
  /// R8, R10e: Handles that the log is another one from now on. Takes nothing until recover() brings the new log.
  void drop();
  bool is_dropped() const { return dropped_; }
  /// Returns a part of the log that continues after drop().
  using Log = std::function<const PartRound&(uint32_t part)>;
  /// Recovers the log's weights: those that are here, if they are on it, or else those of the job's beginning, or of
  /// the last save. Applies the retained updates after them. Reads a save first: call it again after on_loaded(). Where
  /// none of that reaches the log, the job cannot continue (failure()).
  void recover(const Log& log, Actions& actions);
  /// Continues the part from there: its arrays are the log's up to `position`. Updates that waited to be applied are
  /// forgotten.
  void restore(uint32_t number, StorePosition position, StoreArrays arrays, Actions& actions);

  void on_pull(const protocol::Member& from, const protocol::Pull& body, SharedBytes indices, const Members& members,
               Actions& actions);
  void on_place(const protocol::Member& from, const protocol::Place& body, SharedBytes values, const Members& members,
                Actions& actions);
  /// R7: Drops the waiting requests of workers that are no longer members.
  void on_membership(const Members& members);

  /// Handles a finished task.
  ///
  /// members   empty once the job is over.
  void on_task_done(const StoreTask& task, const Members* members, Actions& actions);
  void on_tick(TimeNs now, Actions& actions);
  /// Returns when on_tick() has to be called. After end(): only where the last save has failed.
  std::optional<TimeNs> deadline() const;

  // job_store_save.cc
  /// Saves the present weights, if they have changed; after the save that is under way, and once all weights are there.
  void save(Actions& actions);
  void on_written(const Status& written, Actions& actions);
  /// Records that all members have acknowledged the steps of the part below n. The updates of the steps below `stable`
  /// are forgotten. Called while a save is under way, and before on_written().
  void acknowledged(uint32_t number, uint64_t n, uint64_t stable);
  /// Ends a save that waits for acknowledgements, if they are there: from then on it counts.
  void end_acknowledged(Actions& actions);
  void on_loaded(Result<StoreFile> loaded, Actions& actions);
  /// Ends the store with its job: no worker is answered, and `account` is charged from now on instead of the job's.
  /// Decided steps are applied and saved. A failed save is tried again.
  /// REQUIRES: the job's last call; `account` outlives the store.
  void end(MemoryAccount& account, Actions& actions);
  /// Returns whether nothing is left to be done after end().
  bool over() const;

  const std::string& name() const { return header_.name; }
  uint64_t bytes() const { return charge_.bytes(); }
  bool is_saving() const { return saving_.has_value(); }
  /// Returns why the store, and the job with it, cannot continue.
  const std::optional<Error>& failure() const { return failure_; }
  /// Returns why it does not take a step, and which members could change that.
  std::string waiting_because(const Members& members) const;
  std::vector<uint32_t> waits_for(const Members& members) const;
  StoreStatus status() const;
  /// Returns a part's position and arrays. For tests and for R17e.
  const StorePosition& position(uint32_t part) const;
  const StoreArrays& arrays(uint32_t part) const;

 private:
  struct Asked {
    uint32_t worker = 0;
    uint64_t incarnation = 0;
    uint64_t id = 0;
    uint64_t at_least = 0;
  };
  struct Operation {
    StoreTask::Work work;
    Asked asked = {};              ///< of a Read
    protocol::Update update = {};  ///< of an Apply: where the part is after it, with the next one
    uint64_t placing = 0;          ///< of a Place: the sequence of runs that it belongs to
    MemoryCharge charge = {};
  };
  struct Part {
    uint32_t part = 0;
    uint64_t dimension = 0;
    StorePosition position;
    std::shared_ptr<StoreArrays> arrays;
    bool filled = false;  ///< arrays are of their size
    bool ready = false;   ///< and have the first weights
    uint64_t handed = 0;  ///< steps handed on: position.n and those in the queue
    std::deque<Operation> queue;
    std::optional<uint64_t> running;  ///< token of the task of the queue's first
    std::deque<Operation> waiting;    ///< pulls whose step is not there yet
    uint64_t placing = 0;             ///< runs from offset 0 on that were begun
    uint64_t placed = 0;              ///< of the present one: values asked for
    uint32_t placer = 0;              ///< whose runs they are
    bool placing_failed = false;
    /// Whether a run was dropped, and the placer has to hear of it.
    enum class Notice : uint8_t { kNone, kOwed, kSent };
    Notice notice = Notice::kNone;
    uint64_t saved_n = UINT64_MAX;  ///< of the last save that was written
    uint64_t acknowledged = 0;      ///< by all members, while a save is under way
    uint64_t forgotten = 0;         ///< steps whose updates no process retains, as last reported
  };
  struct Saving {
    enum class Stage : uint8_t {
      kCopying,
      kWaiting,  ///< all parts are written; members have to acknowledge their steps
      kEnding,   ///< the file's last record is asked for
    };
    size_t next = 0;  ///< part to be copied
    uint64_t hash = 0;
    Stage stage = Stage::kCopying;
    std::vector<uint64_t> n;  ///< of the parts copied
    uint64_t bytes = 0;
  };

  Part* local(uint32_t part);
  const Part* local(uint32_t part) const;
  void ask(Part& part, Operation operation, Actions& actions);
  void begin_next(Part& part, Actions& actions);
  void done(Part& part, const Operation& operation, const StoreTask& task, const Members* members, Actions& actions);
  void placed(Part& part, const Operation& operation, const StoreTask& task, const Members* members, Actions& actions);
  void send_notice(Part& part, const Members& members, Actions& actions) const;
  void answer(const Part& part, const Operation& operation, const StoreTask& task, const Members& members,
              Actions& actions) const;
  void refuse(const protocol::Member& to, const protocol::Pull& pull, Error why, const Members& members,
              Actions& actions) const;
  void begin_waiting(Part& part, Actions& actions);
  void become_ready(Part& part, Actions& actions);
  static bool reaches(const Part& part, const StorePosition& position, const Log& log);
  void go_on_from(Part& part, StorePosition position, std::shared_ptr<StoreArrays> arrays, const Log& log,
                  Actions& actions);
  bool continue_from_initial(Part& part, const Log& log, Actions& actions);
  bool go_on_from_save(Part& part, const Log& log, Actions& actions);
  bool is_ready() const;
  bool is_idle() const;
  bool has_changed() const;
  bool can_save() const;
  static uint64_t begins_from(const Part& part) { return part.saved_n == UINT64_MAX ? 0 : part.saved_n; }
  bool lacks_updates() const;
  bool survives_restart() const;
  void copied(Part& part, const SharedBytes& record, Actions& actions);
  void request(StoreRequest::What what, SharedBytes bytes, Actions& actions);
  void go_on_saving(Actions& actions);
  void end_saving(Actions& actions);
  void advance_end(Actions& actions);
  void save_when_ready(Actions& actions);
  void save_failed(const Error& why, Actions& actions);
  void end_first_save(Actions& actions);
  void count(Metric metric, std::string_view label, Actions& actions) const;

  protocol::Combine combine_;
  StoreHeader header_;
  MemoryAccount* account_;
  Saves saves_;
  MemoryCharge charge_;
  std::unique_ptr<MemoryAccount> queued_bytes_;  ///< placed weights and indices that wait
  std::deque<Part> parts_;                       ///< ascending
  uint64_t next_token_ = 1;
  std::optional<Saving> saving_;
  bool save_again_ = false;  ///< asked for while one was under way, or weights were not there
  TimeNs next_save_ = 0;
  bool save_failed_ = false;        ///< the last one
  std::optional<TimeNs> retry_at_;  ///< when it is tried again
  bool retains_updates_ = true;     ///< updates since the last save are kept
  /// Weights that a worker placed are not saved yet, and no save of them has failed. Pulls and steps wait: the worker
  /// places them again at a successor of this shard.
  bool first_weights_unsaved_ = false;
  uint64_t saves_written_ = 0;
  uint64_t saves_failed_ = 0;
  std::string last_failure_;
  uint64_t unanswered_ = 0;  ///< writes that were asked for
  uint64_t stale_ = 0;       ///< of these, for a save that was given up
  bool dropped_ = false;
  bool loading_ = false;
  std::optional<StoreFile> loaded_;  ///< for recover(); without parts: no save can be used
  std::string unusable_save_;        ///< why; empty: none was read
  bool ended_ = false;
  std::optional<Error> failure_;
};

}  // namespace millrace::server
