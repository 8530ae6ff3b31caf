#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "server/shard_core.h"
#include "tests/sim/sim_world.h"
#include "tests/support/failing_table.h"

namespace millrace::testing {

/// A shard's process: the production core, its table handle, its tasks.
class SimShard : public SimProcess {
 public:
  SimShard(SimWorld& world, uint32_t shard);

  /// The first start; later ones come only after a kill: two processes of one shard are another scenario.
  void start_first() {
    if (life_ == 0) start();
  }
  void start_again() {
    if (was_killed_ && !alive()) start();
  }
  void kill();
  void shut_down();
  /// What it writes to the table fails, or no longer does.
  void fail_table_writes(bool fail_them);

  /// A message off a connection that `peer` opened.
  void deliver(const protocol::PeerId& peer, protocol::Message message);
  void deliver_reply(uint32_t from_shard, const protocol::Message& message);

  uint64_t life() const { return life_; }
  bool was_killed() const { return was_killed_; }
  bool was_shut_down() const { return was_shut_down_; }
  uint64_t removed() const { return removed_; }
  uint64_t refused() const { return refused_; }
  uint64_t digests_agreed() const { return digests_agreed_; }
  const server::ShardCore* core() const { return core_.get(); }

 private:
  void start();
  void tick() override;
  TimeNs deadline() const override { return core_->next_deadline(); }
  void carry_out(server::Actions&& actions);
  void send_to_peer(const server::SendToPeer& send);
  void send_to_shard(const server::SendToShard& send);
  void start_task(const std::shared_ptr<server::Task>& task);
  void finish_task(const std::shared_ptr<server::Task>& task);
  void after_call(server::Actions& actions);

  uint32_t shard_;
  uint64_t life_ = 0;
  bool was_killed_ = false;
  bool was_shut_down_ = false;
  uint64_t removed_ = 0;
  uint64_t refused_ = 0;
  uint64_t digests_agreed_ = 0;
  std::unique_ptr<FailingTable> table_;
  std::unique_ptr<server::ShardCore> core_;
  std::set<uint32_t> connected_;  ///< shards that this one has opened a connection to
};

}  // namespace millrace::testing
