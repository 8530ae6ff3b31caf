#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "protocol/transport/transport.h"
#include "tests/worker/toys/toy_shard.h"

namespace millrace::testing {

/// Toy shards behind real sockets on the loopback, all on one thread, which scripts can bend.
class FakeCluster {
 public:
  /// Handles a message before the toy shard sees it. Returns true if the toy shard must not see it.
  using Script = std::function<bool(FakeCluster& self, uint32_t shard, const protocol::PeerId& from,
                                    const protocol::Message& message)>;

  FakeCluster(const protocol::JobSpec& spec, uint32_t shard_count, Script script = {});
  ~FakeCluster();

  std::vector<std::string> addresses() const { return addresses_; }

  /// Runs `work` on the cluster's thread and waits for it.
  void run_there(const std::function<void()>& work);

  // For scripts and run_there(): the cluster's thread only.
  ToyShard& shard(uint32_t number) { return *shards_[number]; }
  ToyTable& table() { return table_; }
  void reply(uint32_t shard, const protocol::PeerId& to, protocol::Body body, SharedBytes payload = {});
  void say(uint32_t shard, uint32_t worker, protocol::Body body, SharedBytes payload = {}) {
    reply(shard, peers_[shard][worker], std::move(body), std::move(payload));
  }
  uint64_t worker_life = 1;  ///< of worker 0, in what reply() and say() send it
  /// Closes the shard's listener with every connection, and opens it again on the same address.
  void break_connections(uint32_t shard);
  /// From now on the shard reads everything and says nothing.
  void fall_silent(uint32_t shard) { silent_[shard] = true; }
  /// Makes every shard adopt the table's view.
  void adopt_views();
  /// Goodbyes heard, by worker.
  std::map<uint32_t, protocol::Goodbye> goodbyes;

  /// Waits until `condition` holds on the cluster's thread (it is asked after every message and every few
  /// milliseconds). Ends the process where it does not hold within 200 s.
  void wait_until(const std::function<bool()>& condition);

 private:
  void serve();
  void receive(uint32_t shard);
  void send_out(uint32_t shard, ToyShard::Out& out);

  ToyTable table_;
  std::vector<std::unique_ptr<ToyShard>> shards_;
  protocol::TransportContext context_;
  std::vector<std::unique_ptr<protocol::Listener>> listeners_;
  std::vector<std::string> addresses_;
  std::vector<std::map<uint32_t, protocol::PeerId>> peers_;  ///< by shard and worker
  std::vector<bool> silent_;
  Script script_;
  protocol::Waker waker_;

  std::mutex mutex_;
  std::condition_variable done_;
  std::vector<std::function<bool()>> works_;  ///< each until it returns true
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace millrace::testing
