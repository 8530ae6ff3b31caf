#include "tests/protocol/vectors/session_run.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/stream/stream.h"

namespace millrace::testing {
namespace {

constexpr uint32_t kSessionWorkers = 2;
constexpr uint64_t kSessionDimension = 16;
constexpr const char* kShardAddress = "tcp://127.0.0.1:7600";
constexpr std::string_view kPeerPrefix = "worker-";

protocol::PeerId peer_of(uint32_t worker) { return {std::string(kPeerPrefix) + std::to_string(worker)}; }

uint32_t worker_of(const protocol::PeerId& peer) {
  return static_cast<uint32_t>(std::stoul(peer.bytes.substr(kPeerPrefix.size())));
}

}  // namespace

protocol::JobSpec SessionRun::spec() {
  protocol::JobSpec spec;
  spec.name = "demo";
  spec.workers = kSessionWorkers;
  spec.tensors.push_back({.name = "w", .dimension = kSessionDimension});
  return spec;
}

SessionRun::SessionRun() : table_(open_memory_table(make_memory_table_state())), is_connected_(kSessionWorkers, false) {
  const Result<uint64_t> incarnation = table_->start_shard(0, 1, kShardAddress);
  EXPECT_TRUE(incarnation);
  server::ShardConfig config;
  config.incarnation = incarnation.value_or(0);
  shard_ = std::make_unique<server::ShardCore>(std::move(config), *table_, now_);
  for (uint32_t worker = 0; worker < kSessionWorkers; ++worker) {
    worker::CoreConfig of_worker;
    of_worker.worker = worker;
    of_worker.nonce = 0x1000 + worker;
    of_worker.spec = spec();
    of_worker.shard_addresses = {kShardAddress};
    workers_.push_back(std::make_unique<worker::SessionCore>(std::move(of_worker)));
    weights_.emplace_back(kSessionDimension, 0.0F);
  }
}

protocol::Message SessionRun::travel(bool from_worker, uint32_t worker, const protocol::Message& message) {
  SessionFrames frames;
  frames.from_worker = from_worker;
  frames.worker = worker;
  frames.at = now_;
  frames.kind = protocol::body_name(message.body);
  frames.envelope = encode_envelope(message);
  frames.payload.assign(message.payload.bytes.begin(), message.payload.bytes.end());
  auto arrived = protocol::decode_message(frames.envelope, SharedBytes::from(ByteBuffer(frames.payload)), {});
  EXPECT_TRUE(arrived) << frames.kind;
  frames_.push_back(std::move(frames));
  return arrived ? std::move(*arrived) : message;
}

void SessionRun::carry_out(uint32_t worker, worker::Actions& actions) {
  for (const worker::DeliveredUpdate& update : actions.delivered) {
    const Stream sum = to_dense(update.sum.view);
    for (size_t i = 0; i < sum.values.size(); ++i) weights_[worker][update.begin + i] += sum.values[i];
  }
  for (const worker::SendAction& send : actions.sends) {
    on_the_way_.push_back({true, worker, travel(true, worker, send.message)});
  }
  const bool connects = !actions.connects.empty() && !is_connected_[worker];
  actions.clear();
  if (!connects) return;
  is_connected_[worker] = true;
  worker::Actions next;
  workers_[worker]->on_connected(0, now_, next);
  carry_out(worker, next);
}

void SessionRun::carry_out(server::Actions& actions) {
  for (server::SendToPeer& send : actions.to_peers) {
    const uint32_t worker = worker_of(send.to);
    on_the_way_.push_back({false, worker, travel(false, worker, send.message)});
  }
  const auto tasks = std::move(actions.tasks);
  actions.clear();
  for (const std::shared_ptr<server::Task>& task : tasks) {
    task->run();
    server::Actions next;
    shard_->on_task_done(task, now_, next);
    carry_out(next);
  }
}

void SessionRun::turn(uint32_t worker) {
  worker::Actions actions;
  while (workers_[worker]->work(now_, actions)) {
  }
  workers_[worker]->end_pass(now_, actions);
  carry_out(worker, actions);
}

void SessionRun::deliver() {
  while (!on_the_way_.empty()) {
    OnTheWay next = std::move(on_the_way_.front());
    on_the_way_.pop_front();
    if (next.to_shard) {
      server::Actions actions;
      shard_->on_message(peer_of(next.worker), std::move(next.message), now_, actions);
      carry_out(actions);
    } else {
      worker::Actions actions;
      workers_[next.worker]->on_message(0, std::move(next.message), now_, actions);
      carry_out(next.worker, actions);
      turn(next.worker);
    }
  }
}

void SessionRun::connect(uint32_t worker) {
  worker::Actions actions;
  workers_[worker]->start(now_, actions);
  carry_out(worker, actions);
  deliver();
}

void SessionRun::push(uint32_t worker, const std::vector<uint32_t>& indices, const std::vector<float>& values) {
  const auto pushed = workers_[worker]->push_sparse(0, indices, values, 1, now_);
  EXPECT_TRUE(pushed) << pushed.error().message;
  turn(worker);
  deliver();
}

void SessionRun::pass_to_next_deadline() {
  TimeNs next = shard_->next_deadline();
  for (const auto& worker : workers_) next = std::min(next, worker->next_deadline());
  now_ = std::max(now_ + 1, next);
  server::Actions actions;
  shard_->on_tick(now_, actions);
  carry_out(actions);
  for (uint32_t worker = 0; worker < kSessionWorkers; ++worker) {
    worker::Actions of_worker;
    workers_[worker]->on_tick(now_, of_worker);
    carry_out(worker, of_worker);
  }
  deliver();
}

void SessionRun::finish(uint32_t worker) {
  worker::Actions actions;
  const Status asked = workers_[worker]->finish(now_, actions);
  EXPECT_TRUE(asked) << asked.error().message;
  carry_out(worker, actions);
  turn(worker);
  deliver();
}

}  // namespace millrace::testing
