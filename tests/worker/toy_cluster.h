#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/random.h"
#include "tests/worker/toy_shard.h"
#include "worker/core/session_core.h"

namespace millrace::testing {

struct ToyClusterOptions {
  protocol::JobSpec spec;
  uint32_t shards = 1;
  uint64_t seed = 1;
  double disconnect_rate = 0;  ///< chance that a step of the network breaks a connection, with all that is on it
  double epoch_rate = 0;       ///< chance that the table's epoch rises for no reason
  double settle_rate = 0;      ///< chance that a worker settles one piece; nothing else that happens depends on it
  worker::LedgerMode ledger = worker::LedgerMode::kPerIndex;
};

/// Workers' cores and toy shards on a network of FIFO connections that a seed drives: one delivery at a time, in any order
/// between connections, with breaks. Every core's actions are carried out at once; updates are kept for the test to look at.
class ToyCluster {
 public:
  explicit ToyCluster(const ToyClusterOptions& options);

  worker::SessionCore& core(uint32_t worker) { return *cores_[worker]; }
  ToyShard& shard(uint32_t number) { return *shards_[number]; }
  ToyTable& table() { return table_; }
  uint32_t workers() const { return static_cast<uint32_t>(cores_.size()); }
  TimeNs now() const { return now_; }

  /// Delivers one message, or lets a worker work, or breaks something, or lets time pass.
  void step();
  /// Steps until nothing is under way any more, without new breaks. False: it does not come to rest.
  bool settle(uint64_t steps_max = 2'000'000);
  bool quiet() const;

  std::vector<worker::DeliveredUpdate>& delivered(uint32_t worker) { return delivered_[worker]; }
  std::vector<std::string>& logs(uint32_t worker) { return logs_[worker]; }

  /// What the law says of one bucket, per index: entered - (carried by the log + residuals + in flight + ledgers). All zero.
  std::vector<double> imbalance(uint32_t bucket) const;
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

  ToyClusterOptions options_;
  ToyTable table_;
  RandomSequence random_;
  RandomSequence settle_random_;
  TimeNs now_ = kNsPerS;
  bool breaks_ = true;
  std::vector<std::unique_ptr<worker::SessionCore>> cores_;
  std::vector<std::unique_ptr<ToyShard>> shards_;
  std::vector<Wire> wires_;
  std::vector<uint64_t> adopted_;  ///< by shard: epoch
  std::vector<std::vector<worker::DeliveredUpdate>> delivered_;
  std::vector<std::vector<std::string>> logs_;
};

/// A specification with one tensor a dimension, which tests bend.
protocol::JobSpec toy_spec(uint32_t workers, const std::vector<uint64_t>& dimensions);

}  // namespace millrace::testing
