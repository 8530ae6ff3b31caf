#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/base/hash.h"
#include "kernels/stream/stream.h"
#include "protocol/container/container.h"
#include "protocol/job/job_spec.h"
#include "protocol/job/layout.h"
#include "protocol/table/membership_table.h"
#include "server/shard/shard_core.h"
#include "tests/support/failing_table.h"
#include "tests/support/memory_table.h"

namespace millrace::server {

/// A few shards on one memory table, driven by a script: workers are names of peers, their messages are made by hand.
/// Tasks run as soon as they come unless they are held; messages between shards arrive at once unless the link is cut.
class ScriptedCluster {
 public:
  explicit ScriptedCluster(protocol::JobSpec spec, uint32_t shard_count = 1, Limits limits = {},
                           JobStore::Saves saves = {}, std::string datagrams = {});
  ~ScriptedCluster();

  /// One bucket of `dimension`, `workers` workers: what most tests need.
  static protocol::JobSpec small_job(uint32_t workers, uint64_t dimension = 64);

  void start_shard(uint32_t shard, uint32_t shard_count, const std::string& host = "shard");

  ShardCore& core(uint32_t shard = 0) { return *shards_[shard]; }
  void fail_table_writes(bool fail_them, uint32_t shard = 0) {
    using Mode = testing::FailingTable::Mode;
    tables_[shard]->mode = fail_them ? Mode::kWritesFail : Mode::kWorks;
  }
  millrace::testing::FailingTable& table(uint32_t shard = 0) { return *tables_[shard]; }
  const protocol::JobSpec& spec() const { return spec_; }
  const protocol::JobLayout& layout() const { return layout_; }

  static protocol::PeerId peer(uint32_t worker) { return {"worker-" + std::to_string(worker)}; }

  protocol::Header header(uint32_t worker, uint32_t shard = 0);

  protocol::Hello hello(uint32_t worker) const;

  /// Says Hello at a shard; returns the first answer.
  protocol::Body join(uint32_t worker, uint32_t shard = 0) { return say_hello(worker, hello(worker), shard); }
  protocol::Body say_hello(uint32_t worker, protocol::Hello hello, uint32_t shard = 0);
  void join_all();

  /// A dense f32 stream of one part, coded with the job's codec for the way up.
  SharedBytes payload(const std::vector<float>& dense) const;

  protocol::Message contribution(uint32_t worker, uint32_t part, uint64_t step, const SharedBytes& bytes,
                                 uint32_t shard = 0);

  /// Pushes one worker's dense gradient of bucket 0 to all its parts.
  void push(uint32_t worker, uint64_t step, const std::vector<float>& gradient);

  void ack(uint32_t worker, uint64_t n);

  void send(const protocol::PeerId& from, uint32_t shard, protocol::Message message);

  void tick(uint32_t shard = 0);
  /// Lets time pass in the steps that the shards ask for.
  void pass(int64_t milliseconds);
  void shut_down(uint32_t shard = 0);

  void run_held_tasks();
  void run_one_held_task() { run_held_task(0); }
  void run_held_task(size_t at);

  const std::deque<std::pair<uint32_t, std::shared_ptr<Task>>>& held_tasks() const { return held_; }
  std::shared_ptr<Task> take_held_task();

  /// Runs held tasks, in order, until one of that kind would be next.
  void run_held_tasks_until(Task::Kind kind);

  /// Messages that a worker has got from a shard since the last take.
  std::vector<protocol::Message> take(uint32_t worker, uint32_t shard = 0);
  template <typename T>
  std::vector<T> take_of(uint32_t worker, uint32_t shard = 0) {
    std::vector<T> found;
    for (const protocol::Message& message : take(worker, shard)) {
      if (const T* body = std::get_if<T>(&message.body)) found.push_back(*body);
    }
    return found;
  }

  /// The sum of bucket 0 that the updates of `step` carry to this worker, dense; and how many entries they have.
  struct Gathered {
    std::vector<float> dense;
    uint64_t entries = 0;
    size_t parts = 0;
  };
  Gathered gather(uint32_t worker, uint64_t step);

  double counted(Metric metric, std::string_view label = {}) const;

  /// The same over all labels.
  double counted_in_all(Metric metric) const;
  /// Where a shard's connection to another one leads; empty: it has opened none.
  std::string connected_to(uint32_t from, uint32_t to) const;
  /// Lines of all shards' logs that have this in them.
  size_t said(std::string_view words) const;
  std::vector<AuditEvent> audited;  ///< by all shards

  /// Of the tables of all shards.
  std::shared_ptr<millrace::testing::MemoryTableState> table_state = millrace::testing::make_memory_table_state();
  std::vector<protocol::PeerId> closed;                        ///< connections that their other end has closed
  uint64_t queued_bytes = 0;                                   ///< that wait to be sent to each worker
  Status room;                                                 ///< the shards' answer about room for another worker
  uint64_t job_quota = std::numeric_limits<uint64_t>::max();   ///< of the memory of jobs that open from now on
  uint32_t jobs_quota = std::numeric_limits<uint32_t>::max();  ///< of each key
  Status may_create;                                           ///< whether keys may begin jobs
  std::string datagrams_of_shard_0;                            ///< of its next start
  Status judged;                                               ///< whether shard 0 can take over from the job's switch
  std::vector<DatagramChange> datagram_changes;
  /// As this worker was last told by that shard.
  const protocol::Membership& view_of(uint32_t worker, uint32_t shard = 0) { return views_[{worker, shard}]; }

  TimeNs now = kNsPerS;
  /// Carries out the actions of one of the core's methods; for tests that call the methods themselves.
  void carry_out(uint32_t shard, Actions& actions);

  /// Carries out what stores have asked of the disk.
  void serve_disk();

  /// Where saves go: by shard and job.
  struct FakeDisk {
    Status write(uint32_t shard, const StoreRequest& request);
    Result<StoreFile> load(uint32_t shard, const std::string& name) const;
    bool holds = false;
    bool fails = false;
    std::deque<std::pair<uint32_t, StoreRequest>> asked;
    std::map<std::pair<uint32_t, std::string>, ByteBuffer> unfinished;
    std::map<std::pair<uint32_t, std::string>, ByteBuffer> saves;
  };
  FakeDisk disk;

  bool hold_tasks = false;
  std::set<uint32_t> mute;                             ///< shards whose messages to other shards are lost
  std::function<void(protocol::Message&)> on_the_way;  ///< changes messages between shards

 private:
  void deliver(uint32_t shard, SendToPeer send);

  protocol::JobSpec spec_;
  Limits limits_;
  JobStore::Saves saves_;
  protocol::JobLayout layout_;
  std::set<std::tuple<uint32_t, uint32_t, uint64_t>> pushed_;  ///< (worker, part, step): a second push says again
  std::vector<std::unique_ptr<millrace::testing::FailingTable>> tables_;
  std::vector<std::unique_ptr<ShardCore>> shards_;
  std::map<uint32_t, uint64_t> lives_;
  std::map<std::pair<uint32_t, uint32_t>, protocol::Membership> views_;
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> worker_lives_;
  std::map<std::pair<uint32_t, uint32_t>, std::vector<protocol::Message>> inbox_;
  std::map<std::pair<Metric, std::string>, double> counters_;
  std::map<std::pair<uint32_t, uint32_t>, std::string> connected_;  ///< (from, to): the address
  std::vector<std::string> log_;
  std::deque<std::pair<uint32_t, std::shared_ptr<Task>>> held_;
  bool running_ = false;
};

/// The body as T; fails the test when it is another.
template <typename T>
T expect_body(const protocol::Body& body) {
  const T* found = std::get_if<T>(&body);
  if (!found) {
    ADD_FAILURE() << "got " << protocol::body_name(body);
    return T{};
  }
  return *found;
}

/// Returns whether the shard's process holds its lease, so that no spare takes its number.
inline bool holds_number(ScriptedCluster& cluster, uint32_t shard = 0) {
  return cluster.table().read_cluster().value().shards[shard].held;
}

}  // namespace millrace::server
