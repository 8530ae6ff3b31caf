#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "protocol/messages/log_branch.h"
#include "tests/server/scripted_cluster.h"

namespace millrace::server {

/// A ScriptedCluster whose workers remember the updates that they applied. They can report their position, return the
/// updates that they retain, and give weights. The test triggers every action that a worker does not take by itself.
class ReturningCluster : public ScriptedCluster {
 public:
  using ScriptedCluster::ScriptedCluster;

  static protocol::JobSpec job(uint32_t workers, uint32_t parts = 1) {
    protocol::JobSpec spec = small_job(workers);
    for (uint32_t part = 1; part < parts; ++part) {
      spec.tensors.push_back({.name = "w" + std::to_string(part), .dimension = 64});
    }
    spec.fuse_below = 1;
    spec.heartbeat = std::chrono::milliseconds(200);
    spec.dead_after = std::chrono::milliseconds(2'000);
    return spec;
  }

  /// Holds a worker's state of one part.
  struct Holds {
    uint64_t n = 0;
    uint64_t decided_in = 0;
    uint64_t branch = 0;
    std::map<uint64_t, protocol::Message> kept;
    protocol::Summary summary;
  };
  Holds& holds(uint32_t worker, uint32_t part = 0) { return holds_[{worker, part}]; }
  /// The worker's process is the same, and has none of the steps.
  void lose_steps(uint32_t worker) {
    Holds& lost = holds(worker);
    lost.n = lost.decided_in = 0;
    lost.kept.clear();
  }
  /// The worker's process is another one, which knows nothing.
  void forget(uint32_t worker) {
    std::erase_if(holds_, [worker](const auto& entry) { return entry.first.first == worker; });
  }

  protocol::Hello returning(uint32_t worker, uint64_t nonce) const {
    protocol::Hello hello = ScriptedCluster::hello(worker);
    hello.nonce = nonce;
    hello.returns = true;
    hello.has_weights = true;
    return hello;
  }
  void join_all_with_weights() {
    for (uint32_t shard = 0; shard < layout().shard_count; ++shard) {
      for (uint32_t worker = 0; worker < spec().workers; ++worker) welcome_with_weights(worker, shard);
    }
    for (uint32_t shard = 0; shard < layout().shard_count; ++shard) tick(shard);
    for (uint32_t worker = 0; worker < spec().workers; ++worker) deliver_all(worker);
  }
  void welcome_with_weights(uint32_t worker, uint32_t shard = 0) {
    protocol::Hello hello = ScriptedCluster::hello(worker);
    hello.has_weights = true;
    const protocol::Body answer = say_hello(worker, hello, shard);
    ASSERT_TRUE(std::holds_alternative<protocol::Welcome>(answer)) << worker;
  }

  /// The worker applies all the updates that it can of those that have come; everything else that has come is returned.
  std::vector<protocol::Message> deliver_all(uint32_t worker) {
    std::vector<protocol::Message> others;
    for (uint32_t shard = 0; shard < layout().shard_count; ++shard) {
      for (protocol::Message& message : take(worker, shard)) {
        const auto* update = std::get_if<protocol::Update>(&message.body);
        if (!update) {
          others.push_back(std::move(message));
          continue;
        }
        Holds& mine = holds(worker, update->part);
        if (update->step != mine.n) continue;
        mine.n = update->step + 1;
        mine.decided_in = update->decided_in;
        mine.branch = update->branch;
        mine.summary = update->summary;
        const uint64_t step = update->step;
        mine.kept[step] = std::move(message);
      }
    }
    return others;
  }
  template <typename T>
  static std::vector<T> of(const std::vector<protocol::Message>& messages) {
    std::vector<T> found;
    for (const protocol::Message& message : messages) {
      if (const T* body = std::get_if<T>(&message.body)) found.push_back(*body);
    }
    return found;
  }

  /// Lets all push the same constant into every part of the next step of part 0, and apply the updates.
  void step(const std::vector<uint32_t>& workers, float value = 1) {
    const uint64_t next = holds(workers.front()).n;
    for (const uint32_t worker : workers) {
      for (const protocol::PartLayout& part : layout().parts) {
        send(peer(worker), part.shard,
             contribution(worker, part.part, next, payload(std::vector<float>(64, value)), part.shard));
      }
    }
    for (const uint32_t worker : workers) deliver_all(worker);
  }

  protocol::State state_of(uint32_t worker) {
    protocol::State state;
    for (const protocol::PartLayout& part : layout().parts) {
      const Holds& mine = holds(worker, part.part);
      const uint64_t retained_from = mine.kept.empty() ? mine.n : mine.kept.begin()->first;
      state.parts.push_back({part.part, mine.n, mine.decided_in, mine.branch, retained_from});
    }
    return state;
  }
  void say(uint32_t worker, protocol::Body body, uint32_t shard = 0, SharedBytes bytes = {}) {
    send(peer(worker), shard, {header(worker, shard), std::move(body), std::move(bytes)});
  }
  /// The member says where it stands.
  void say_state(uint32_t worker, bool synced, uint32_t shard = 0, bool stranded = false) {
    protocol::State state = state_of(worker);
    state.synced = synced;
    state.stranded = stranded;
    say(worker, std::move(state), shard);
  }
  /// Answers a Fetch as the worker.
  void give(uint32_t worker, const protocol::Fetch& fetch, uint32_t shard = 0) {
    const Holds& mine = holds(worker, fetch.part);
    for (const auto& [step, message] : mine.kept) {
      if (step >= fetch.first_step) say(worker, message.body, shard, message.payload);
    }
    say(worker, protocol::Fetched{fetch.part, mine.n, mine.decided_in, mine.summary}, shard);
  }
  /// Answers each Fetch that has come; the rest is returned.
  std::vector<protocol::Message> give_all(uint32_t worker, uint32_t shard = 0) {
    const std::vector<protocol::Message> messages = deliver_all(worker);
    for (const protocol::Fetch& fetch : of<protocol::Fetch>(messages)) give(worker, fetch, shard);
    return messages;
  }
  /// Its weights of a part after n steps: the value n everywhere, in runs of `run` values.
  void give_weights(uint32_t worker, const protocol::SnapshotRequest& request, size_t run = 64, uint32_t shard = 0) {
    for (const uint32_t part : request.parts) {
      const uint64_t dimension = layout().parts[part].end - layout().parts[part].begin;
      for (uint64_t offset = 0; offset < dimension; offset += run) {
        const protocol::Message message = weights(worker, request, part, offset, std::min(run, dimension - offset));
        say(worker, message.body, shard, message.payload);
      }
    }
  }
  protocol::Message weights(uint32_t worker, const protocol::SnapshotRequest& request, uint32_t part, uint64_t offset,
                            size_t count) {
    const Holds& mine = holds(worker, part);
    const std::vector<float> values(count, static_cast<float>(mine.n));
    const auto* bytes = reinterpret_cast<const uint8_t*>(values.data());
    SharedBytes payload = SharedBytes::from(ByteBuffer(bytes, bytes + count * sizeof(float)));
    protocol::Snapshot body{part, request.for_worker, request.for_incarnation, mine.n, mine.decided_in, offset,
                            0,    mine.summary};
    body.payload_hash = hash64(payload.bytes);
    return {{}, body, std::move(payload)};
  }

  protocol::Membership membership() {
    const auto record = table().read_job(spec().name);
    EXPECT_TRUE(record && *record);
    return record && *record ? (*record)->membership : protocol::Membership{};
  }
  /// Time passes in which these workers are heard.
  void live(const std::vector<uint32_t>& workers, int64_t milliseconds, uint32_t shard = 0) {
    for (int64_t passed = 0; passed < milliseconds; passed += 100) {
      pass(100);
      for (const uint32_t worker : workers) say(worker, protocol::Heartbeat{}, shard);
    }
  }

 private:
  std::map<std::pair<uint32_t, uint32_t>, Holds> holds_;  ///< by worker and part
};

}  // namespace millrace::server
