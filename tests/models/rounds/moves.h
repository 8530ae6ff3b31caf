#pragma once

#include <span>
#include <string>
#include <vector>

#include "tests/models/rounds/config.h"
#include "tests/models/rounds/state.h"

namespace millrace::model {

enum class Move : uint8_t {
  // of workers
  kPush,
  kResend,
  kEmpty,
  kDeliver,
  kDeliverMerged,
  kSave,
  kReadTable,
  kCrash,
  kRestart,
  kRejoin,
  kAnnounce,
  kSnapshot,
  kTakeSnapshot,
  kGoOn,
  kResync,
  kApply,
  // of shards
  kAdmit,
  kDecide,
  kServe,
  kAck,
  kForget,
  kCollect,
  kActivate,
  kCut,
  kCutToStore,
  kShardReadsTable,
  kShardCrash,
  kTakeover,
  kStoreSave,
  kStoreFetch,
  kStoreSnapshot,
  // of the table
  kRemove,
  kRaiseEpoch,
};

/// One move: its actor (a worker, or an incarnation of a shard), its part and its operands. The kind of move determines
/// the fields that are used.
struct Action {
  Move move{};
  uint8_t actor = 0, part = 0, a = 0, b = 0, unused = 0;
  bool operator==(const Action&) const = default;
};

enum class Kind : uint8_t {
  kProtocol,
  kRestart,  ///< of a process: may be needed to make progress
  kFault,
};

struct Successor {
  Action action;
  Kind kind = Kind::kProtocol;
  State state;
  std::string violation;  ///< a fault of this move itself; other faults are looked for in the state
};

/// All moves that are possible in a state. One object is used for one state after the other.
class Moves {
 public:
  explicit Moves(const Config& config) : config_(config), rules_(config.rules) {}

  /// Valid until the next call.
  std::vector<Successor>& from(const State& state);

 private:
  const State& now() const { return *now_; }
  const Worker& worker(int index) const { return now_->worker[index]; }
  const Spent& at_most() const { return config_.at_most; }
  bool on(Rule rule) const { return rules_[rule]; }
  bool epoch_left() const { return now_->table.epoch + 1 < kEpochs; }
  Successor& add(Move move, int actor, int part = 0, int a = 0, int b = 0, Kind kind = Kind::kProtocol);
  void drop_dead_messages(State& state) const;

  // worker_moves.cc
  void moves_of_worker(int w);
  void push(int w, int part);
  void resend(int w, int part);
  void send_empty(int w, int part);
  void deliver(int w, int part);
  void apply_update(State& state, int w, int part, int epoch, const Update& update) const;
  void save(int w);
  void read_table(int w);
  void crash_and_restart(int w);
  void rejoin(int w);
  void announce(int w);
  void remove(int w);
  void send(Successor& next, int w, int part, int step, Contribution contribution) const;

  // account.cc: the outcome of the contributions
  void resolve_counted(WorkerPart& mine, int slot, const Update& update, int w, bool bytes_known) const;
  void settle_with(WorkerPart& mine, int w, int index, const Update& update, bool bytes_known) const;
  void settle_old_lives(WorkerPart& mine, int incarnation) const;
  int last_index_counting(const WorkerPart& mine, int w, int slot, const Shard& shard) const;
  void settle_expelled(WorkerPart& mine, int w, int next, int snapshot_kept, const Shard& shard) const;
  void settle_expelled_asynchronous(WorkerPart& mine, int w, int next, int snapshot_kept, const Shard& shard) const;
  bool counted_since(const Shard& shard, int w, int next) const;

  // return_moves.cc
  void moves_of_returning(int w, int part);
  void resync(int w, int part);
  bool on_log(const State& state, int w, int part, const Shard& shard) const;
  bool is_ancestor(const Table& table, int part, int branch) const;
  bool can_go_on(int w, int part) const;
  bool can_go_on_everywhere(int w) const;
  bool is_dropped_needlessly(const State& state, int w, int part) const;
  void settle(Successor& successor, int w, int part, const Log& weights, int next, int kept) const;
  void become_synced(State& state, int w) const;

  // shard_moves.cc
  void moves_of_active(int part, int incarnation);
  void admit(int part, int incarnation);
  void decide(int part, int incarnation);
  void decide_asynchronous(int part, int incarnation);
  void record(int part, int incarnation, int step, int worker, const Update& update);
  void serve(int part, int incarnation);
  void acknowledge(int part, int incarnation);
  void forget_by_bound(int part, int incarnation);
  bool expected_are_in(const Shard& shard) const;
  bool already_counted(const Shard& shard, int w, int incarnation, int counter) const;

  // held_moves.cc: updates that wait for k acknowledgements
  void tell(State& state, int part, int incarnation) const;
  void apply_held(int w, int part);
  int pushable_from(const WorkerPart& mine) const { return applies_after_acks(config_) ? mine.applied : mine.next; }

  // successor_moves.cc
  void collect(int part, int incarnation);
  void activate(int part, int incarnation);
  void cut_if_nobody_is_synced(int part, int incarnation);
  void cut_if_stranded(int part, int incarnation);
  void cut(int part, int incarnation);
  void cut_to_worker(int part, int incarnation, int w);
  void begin_cut(State& state, int part, int incarnation, std::span<const uint8_t> parents) const;
  void restart_part(State& state, int part) const;
  void start_empty(State& state, int part) const;
  void shard_reads_table(int process);
  void adopt_membership(State& state, int part) const;
  void shard_crash(int process);
  void takeover(int process);
  void takeover_by_bound(int part);
  int processes() const { return config_.one_process ? 1 : kParts; }
  bool holds(int process, int part) const { return config_.one_process || process == part; }

  // store_moves.cc
  void moves_of_store(int part, int incarnation);
  void load_store(Successor& next, int part, int incarnation) const;
  uint8_t steps_to_save(const Shard& shard) const;
  bool is_saved_on_log(const State& state, int part, const Shard& shard) const;
  int saved_on_log(int part, const Shard& shard) const;
  void start_from_store(State& state, int part, int incarnation) const;
  void cut_to_stores(int part, int incarnation);

  const Config& config_;
  const RuleSet& rules_;
  const State* now_ = nullptr;
  std::vector<Successor> out_;
};

/// The move as a sentence, for a trace.
std::string describe(const State& before, const State& after, const Action& action);

}  // namespace millrace::model
