#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "protocol/messages/frame.h"
#include "protocol/table/membership_table.h"
#include "server/shard/shard_core.h"
#include "tests/support/memory_table.h"
#include "worker/core/session_core.h"

namespace millrace::testing {

/// A message as it travelled, in either direction.
struct SessionFrames {
  bool from_worker = false;
  uint32_t worker = 0;
  TimeNs at = 0;
  std::string kind;
  ByteBuffer envelope;
  ByteBuffer payload;
};

/// Runs a job of two workers on one shard, from the first Hello to the last Goodbye, with the production cores of both
/// sides. Messages travel as bytes. Time passes only where the caller moves it.
class SessionRun {
 public:
  SessionRun();

  /// Says Hello for the worker and delivers the answers to it.
  void connect(uint32_t worker);
  /// The worker's gradient of the next step, as entries.
  void push(uint32_t worker, const std::vector<uint32_t>& indices, const std::vector<float>& values);
  /// Until the next thing that a core does by itself.
  void pass_to_next_deadline();
  void finish(uint32_t worker);

  TimeNs now() const { return now_; }
  const worker::SessionCore& core(uint32_t worker) const { return *workers_[worker]; }
  /// Returns the sum of the worker's updates.
  const std::vector<float>& weights(uint32_t worker) const { return weights_[worker]; }
  const std::vector<SessionFrames>& frames() const { return frames_; }

  static constexpr TimeNs kStart = 1'000 * kNsPerMs;
  static protocol::JobSpec spec();

 private:
  void carry_out(uint32_t worker, worker::Actions& actions);
  void carry_out(server::Actions& actions);
  protocol::Message travel(bool from_worker, uint32_t worker, const protocol::Message& message);
  void deliver();
  void turn(uint32_t worker);

  TimeNs now_ = kStart;
  std::unique_ptr<protocol::MembershipTable> table_;
  std::unique_ptr<server::ShardCore> shard_;
  std::vector<std::unique_ptr<worker::SessionCore>> workers_;
  std::vector<bool> is_connected_;
  std::vector<std::vector<float>> weights_;
  std::vector<SessionFrames> frames_;
  struct OnTheWay {
    bool to_shard = false;
    uint32_t worker = 0;
    protocol::Message message;
  };
  std::deque<OnTheWay> on_the_way_;
};

}  // namespace millrace::testing
