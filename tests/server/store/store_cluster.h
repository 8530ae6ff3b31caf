#pragma once

#include <bit>
#include <cstring>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/random.h"
#include "tests/server/scripted_cluster.h"

/// Scripted clusters whose jobs have a store.
namespace millrace::server {

inline const JobStore::Saves kSaves = {true, 0};

inline std::vector<float> constant(float value, size_t dimension = 64) { return std::vector<float>(dimension, value); }

inline protocol::JobSpec store_job(uint32_t workers, std::string_view optimizer, uint64_t dimension = 64) {
  protocol::JobSpec spec = ScriptedCluster::small_job(workers, dimension);
  spec.store.optimizer = optimizer_from_text(optimizer).value();
  return spec;
}

inline SharedBytes bytes_of(const std::vector<float>& values) {
  ByteBuffer bytes(values.size() * sizeof(float));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return SharedBytes::from(std::move(bytes));
}

inline SharedBytes bytes_of_indices(const std::vector<uint32_t>& indices) {
  ByteBuffer bytes(indices.size() * sizeof(uint32_t));
  if (!bytes.empty()) std::memcpy(bytes.data(), indices.data(), bytes.size());
  return SharedBytes::from(std::move(bytes));
}

struct PulledAnswer {
  protocol::Pulled body;
  std::vector<float> values;
};

/// A cluster of which weights can be pulled.
struct Stores : ScriptedCluster {
  using ScriptedCluster::ScriptedCluster;

  void ask(uint32_t worker, const protocol::Pull& pull, const SharedBytes& indices = {}) {
    const uint32_t shard = pull.part < layout().parts.size() ? layout().parts[pull.part].shard : 0;
    send(peer(worker), shard, {header(worker, shard), pull, indices});
  }
  std::vector<PulledAnswer> answers(uint32_t worker, uint32_t shard = 0) {
    std::vector<PulledAnswer> found;
    for (const protocol::Message& message : take(worker, shard)) {
      const auto* pulled = std::get_if<protocol::Pulled>(&message.body);
      if (!pulled) continue;
      PulledAnswer& answer = found.emplace_back(PulledAnswer{*pulled, std::vector<float>(pulled->values)});
      if (pulled->values != 0)
        std::memcpy(answer.values.data(), message.payload.bytes.data(), message.payload.bytes.size());
      EXPECT_EQ(pulled->payload_hash, pulled->values == 0 ? 0 : hash64(message.payload.bytes));
    }
    return found;
  }
  PulledAnswer pull(uint32_t worker, const protocol::Pull& pull, const SharedBytes& indices = {}) {
    const uint32_t shard = pull.part < layout().parts.size() ? layout().parts[pull.part].shard : 0;
    take(worker, shard);
    ask(worker, pull, indices);
    std::vector<PulledAnswer> found = answers(worker, shard);
    EXPECT_EQ(found.size(), 1u);
    return found.empty() ? PulledAnswer{} : found[0];
  }
  /// Returns the weights of bucket 0, with all parts after `n` steps.
  std::vector<float> weights(uint64_t n) {
    std::vector<float> all;
    for (const protocol::PartLayout& part : layout().parts) {
      const PulledAnswer answer = pull(0, {.id = 9, .part = part.part, .at_least = n, .count = part.end - part.begin});
      EXPECT_EQ(answer.body.n, n);
      all.insert(all.end(), answer.values.begin(), answer.values.end());
    }
    return all;
  }
  void push_all(uint64_t step, const std::vector<float>& gradient) {
    for (uint32_t worker = 0; worker < spec().workers; ++worker) push(worker, step, gradient);
  }
  void step_all(uint64_t step, const std::vector<float>& gradient) {
    push_all(step, gradient);
    for (uint32_t worker = 0; worker < spec().workers; ++worker) ack(worker, step + 1);
  }
  void finish_all() {
    for (uint32_t worker = 0; worker < spec().workers; ++worker) {
      send(peer(worker), 0, {header(worker), protocol::Goodbye{protocol::Goodbye::Reason::kFinished, ""}, {}});
    }
    for (uint32_t shard = 1; shard < 2 && layout().shard_count > 1; ++shard) pass(100);
  }
  /// Runs the tasks that are held in an order that is drawn.
  void run_in_any_order(RandomSequence& random) {
    while (!held_tasks().empty()) run_held_task(random.next_below(held_tasks().size()));
  }
};

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::ranges::equal(
      a, b, {}, [](float x) { return std::bit_cast<uint32_t>(x); }, [](float x) { return std::bit_cast<uint32_t>(x); });
}

/// Carries out the oldest request of a disk that holds them. REQUIRES: it is no load.
inline void serve_one_write(ScriptedCluster& cluster) {
  ASSERT_FALSE(cluster.disk.asked.empty());
  const auto [shard, request] = std::move(cluster.disk.asked.front());
  cluster.disk.asked.pop_front();
  Actions next;
  cluster.core(shard).on_store_written(request.job, cluster.disk.write(shard, request), cluster.now, next);
  cluster.carry_out(shard, next);
}

inline std::map<uint32_t, float> entries_of(const std::vector<float>& dense) {
  std::map<uint32_t, float> entries;
  for (uint32_t index = 0; index < dense.size(); ++index) entries[index] = dense[index];
  return entries;
}

inline std::vector<float> drawn(uint64_t dimension, RandomSequence& random) {
  std::vector<float> gradient(dimension);
  for (float& one : gradient) {
    if (random.next_below(4) == 0) one = static_cast<float>(static_cast<int>(random.next_below(17)) - 8) * 0.3F;
  }
  return gradient;
}

}  // namespace millrace::server
