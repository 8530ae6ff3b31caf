#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "kernels/base/random.h"
#include "tests/support/watched_core.h"
#include "tests/worker/toys/toy_shard.h"
#include "worker/core/session_core.h"

namespace millrace::testing {

struct ToyClusterOptions {
  protocol::JobSpec spec;
  uint32_t shards = 1;
  uint64_t seed = 1;
  double disconnect_rate = 0;  ///< chance that a step of the network breaks a connection, with all that is on it
  double epoch_rate = 0;       ///< chance that the table's epoch rises for no reason
  // Chances of faults; `stop_faults()` ends them.
  double remove_rate = 0;        ///< the table removes a live worker
  double shard_crash_rate = 0;   ///< a shard starts again, empty
  double worker_crash_rate = 0;  ///< a worker's process ends and another begins, with the last save
  double save_rate = 0;
  double snapshot_rate = 0;  ///< of settlings that could do without one
  double settle_rate = 0;    ///< chance that a worker settles one piece; nothing else that happens depends on it
  bool returns = false;      ///< workers have weights, and rejoin
};

/// How often each fault has happened.
struct ToyFaults {
  uint64_t removals = 0;
  uint64_t shard_crashes = 0;
  uint64_t worker_crashes = 0;
  uint64_t steps_voided = 0;
};

/// Workers' cores and toy shards on a network of FIFO connections that a seed drives. It makes one delivery at a time,
/// in any order between connections, with breaks. Every core's actions are carried out at once; the test can read the
/// updates.
class ToyCluster {
 public:
  explicit ToyCluster(const ToyClusterOptions& options);

  WatchedCore& core(uint32_t worker) { return *cores_[worker]; }
  ToyShard& shard(uint32_t number) { return *shards_[number]; }
  ToyTable& table() { return table_; }
  uint32_t workers() const { return static_cast<uint32_t>(cores_.size()); }
  TimeNs now() const { return now_; }

  /// Delivers one message, or lets a worker work, or breaks something, or lets time pass.
  void step();
  void stop_faults() { faults_on_ = false; }
  const ToyFaults& faults() const { return faults_; }
  uint32_t cores_ended() const;
  /// A worker's weights of a part, as its deliveries made them; and the part's as the log has them after `steps`.
  const std::vector<float>& weights(uint32_t worker, uint32_t part) const { return weights_[worker][part]; }
  std::vector<float> weights_of_log(uint32_t part, uint64_t steps) const;
  /// Returns the loss of values where all values are positive. A loss is a value of an ended process that neither the
  /// log nor the worker's next process has. Below 0: something was counted twice. The least over indices.
  double least_loss(uint32_t bucket) const;
  /// Nothing is on its way, all are synced and everything is answered.
  bool at_rest() const;

  /// Steps until nothing is under way any more, without new breaks. False: it does not come to rest.
  bool settle(uint64_t steps_max = 2'000'000);
  bool quiet() const;

  std::vector<worker::DeliveredUpdate>& delivered(uint32_t worker) { return delivered_[worker]; }
  std::vector<std::string>& logs(uint32_t worker) { return logs_[worker]; }

  /// Returns the imbalance of the law in one bucket, per index: entered - (carried by the log + residuals + in flight +
  /// ledgers). All must be zero.
  std::vector<double> imbalance(uint32_t bucket) const;
  /// Returns the sum of |value| over the ledgers of all processes, ended ones included: the values that were lost.
  double lost() const;
  /// Everything any shard complained about.
  std::vector<std::string> complaints() const;

  void with_core(uint32_t worker, const std::function<void(worker::SessionCore&, worker::Actions&)>& call);

 private:
  struct Wire {
    bool up = false;
    bool wanted = false;                     ///< the core has asked for it
    std::deque<protocol::Message> up_queue;  ///< worker -> shard
    std::deque<protocol::Message> down_queue;
  };
  Wire& wire(uint32_t worker, uint32_t shard) { return wires_[worker * shards_.size() + shard]; }
  void carry_out(uint32_t worker, worker::Actions& actions);
  void send_out(uint32_t shard, ToyShard::Out& out);
  void break_one();
  void raise_epoch();
  bool deliver_one();
  bool work_one();
  void pass_time();
  double in_flight(const worker::OutstandingView& out, uint32_t worker, size_t entry) const;
  void add_carried_of_unreturnable(const WatchedCore& core, uint32_t worker, uint32_t bucket,
                                   std::vector<double>& books) const;
  void take_books(const WatchedCore& core, uint32_t worker, uint32_t bucket, std::vector<double>& books) const;
  void deliver_to_weights(uint32_t worker, const worker::DeliveredUpdate& update);
  worker::CoreConfig config_of(uint32_t worker) const;

  // toy_faults.cc
  void maybe_fault();
  void remove_one();
  void crash_shard();
  void save_one();
  void crash_worker();
  void void_step(uint32_t part, const ToyDecision& decision);

  ToyClusterOptions options_;
  ToyTable table_;
  RandomSequence random_;
  RandomSequence settle_random_;
  TimeNs now_ = kNsPerS;
  bool breaks_ = true;
  std::vector<std::unique_ptr<WatchedCore>> cores_;
  std::vector<std::unique_ptr<ToyShard>> shards_;
  std::vector<Wire> wires_;
  std::vector<uint64_t> adopted_;  ///< by shard: epoch
  std::vector<std::vector<worker::DeliveredUpdate>> delivered_;
  struct Saved {
    worker::SavedState state;
    std::vector<std::vector<float>> weights;
  };
  /// A process that ended, with its last state; and the next one of its worker.
  struct Ended {
    uint32_t worker = 0;
    std::unique_ptr<WatchedCore> core;
    std::set<uint64_t> incarnations;
    const WatchedCore* next = nullptr;
  };
  bool faults_on_ = true;
  ToyFaults faults_;
  RandomSequence fault_random_;
  std::vector<std::vector<std::vector<float>>> weights_;  ///< by worker, part
  std::vector<std::optional<Saved>> saved_;
  std::vector<std::set<uint64_t>> lives_;  ///< of the present process
  std::vector<uint64_t> nonces_;
  std::vector<Ended> ended_;
  std::vector<std::vector<double>> voided_;  ///< by bucket, index: applied once, and made void
  std::vector<std::vector<std::string>> logs_;
};

/// A specification with one tensor a dimension, which tests bend.
protocol::JobSpec toy_spec(uint32_t workers, const std::vector<uint64_t>& dimensions);

}  // namespace millrace::testing
