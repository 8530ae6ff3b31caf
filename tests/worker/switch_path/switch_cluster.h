#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/random.h"
#include "switch_agg/aggregator/aggregator.h"
#include "tests/support/watched_core.h"
#include "worker/core/session_core.h"

namespace millrace::testing {

/// Workers' cores of one job of path switch, and real aggregators for a switch and for shard 0. A seed drives their
/// network of datagrams: any order, losses, copies. The shards are two names that send Welcome and the views. They pass
/// on joiners' requests to other members (as server/rejoin/settlement.h does). The test can read workers' messages to
/// them.
class SwitchCluster {
 public:
  static constexpr uint64_t kJob = 7;
  static constexpr uint32_t kSwitchJob = 11;
  static constexpr uint16_t kSwitchPort = 7'700;
  static constexpr uint16_t kShardPort = 7'600;
  static constexpr uint16_t kRackPort = 7'800;  ///< of the first rack; the next ones count up

  struct Options {
    protocol::JobSpec spec;  ///< path and what belongs to it are set here
    uint64_t seed = 1;
    double loss = 0;
    double copies = 0;
    uint32_t slots = 4;
    uint32_t slots_at_switch = 0;  ///< 0: as many as the job uses
    uint32_t lanes = 1;
    uint32_t window_indices = 64;
    uint64_t reselect_k = 0;
    bool has_fallback = true;
    std::vector<uint64_t> racks = {};  ///< in front of the switch: workers of each; others are in none
    uint64_t rack_reselect_k = 0;
    std::string address = "switch:7700";  ///< or "shard:7600": shard 0 decides itself, behind the racks
    bool has_weights = true;
  };
  explicit SwitchCluster(const Options& options);

  uint32_t workers() const { return static_cast<uint32_t>(nodes_.size()); }
  uint16_t racks() const { return static_cast<uint16_t>(options_.racks.size()); }
  WatchedCore& core(uint32_t worker) { return *nodes_[worker]->core; }
  worker::Actions& actions(uint32_t worker) { return nodes_[worker]->actions; }
  protocol::Membership& membership() { return membership_; }
  TimeNs now() const { return now_; }

  /// Welcomed by both shards.
  void join(uint32_t worker);
  /// R9, R11: Removes a worker from the table. It learns of it with the others, or when it rejoins.
  enum class Hears : uint8_t { kNow, kLater };
  void remove(uint32_t worker, Hears hears);
  /// ... admits it as a joiner, under the next incarnation: the same process, or another one.
  enum class Process : uint8_t { kSame, kNew };
  void admit(uint32_t worker, Process process);
  bool is_synced(uint32_t worker) const;
  bool is_alive(uint32_t worker) const { return nodes_[worker]->alive; }
  /// Returns the cores of processes that are gone, with their last state.
  const std::vector<std::unique_ptr<WatchedCore>>& gone() const { return gone_; }
  void join_all();
  /// Ends every process, the shards too, and lets others begin a job with the same numbers: with a fresh table. The
  /// switches are not notified. All join it. Packets under way on the network stay there.
  void begin_job_anew();
  /// The next epoch of the view: every live worker hears it of both shards.
  void raise(const std::function<void(protocol::Membership&)>& change);
  void raise_for(uint32_t worker);
  void set_path(protocol::Path path);
  /// Joiners are settled only while it is true: otherwise their requests wait.
  bool passes_on = true;
  /// The process is gone: it hears nothing more. Its core stays to be looked at.
  void kill(uint32_t worker) { nodes_[worker]->alive = false; }
  void hear(uint32_t worker, uint32_t shard, protocol::Body body);

  /// The switch that is started next knows only this many lanes of the job.
  uint32_t lanes_at_switch = UINT32_MAX;
  void stop_aggregator(uint16_t port) { aggregators_.erase(port); }
  void start_aggregator(uint16_t port);
  bool has_aggregator(uint16_t port) const { return aggregators_.contains(port); }
  uint64_t counted_at(uint16_t port, switch_agg::AggregatorEvent event) const {
    return aggregators_.at(port).aggregator->counters()[event];
  }
  /// Nothing gets to that worker from now on.
  std::function<bool(const protocol::Endpoint& from, const protocol::Endpoint& to)> blocked;
  /// RESULTs that do not get to a worker.
  std::function<bool(uint32_t worker)> loses_results;

  void push(uint32_t worker, uint32_t tensor, const std::map<uint32_t, float>& entries);
  void push_dense(uint32_t worker, uint32_t tensor, const std::vector<float>& gradient);

  /// One packet, or a little time.
  void step();
  /// Steps until it holds; fails the test where it does not come to that.
  void run_until(const std::function<bool()>& condition, uint64_t steps_max = 400'000);
  void pass(TimeNs span);
  bool all_applied(uint64_t steps);

  /// The messages of a kind that the worker has sent, with their shard.
  template <typename T>
  std::vector<std::pair<uint32_t, T>> sent(uint32_t worker) const {
    std::vector<std::pair<uint32_t, T>> found;
    for (const worker::SendAction& send : nodes_[worker]->sent) {
      if (const T* body = std::get_if<T>(&send.message.body)) found.emplace_back(send.shard, *body);
    }
    return found;
  }
  void forget_sent(uint32_t worker) { nodes_[worker]->sent.clear(); }
  const std::vector<worker::DeliveredUpdate>& delivered(uint32_t worker) const { return nodes_[worker]->delivered; }
  const std::vector<std::string>& log(uint32_t worker) const { return nodes_[worker]->log; }
  /// Updates divided and added up, by bucket.
  const std::vector<std::vector<float>>& weights(uint32_t worker) const { return nodes_[worker]->weights; }

  /// Returns the imbalance of the law in a bucket, per index, over the workers that live: entered - (applied +
  /// residuals + in flight + ledgers).
  std::vector<double> imbalance(uint32_t bucket);

 private:
  struct Node;
  struct Packet {
    protocol::Endpoint from;
    protocol::Endpoint to;
    ByteBuffer bytes;
  };
  class Sink final : public protocol::PacketSink {
   public:
    Sink(SwitchCluster& cluster, const protocol::Endpoint& own) : cluster_(cluster), own_(own) {}
    std::span<uint8_t> room() override { return room_; }
    void send(size_t bytes, const protocol::Endpoint& to) override;

   private:
    SwitchCluster& cluster_;
    protocol::Endpoint own_;
    std::vector<uint8_t> room_ = std::vector<uint8_t>(2'048);
  };
  /// What shards pass on, or say, in the epoch in which it was caused.
  struct Word {
    uint32_t worker = 0;
    uint64_t incarnation = 0;
    uint64_t epoch = 0;
    uint32_t shard = 0;
    protocol::Body body;
    SharedBytes payload;
  };
  struct Node {
    uint64_t incarnation = 1;
    uint64_t nonce = 0;
    uint64_t starts = 0;
    std::unique_ptr<Sink> sink;
    std::unique_ptr<WatchedCore> core;
    worker::Actions actions;
    bool alive = true;
    std::vector<worker::SendAction> sent;
    std::vector<worker::DeliveredUpdate> delivered;
    std::vector<std::string> log;
    std::vector<std::vector<float>> weights;
  };
  struct Decider {
    std::unique_ptr<Sink> sink;
    std::unique_ptr<switch_agg::Aggregator> aggregator;
  };
  static protocol::Endpoint endpoint(uint16_t port);
  void start_core(uint32_t worker);
  void welcome(uint32_t worker);
  void hear_word(const Word& word);
  // switch_cluster_returns.cc
  void on_message_to_shard(uint32_t worker, const worker::SendAction& send);
  void ask_for_all(uint32_t joiner, uint32_t shard);
  void pass_on(const worker::SendAction& send);
  bool pass_a_word();
  void carry_out(uint32_t worker);
  void deliver(const Packet& packet);
  void tick_all();

  Options options_;
  RandomSequence random_;
  protocol::Membership membership_;
  TimeNs now_ = kNsPerS;
  protocol::Membership first_view_;
  uint64_t lives_ = 0;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::map<uint16_t, Decider> aggregators_;
  std::deque<Packet> network_;
  std::deque<Word> words_;
  std::vector<std::unique_ptr<WatchedCore>> gone_;
};

}  // namespace millrace::testing
