#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "server/shard/shard_core.h"
#include "tests/sim/sim_disk.h"
#include "tests/sim/sim_world.h"
#include "tests/support/failing_table.h"

namespace millrace::testing {

/// A shard's processes, one after another: the production core, its table handle, its tasks, its disk.
class SimShard : public SimProcess {
 public:
  SimShard(SimWorld& world, uint32_t shard);

  /// The first start; later ones come only after a kill: two processes of one shard are another scenario.
  void start_first() {
    if (incarnation_ == 0) start();
  }
  void start_again() {
    if (was_killed_ && !alive()) start();
  }
  void kill();
  void shut_down();
  /// Makes the shard's calls of the table fail like this, or succeed again.
  void set_table_mode(FailingTable::Mode mode);
  bool is_closed(const protocol::PeerId& peer) const;
  /// Makes each call of the table that waits for an answer take up to `call_max`.
  void slow_table(TimeNs call_max) { table_call_max_ = call_max; }

  /// A message off a connection that `peer` opened.
  void deliver(const protocol::PeerId& peer, protocol::Message message);
  void deliver_reply(uint32_t from_shard, const protocol::Message& message);

  uint64_t incarnation() const { return incarnation_; }
  bool was_killed() const { return was_killed_; }
  bool was_shut_down() const { return was_shut_down_; }
  uint64_t removed() const { return removed_; }
  uint64_t refused() const { return refused_; }
  uint64_t digests_agreed() const { return digests_agreed_; }
  /// Comparisons of a part's weights with the replay, and starts after a kill that had weights again.
  uint64_t store_checks() const { return store_checks_; }
  uint64_t stores_found_again() const { return lives_with_store_.size(); }
  /// The weights that it holds are the replay of the log that they say they are of.
  void check_store();
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
  void wait_for_table();

  // sim_shard_store.cc
  void ask_disk(std::vector<server::StoreRequest>& requests);
  void serve_disk_later();
  void serve_disk();
  void leave_disk();
  void check_save(const std::string& job_name);
  void check_arrays(const std::string& what, uint32_t part, const server::StorePosition& position,
                    const server::StoreArrays& arrays);

  uint32_t shard_;
  uint64_t incarnation_ = 0;
  bool was_killed_ = false;
  bool was_shut_down_ = false;
  uint64_t removed_ = 0;
  uint64_t refused_ = 0;
  uint64_t digests_agreed_ = 0;
  std::unique_ptr<FailingTable> table_;
  TimeNs table_call_max_ = 0;
  std::unique_ptr<server::ShardCore> core_;
  std::set<uint32_t> connected_;  ///< shards that this one has opened a connection to
  SimDisk disk_;
  std::deque<server::StoreRequest> asked_of_disk_;
  bool disk_is_busy_ = false;
  uint64_t store_checks_ = 0;
  std::set<uint64_t> lives_with_store_;
};

}  // namespace millrace::testing
