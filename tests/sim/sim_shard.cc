#include "tests/sim/sim_shard.h"

#include "kernels/base/check.h"
#include "tests/sim/sim_worker.h"
#include "tests/support/memory_table.h"

namespace millrace::testing {

SimShard::SimShard(SimWorld& world, uint32_t shard)
    : SimProcess(world, "shard " + std::to_string(shard)), shard_(shard) {}

void SimShard::start() {
  core_.reset();  // before the table that it uses
  table_ = std::make_unique<FailingTable>(millrace::testing::open_memory_table(world_.table_state));
  const auto incarnation =
      table_->start_shard(shard_, world_.scenario.shards, "tcp://sim:" + std::to_string(7'000 + shard_));
  MILLRACE_CHECK(incarnation.has_value(), shard_);
  incarnation_ = *incarnation;
  table_call_max_ = 0;
  table_->draw_effect = [this] { return static_cast<FailingTable::Effect>(world_.scheduler.draw(0, 2)); };
  table_->later = [this](std::function<void()> write) {
    // Also once the process is dead: its request is on its way.
    world_.scheduler.after(world_.scheduler.draw(0, kNsPerS), [this, write = std::move(write)] {
      write();
      world_.watch_table();
    });
  };
  if (incarnation_ > 1) world_.oracle.on_shard_restart();
  server::ShardConfig config;
  config.shard = shard_;
  config.shard_count = world_.scenario.shards;
  config.incarnation = incarnation_;
  config.software = "sim";
  config.codec_costs.link_bits_per_s = world_.scenario.link_rate;
  config.saves = {world_.scenario.store_saves, world_.scenario.store_every};
  if (world_.scenario.job_memory_bytes > 0) config.limits.job_memory_bytes_max = world_.scenario.job_memory_bytes;
  config.is_closed = [this](const protocol::PeerId& peer) { return is_closed(peer); };
  core_ = std::make_unique<server::ShardCore>(config, *table_, now());
  connected_.clear();
  set_alive(true);
  world_.trace(name() + " starts, incarnation " + std::to_string(incarnation_));
  arm(core_->next_deadline());
}

/// A dead process has closed its connections, unless the network loses that news.
bool SimShard::is_closed(const protocol::PeerId& peer) const {
  if (!peer.bytes.starts_with('w')) return false;
  const SimPeer from = SimPeer::from(peer);
  const SimWorker& worker = *world_.workers[from.number];
  const std::optional<TimeNs> since = worker.closed_since(shard_, from.connection);
  if (!since || world_.network.blocked(world_.worker_node(worker.worker()), shard_)) return false;
  return world_.scheduler.now() - *since >= 400 * kNsPerMs;  // three looks
}

void SimShard::set_table_mode(FailingTable::Mode mode) {
  if (table_) table_->mode = mode;
}

/// Stalls the process for the time of its calls of a slow table.
void SimShard::wait_for_table() {
  TimeNs waited = 0;
  for (int64_t calls = std::exchange(table_->calls, 0); calls > 0 && table_call_max_ > 0; --calls)
    waited += world_.scheduler.draw(0, table_call_max_);
  if (waited > 0) stall_until(world_.scheduler.now() + waited);
}

void SimShard::kill() {
  if (!alive()) return;
  world_.trace(name() + " is killed");
  was_killed_ = true;
  leave_disk();
  set_alive(false);
  core_.reset();
  for (const auto& worker : world_.workers) worker->lose_connection(shard_, "the shard's process is gone");
}

void SimShard::shut_down() {
  run([this] {
    world_.trace(name() + " gets the order to shut down");
    was_shut_down_ = true;
    server::Actions actions;
    core_->begin_shutdown(now(), actions);
    after_call(actions);
  });
}

void SimShard::deliver(const protocol::PeerId& peer, protocol::Message message) {
  run([this, peer, message = std::move(message)] {
    world_.trace("  " + name() + " <- " + peer.bytes + ": " + (world_.tracing ? describe_message(message) : ""));
    server::Actions actions;
    core_->on_message(peer, message, now(), actions);
    after_call(actions);
  });
}

void SimShard::deliver_reply(uint32_t from_shard, const protocol::Message& message) {
  run([this, from_shard, message] {
    server::Actions actions;
    core_->on_shard_reply(from_shard, message, now(), actions);
    after_call(actions);
  });
}

void SimShard::tick() {
  server::Actions actions;
  core_->on_tick(now(), actions);
  after_call(actions);
}

void SimShard::after_call(server::Actions& actions) {
  // The table first: an update that this call decided may name an epoch that this call made.
  world_.watch_table();
  wait_for_table();
  carry_out(std::move(actions));
  if (!alive()) return;
  if (core_->stopped()) {
    world_.trace(name() + " has stopped" + (core_->failure() ? ": " + core_->failure()->message : ""));
    set_alive(false);
    for (const auto& worker : world_.workers) worker->lose_connection(shard_, "the shard has stopped");
    return;
  }
  arm(core_->next_deadline());
}

void SimShard::carry_out(server::Actions&& actions) {
  for (const auto& line : actions.log) world_.trace("  " + name() + " says: " + line.text);
  for (const auto& metric : actions.metrics) {
    const bool approximate =
        metric.metric == server::Metric::kExchangeFallbacks || metric.metric == server::Metric::kRestarted;
    if (approximate) world_.oracle.on_approximate_cut();
    if (metric.metric == server::Metric::kMembersRemoved) ++removed_;
    if (metric.metric == server::Metric::kRefused) ++refused_;
    if (metric.metric == server::Metric::kDigests && metric.label == "agree") ++digests_agreed_;
    if (metric.metric == server::Metric::kDigests && metric.label == "differ") {
      world_.fault(name() + ": a worker's digest is not that of the decided updates");
    }
    if (metric.metric == server::Metric::kAuditImbalance) {
      world_.fault(name() + " audit: an update differs from the sum that it carries by " +
                   std::to_string(metric.value));
    }
    if (metric.metric == server::Metric::kDropped || metric.metric == server::Metric::kRefused) {
      world_.trace("  " + name() + " drops or refuses: " + std::string(metric.label));
    }
  }
  for (const auto& send : actions.to_peers) send_to_peer(send);
  for (const auto& connect : actions.connects) connected_.insert(connect.shard);
  for (const auto& send : actions.to_shards) send_to_shard(send);
  for (const auto& task : actions.tasks) start_task(task);
  ask_disk(actions.store_requests);
}

void SimShard::send_to_peer(const server::SendToPeer& send) {
  world_.oracle.on_sent_by_shard(send.message);
  world_.scheduler.note(fingerprint(send.message));
  if (world_.tracing) world_.trace(name() + " -> " + send.to.bytes + ": " + describe_message(send.message));
  if (send.to.bytes[0] == 'x') return;  // a stranger: any message to it
  const SimPeer peer = SimPeer::from(send.to);
  if (peer.is_shard) {
    world_.network.send(shard_, peer.number, send.message, [this, peer](const protocol::Message& message) {
      world_.shards[peer.number]->deliver_reply(shard_, message);
    });
    return;
  }
  if (peer.number >= world_.workers.size()) return world_.fault(name() + " sends to a worker that does not exist");
  SimWorker& worker = *world_.workers[peer.number];
  world_.network.send(shard_, world_.worker_node(worker.worker()), send.message,
                      [this, &worker, peer](protocol::Message message) {
                        worker.deliver(shard_, peer.connection, std::move(message));
                      });
}

void SimShard::send_to_shard(const server::SendToShard& send) {
  world_.scheduler.note(fingerprint(send.message));
  if (world_.tracing)
    world_.trace(name() + " -> shard " + std::to_string(send.shard) + ": " + describe_message(send.message));
  if (send.shard >= world_.shards.size() || send.shard == shard_)
    return world_.fault(name() + " sends to itself, or to no shard");
  if (!connected_.contains(send.shard))
    return world_.fault(name() + " sends to shard " + std::to_string(send.shard) + " without a connection");
  SimShard& other = *world_.shards[send.shard];
  const protocol::PeerId peer = SimPeer{.is_shard = true, .number = shard_, .connection = incarnation_}.id();
  world_.network.send(shard_, send.shard, send.message,
                      [&other, peer](protocol::Message message) { other.deliver(peer, std::move(message)); });
}

void SimShard::start_task(const std::shared_ptr<server::Task>& task) {
  if (world_.scenario.task_max == 0) return finish_task(task);
  const TimeNs takes = world_.scheduler.draw(0, world_.scenario.task_max);
  world_.scheduler.after(
      takes, [this, generation = generation(), task] { run_in(generation, [this, task] { finish_task(task); }); });
}

void SimShard::finish_task(const std::shared_ptr<server::Task>& task) {
  if (!alive()) return;
  task->run();
  server::Actions actions;
  core_->on_task_done(task, now(), actions);
  after_call(actions);
}

}  // namespace millrace::testing
