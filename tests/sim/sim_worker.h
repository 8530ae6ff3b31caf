#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "protocol/peer_id.h"
#include "tests/sim/sim_world.h"
#include "worker/core/session_core.h"

namespace millrace::testing {

/// Who is behind a PeerId of the simulation: a worker's process and which of its connections, or a shard in one of its lives.
struct SimPeer {
  bool is_shard = false;
  uint32_t number = 0;  ///< place in SimWorld::workers, or the shard
  uint64_t connection = 0;

  protocol::PeerId id() const;
  static SimPeer from(const protocol::PeerId& id);
};

/// A worker's process: the production core and a training loop that pushes gradients, applies updates and finishes.
class SimWorker : public SimProcess {
 public:
  /// `number`: its place in SimWorld::workers. `worker`: the identity that it claims.
  SimWorker(SimWorld& world, uint32_t number, uint32_t worker);

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

  uint32_t worker() const { return worker_; }
  uint64_t life() const { return core_ ? core_->life() : 0; }
  bool was_killed() const { return was_killed_; }
  bool has_left() const { return left_; }
  /// Has ended, either way.
  bool over() const {
    return !alive() || core_->phase() == worker::Phase::kFinished || core_->phase() == worker::Phase::kEnded;
  }
  bool has_started_pushing() const { return pushes_ > 0; }
  const worker::SessionCore* core() const { return core_.get(); }

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
  void send(const worker::SendAction& action);
  void repeat_as_stranger(const worker::SendAction& action);
  void connect(uint32_t shard);
  void apply(const worker::DeliveredUpdate& update);
  void schedule_push();
  std::vector<uint32_t> pushable() const;
  void push_one();
  Gradient draw_gradient(uint32_t tensor, uint64_t step) const;
  Gradient with_non_finite(uint32_t tensor, const Gradient& gradient);
  void expect_refusal(uint32_t tensor, const Gradient& bad);
  Result<uint64_t> push(uint32_t tensor, const Gradient& gradient, bool sparse);
  void enter(uint32_t tensor, const Gradient& gradient);
  void check_bucket(uint32_t bucket);
  void check_saved_state();
  void add_outstanding(uint32_t bucket, std::vector<double>& whole, std::vector<double>& still_owed);

  uint32_t number_;
  uint32_t worker_;
  bool was_killed_ = false;
  bool left_the_run_ = false;
  bool left_ = false;
  bool finish_asked_ = false;
  bool push_scheduled_ = false;
  bool turn_scheduled_ = false;
  uint32_t code_turns_ = 0;
  uint64_t pushes_ = 0;
  RandomSequence random_;
  std::unique_ptr<worker::SessionCore> core_;
  std::vector<uint64_t> connection_;          ///< [shard] number of the open connection; 0: none
  std::vector<uint64_t> pushed_;              ///< [tensor]
  std::vector<std::vector<double>> entered_;  ///< [bucket][index]
  std::vector<std::vector<float>> weights_;   ///< [part]
  std::vector<uint64_t> applied_;             ///< [part]
};

}  // namespace millrace::testing
