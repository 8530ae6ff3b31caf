#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "protocol/messages/peer_id.h"
#include "tests/sim/sim_world.h"
#include "tests/support/watched_core.h"
#include "worker/core/session_core.h"

namespace millrace::testing {

/// The process behind a PeerId of the simulation: a worker's process and its connection, or an incarnation of a shard.
struct SimPeer {
  bool is_shard = false;
  uint32_t number = 0;  ///< place in SimWorld::workers, or the shard
  uint64_t connection = 0;

  protocol::PeerId id() const;
  static SimPeer from(const protocol::PeerId& id);
};

/// The files that a worker's process left on its disk: one atomic cut over all parts.
struct SimSave {
  worker::SavedState state;
  std::vector<std::vector<float>> weights;  ///< [part]
  std::vector<LogPosition> at;              ///< [part]
};

/// A worker's process: the production core and a training loop that pushes gradients, applies updates and finishes.
class SimWorker : public SimProcess {
 public:
  /// `number`: its place in SimWorld::workers. `worker`: the identity that it claims.
  /// `save`: the state of an earlier process with which it begins; nullptr: none. `pushes`: how many steps of each
  /// tensor it pushes.
  SimWorker(SimWorld& world, uint32_t number, uint32_t worker, const SimSave* save, uint64_t pushes);

  void start();
  void kill();
  void leave();

  void deliver(uint32_t shard, uint64_t connection, protocol::Message message);
  /// The connection to that shard breaks; this process learns it a little later.
  void lose_connection(uint32_t shard, const std::string& reason);

  /// entered = residual + in flight + carried + ledger per index, the books of core and oracle against each other.
  void check_law();
  /// Every part stands where every step of it ends, with the oracle's weights.
  void check_finished();

  /// Returns since when that connection to the shard is closed; nothing: it is open.
  std::optional<TimeNs> closed_since(uint32_t shard, uint64_t connection) const {
    if (!alive()) return killed_at_;
    if (connection_[shard] == connection && broken_[shard].connection != connection) return {};
    return broken_[shard].at;
  }

  uint32_t number() const { return number_; }
  uint32_t worker() const { return worker_; }
  uint64_t incarnation() const { return core_ ? core_->incarnation() : 0; }
  bool was_killed() const { return was_killed_; }
  TimeNs over_at() const { return over_at_; }    ///< 0: it is not
  TimeNs heard_at() const { return heard_at_; }  ///< when it last received a message
  bool has_left() const { return left_; }
  /// Has ended, either way.
  bool over() const {
    return !alive() || core_->phase() == worker::Phase::kFinished || core_->phase() == worker::Phase::kEnded;
  }
  /// Least over its tensors.
  uint64_t pushed() const { return std::ranges::min(pushed_); }
  uint64_t pushes_wanted() const { return steps_; }
  /// The last state that it saved; empty: none.
  const std::shared_ptr<const SimSave>& save() const { return save_; }
  LogPosition at(uint32_t part) const { return at_[part]; }
  const WatchedCore* core() const { return core_.get(); }

 private:
  struct Gradient {
    std::vector<uint32_t> indices;  ///< any order, duplicates allowed
    std::vector<float> values;
    float weight = 1;
  };

  void tick() override;
  TimeNs deadline() const override { return core_->next_deadline(); }
  void turn(worker::Actions& actions);
  void code(worker::Actions& actions);
  void carry_out(worker::Actions&& actions);
  void tell_oracle(const protocol::Message& message);
  void send(const worker::SendAction& action);
  void repeat_as_stranger(const worker::SendAction& action);
  void connect(uint32_t shard);
  void apply(const worker::DeliveredUpdate& update);
  void check_applied(const std::string& where, const worker::DeliveredUpdate& update,
                     std::span<const LogPosition> places);
  /// Whether a contribution of this worker was counted there, and whether it had entries.
  struct Counted {
    bool any = false;
    bool with_entries = false;
  };
  Counted counted_at(uint32_t part, LogPosition place) const;
  void replace(const std::string& where, const worker::DeliveredUpdate& update);
  /// Its contributions up to the place of weights that it takes over are carried.
  void credit_path(uint32_t part, LogPosition after);
  /// Applies the updates that the core holds back: credits their entries in the accounts as of now.
  void credit_held();
  /// Checks, with apply_after_acks, that the core handed out only updates that enough members have acknowledged.
  void check_backed(const std::string& where, uint32_t part, LogPosition at);
  /// Returns the weights of the part, including the updates that the core holds back.
  std::vector<float> whole_weights(uint32_t part) const;
  /// Its contributions to the steps up to that place are carried, in the books of this process.
  void credit(uint32_t part, LogPosition at);
  void give_weights(const worker::GiveWeights& asked);
  void save_now();
  void take_places();
  bool go_to(const std::string& where, uint32_t part, LogPosition after);
  void note_settle(const protocol::Settle& settle);
  void schedule_push();
  bool goes_by_steps() const;
  /// Returns the number of steps that all buckets applied; adds `otherwise_in_flight` while something is in flight.
  uint64_t steps_done(uint64_t otherwise_in_flight) const;
  /// Whether it has another push for tensors that were pushed `least` times.
  bool wants_to_push(uint64_t least) const;
  bool has_pushed_all() const;
  std::vector<uint32_t> pushable() const;
  void push_one();
  Gradient draw_gradient(uint32_t tensor, uint64_t step) const;
  Gradient with_non_finite(uint32_t tensor, const Gradient& gradient);
  void expect_refusal(uint32_t tensor, const Gradient& bad);
  Result<uint64_t> push(uint32_t tensor, const Gradient& gradient, bool sparse);
  void enter(uint32_t tensor, const Gradient& gradient);
  void check_bucket(uint32_t bucket);
  void check_audit();
  void check_losses(uint32_t bucket);
  void check_unreturnable(const UnreturnableContribution& one);
  void follow_unreturnable();
  void check_saved_state();
  void check_opening(uint32_t part);
  bool accounts_agree(uint32_t bucket, std::string& why);
  void add_outstanding(uint32_t bucket, std::vector<double>& whole);

  uint32_t number_;
  uint32_t worker_;
  bool was_killed_ = false;
  TimeNs over_at_ = 0;
  TimeNs heard_at_ = 0;
  TimeNs killed_at_ = 0;
  bool left_the_run_ = false;
  bool left_ = false;
  bool finish_asked_ = false;
  bool push_scheduled_ = false;
  bool turn_scheduled_ = false;
  bool told_a_place_ = false;  ///< a Settle came whose snapshot has no values
  uint32_t code_turns_ = 0;
  uint64_t steps_;
  RandomSequence random_;
  std::shared_ptr<const SimSave> loaded_;  ///< the state with which it began
  std::shared_ptr<const SimSave> save_;
  std::unique_ptr<WatchedCore> core_;
  struct Broken {
    uint64_t connection = 0;  ///< 0: none
    TimeNs at = 0;
  };
  std::vector<Broken> broken_;                ///< [shard] the connection that broke last
  std::vector<uint64_t> connection_;          ///< [shard] number of the open connection; 0: none
  std::vector<uint64_t> pushed_;              ///< [tensor]
  std::vector<std::vector<double>> entered_;  ///< [bucket][index]
  std::vector<std::vector<float>> weights_;   ///< [part]
  std::vector<LogPosition> at_;               ///< [part] the applied log
  // Contributions that updates carried, where the update went into the weights here or is inside adopted weights. An
  // update that becomes void stays in these accounts: its entries are lost, and no other account misses them.
  std::set<uint64_t> lives_;
  std::vector<std::vector<double>> credited_;               ///< [bucket][index]
  std::set<std::pair<uint32_t, LogPosition>> credited_at_;  ///< (part, place)
  /// Credited and never applied. Possibly no process could say which entries of the contribution were carried.
  struct Skipped {
    uint32_t part = 0;
    LogPosition at;
    uint64_t incarnation = 0;
  };
  std::vector<Skipped> skipped_;
  size_t unreturnable_seen_ = 0;
  /// How the shard judged the state that it began with.
  struct Opening {
    uint64_t decided = 0;  ///< steps, when it was judged
    bool on_log = false;   ///< as the shard said
    bool lineage_is_on_path = false;
    uint64_t branches = 0;  ///< at that time
  };
  std::vector<std::optional<Opening>> opening_;  ///< [part] empty: not settled, or checked
  // A verdict counts in its epoch only. Weights adopted and values given up by an earlier verdict stay so.
  std::vector<std::optional<bool>> verdicts_;  ///< [part] the last one: usable
  std::vector<bool> was_usable_;               ///< [part] by a verdict before
  std::vector<bool> was_unusable_;             ///< [part]
  std::vector<bool> may_lose_;                 ///< [part] a verdict let it lose more than unreturnable contributions
  std::vector<uint64_t> summary_until_;        ///< [part] the oracle's counted_until() when the last settlement came
};

}  // namespace millrace::testing
