#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernels/base/clock.h"
#include "protocol/messages.h"
#include "protocol/peer_id.h"
#include "protocol/table.h"
#include "server/actions.h"
#include "server/limits.h"
#include "server/status.h"

namespace millrace::server {

class Job;

struct ShardConfig {
  uint32_t shard = 0;
  uint32_t shard_count = 1;
  uint64_t life = 0;        ///< from MembershipTable::start_shard
  std::string software = "millrace";
  Limits limits;
};

/// One shard: its jobs, its limits, who is who. A state machine: (state, message, now) -> actions, no socket, clock or thread.
/// The one effect inside is the membership table, which is read and swapped synchronously (it is the sole judge of membership,
/// and a decision that waited for it would need a state of its own); its errors are logged, counted and tried again.
///
/// Actions   every method appends to `actions`; the caller carries them out in order after the method has returned.
/// Time      `now` never goes back. Nothing happens by itself: call on_tick() at next_deadline(), or earlier.
/// Hostile   any message from any peer in any order: it is admitted, answered or dropped, and counted; it never corrupts a round.
/// Threads   one at a time (the loop's). Tasks run anywhere.
class ShardCore {
 public:
  /// REQUIRES: start_shard() of this table gave config.life; `table` outlives the core.
  ShardCore(ShardConfig config, protocol::MembershipTable& table, TimeNs now);
  ~ShardCore();
  ShardCore(const ShardCore&) = delete;
  ShardCore& operator=(const ShardCore&) = delete;

  /// A message off a connection that a worker or another shard opened to this one.
  void on_message(const protocol::PeerId& from, protocol::Message message, TimeNs now, Actions& actions);

  /// A message that came back over the connection that this shard opened to shard `shard` (ConnectShard): a Refuse.
  void on_shard_reply(uint32_t shard, const protocol::Message& message, TimeNs now, Actions& actions);

  /// A message that the transport could not decode: counted, never answered.
  void on_malformed(const Error& error, TimeNs now, Actions& actions);

  /// A task of an earlier Actions::tasks whose run() has returned.
  void on_task_done(const std::shared_ptr<Task>& task, TimeNs now, Actions& actions);

  /// Deadlines: silent members, silent shards, the table's change counter, the end of draining.
  void on_tick(TimeNs now, Actions& actions);

  /// When on_tick() has something to do at the latest.
  TimeNs next_deadline() const;

  /// Stops admitting new jobs and steps; rounds in flight may finish for limits.drain_ms. Then every member is told Goodbye(kShutdown),
  /// the jobs end in the table, and stopped() holds.
  void begin_shutdown(TimeNs now, Actions& actions);

  /// Nothing more will happen: the process may exit once its sends are flushed.
  bool stopped() const { return stopped_; }

  /// Why it stopped by itself (another process has started under this shard's number); empty after an orderly shutdown.
  const std::optional<Error>& failure() const { return failure_; }

  StatusReport status(TimeNs now) const;

 private:
  ShardConfig config_;
  protocol::MembershipTable& table_;
  bool stopped_ = false;
  std::optional<Error> failure_;
  std::map<uint64_t, std::unique_ptr<Job>> jobs_;
};

}  // namespace millrace::server
