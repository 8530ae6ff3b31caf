#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <type_traits>

#include "tests/models/rounds/shape.h"

namespace millrace::model {

/// A set of gradients: one bit for the gradient that one incarnation of one worker computed for one step of a part.
/// Mass is conserved when every bit is in one place.
using Mass = uint32_t;

/// The gradient that `incarnation` of `worker` computed for `step` (asynchronous: as its `step`-th).
constexpr Mass gradient(int worker, int incarnation, int step) {
  return Mass{1} << ((worker * kLives + incarnation - 1) * kSteps + step);
}

/// A decided update. Two updates are the same when all of this is.
struct Update {
  uint64_t mass : 27 = 0;         ///< what its contributions held
  uint64_t incarnations : 6 = 0;  ///< two bits a worker: the incarnation that it counts, 0 for none
  uint64_t epoch : 5 = 0;         ///< decided in
  uint64_t counter : 3 = 0;       ///< asynchronous: which contribution of its one contributor
  uint64_t carried : 1 = 0;       ///< 0: re-selection left everything behind, the contributors take it back
  uint64_t decided : 1 = 0;       ///< 0: no update
  uint64_t unused : 21 = 0;

  bool operator==(const Update&) const = default;
  int life_of(int worker) const { return static_cast<int>(incarnations >> (2 * worker) & 3); }
  void count(int worker, int incarnation) { incarnations |= static_cast<uint64_t>(incarnation) << (2 * worker); }
  Mass applied() const { return carried ? static_cast<Mass>(mass) : 0; }
};

struct Contribution {
  uint32_t mass : 27 = 0;
  uint32_t incarnation : 5 = 0;  ///< 0: no contribution

  bool operator==(const Contribution&) const = default;
};

using Log = std::array<Update, kSteps>;

enum class Standing : uint8_t {
  kDown,
  kSynced,
  kLoaded,   ///< state from a save, or none; not yet settled with the log
  kEvicted,  ///< removed while alive, joins again: holds residual and outstanding contributions
  kRemoved,  ///< knows that it was removed, not joined again yet
};

/// Holds the state of one part at one worker.
struct WorkerPart {
  Log weights;  ///< the updates applied: [0, next)
  Mass residual;
  Mass entered;  ///< all that this worker must account for
  Mass ledger;
  std::array<Mass, kSteps> outstanding;
  std::array<uint8_t, kSteps> sent_life;  ///< the incarnation under which outstanding[t] was sent
  uint8_t next;                           ///< the step to apply
  uint8_t push;                           ///< the step to push
  uint8_t kept;                           ///< bit t: keeps the bytes of update t
  uint8_t branch;
  uint8_t applied;  ///< with --acks: updates that its application has; the others, up to next, are held
  uint8_t told;     ///< asynchronous: decided, as told when it settled; 0: nothing of an old incarnation is outstanding
  uint8_t first;    ///< asynchronous: the first contribution of this incarnation
};

struct SavedPart {
  Log weights;
  Mass residual;  ///< with everything outstanding, as if it had been returned
  uint8_t next;
  uint8_t branch;
};

struct Worker {
  std::array<WorkerPart, kParts> part;
  std::array<SavedPart, kParts> saved;
  Standing standing;
  uint8_t incarnation;
  uint8_t view;     ///< the epoch that it knows
  uint8_t settled;  ///< bit p: settled with the shard of part p
  uint8_t has_save;
  uint8_t only_loaded;                     ///< the state came from a save and was never settled
  uint8_t job_lineage, saved_job_lineage;  ///< without the rule for a branch per part: one for all parts
};

/// One incarnation of the shard of one part.
struct Shard {
  Log log;  ///< [0, decided): the decisions; the summary is a function of it
  Log weights;
  std::array<std::array<Contribution, kWorkers>, kSteps> open;
  uint8_t up, view, active, decided;
  uint8_t kept;                          ///< bit t: keeps the bytes of update t
  uint8_t answered;                      ///< bit w: answered COLLECT
  uint8_t synced_answers;                ///< bit w: and was synced
  uint8_t parent;                        ///< the greatest log branch among those
  uint8_t job_parent;                    ///< the same of the job's log branch, without the rule for a branch per part
  uint8_t has_weights;                   ///< with a store: `weights` are those at `decided`
  uint8_t branch;                        ///< of its own activation (kShardsKnowLineage)
  std::array<uint8_t, kWorkers> member;  ///< the view: incarnation, or 0
  std::array<uint8_t, kWorkers> first;   ///< the view: Table::first
  std::array<uint8_t, kWorkers> acked;
};

/// A member's weights of one part on their way to one that joins.
struct Snapshot {
  Log weights;
  uint8_t view, next, kept, unused;
};

/// The store's save of one part.
struct StoreSave {
  Log weights;
  uint8_t decided, branch, exists, unused;
};

/// Lives of workers, two bits each as in Update.
using Lives = uint8_t;

/// With --acks: a shard's notice to the members of an epoch. It holds the number of steps with k acknowledgements, and
/// the members that acknowledged each step.
struct Told {
  Log of;  ///< for the invariant: the acknowledged log
  uint8_t next;
  std::array<Lives, kSteps> by;
};

/// With --acks, for the invariant alone: an update that some application has, and the members that had acknowledged it.
struct Reliance {
  Update update;
  uint64_t by;
};

/// With one part and no store, a shard's log branch is the table's wherever it matters. Leaving it out reduces the
/// number of states.
inline constexpr bool kShardsKnowLineage = kParts > 1;

inline constexpr uint8_t kJoining = 15;

/// The membership table: every change is one compare-and-swap.
struct Table {
  uint8_t epoch;
  std::array<uint8_t, kWorkers> member;  ///< incarnation, or 0
  std::array<uint8_t, kWorkers> first;   ///< the first step that needs this member's contribution; kJoining: none yet
  std::array<uint8_t, kParts> shard_incarnation;
  std::array<uint8_t, kParts> branch;     ///< of the part's last activation
  std::array<uint8_t, kParts> activated;  ///< the epoch of the part's last activation
  uint8_t branches;                       ///< numbered so far
  std::array<std::array<uint8_t, kLineages>, kParts> parent;
  std::array<uint8_t, kLineages> job_parent;  ///< without the rule for a branch per part
  uint8_t cut;                                ///< the epoch of the last cut
  uint8_t cut_lineage;                        ///< the log branch that it began
  uint8_t cut_to_stores;                      ///< it took the stores' saves, not a worker's
};

/// How often each fault has happened: Config bounds them.
struct Spent {
  uint8_t worker_crashes, shard_crashes, removals, joiner_removals, replacements, epoch_raises, saves, forgotten,
      store_saves;
};

/// The whole system. A message stays until no process can accept it, so messages may be late, repeated and overtaken.
struct alignas(8) State {
  std::array<Worker, kWorkers> worker;
  std::array<std::array<Shard, kShardLives>, kParts> shard;
  /// In flight, by the epoch in which they were sent.
  std::array<std::array<std::array<std::array<Contribution, kSteps>, kWorkers>, kParts>, kEpochs> contributions;
  std::array<std::array<Log, kParts>, kEpochs> updates;
  std::array<std::array<Snapshot, kParts>, kWorkers> snapshot;
  std::array<std::array<Told, kParts>, kEpochs> told;
  std::array<std::array<Reliance, kSteps>, kParts> relied;
  std::array<StoreSave, kParts> store;
  Table table;
  Spent spent;

  const Shard& current(int part) const { return shard[part][table.shard_incarnation[part] - 1]; }
  Shard& current(int part) { return shard[part][table.shard_incarnation[part] - 1]; }
  bool is_current(int part, int incarnation) const { return table.shard_incarnation[part] - 1 == incarnation; }
};
static_assert(std::is_trivially_copyable_v<State>);

inline bool up(const Worker& worker) { return worker.standing != Standing::kDown; }
inline bool synced(const Worker& worker) { return worker.standing == Standing::kSynced; }
/// Wants to join or rejoin, under an incarnation that it has written into the table.
inline bool returning(const Worker& worker) {
  return worker.standing == Standing::kLoaded || worker.standing == Standing::kEvicted;
}
/// Synced, and a member under its present incarnation: the law holds for it.
inline bool in_good_standing(const State& state, int worker) {
  return synced(state.worker[worker]) && state.table.member[worker] == state.worker[worker].incarnation;
}
/// Returns the mass that the updates of `log` below `end` carry.
inline Mass applied(const Log& log, int end) {
  Mass mass = 0;
  for (int step = 0; step < end; ++step) mass |= log[step].applied();
  return mass;
}

/// Returns the state in which all members are synced, every shard is active and nothing has happened.
State initial_state();

/// A hash that is equal for states which differ in the names of workers, or of parts, only.
uint64_t canonical_hash(const State& state);

}  // namespace millrace::model
