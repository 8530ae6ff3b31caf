#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/result.h"
#include "protocol/base/arriving_bytes.h"
#include "protocol/base/limits.h"
#include "protocol/job/layout.h"
#include "protocol/messages/messages.h"
#include "worker/core/actions.h"

namespace millrace::worker {

/// Identifies the caller that waits for a request. The client does not read it.
struct PullCall;

/// Sends a worker's requests to the shards' stores: pulls, and first weights to place. Pure, beside SessionCore: the
/// rounds do not depend on it. It repeats requests that were lost with a connection, or to a full queue. An answer
/// restarts the time-out of the requests that were sent with it or later: over a slow link they wait behind it. First
/// weights are sent again over a new connection. Over the same one they are sent again if the shard says that it has
/// dropped them, or after a long time.
///
/// The driver calls ask(). It calls advance() at once, after every message and no later than next_deadline(), and
/// on_pulled() for every Pulled.
class StoreClient {
 public:
  struct Config {
    TimeNs resend_after = 2 * kNsPerS;  ///< doubles
    TimeNs resend_after_max = 30 * kNsPerS;
    /// A shard that has no room is asked again. First weights that it has dropped are placed again; this doubles.
    TimeNs busy_after = 100 * kNsPerMs;
    /// First weights are placed again: the shard may have dropped a run. Doubles. More than most saves of them take.
    TimeNs place_again_after = 10 * kNsPerS;
  };
  static constexpr size_t kInFlightMax = 16;  ///< at a shard, which lets 64 of a worker wait

  explicit StoreClient(Config config) : config_(config) {}

  /// Asks for at most kPullValuesMax of a part's weights: the range, or the runs at `indices` of the part. Runs are in
  /// order and do not overlap.
  struct Request {
    uint32_t part = 0;
    uint32_t shard = 0;
    uint64_t at_least = 0;  ///< steps that the caller demands
    /// Steps of the part that this worker had. The answer has them too, unless the worker has gone back meanwhile.
    uint64_t own_steps = 0;
    uint64_t offset = 0;
    uint64_t count = 0;
    /// u32 each, shared with the messages that ask for them; none: the range.
    SharedBytes indices;
    uint32_t run = 1;  ///< entries from each index on
    /// First weights of the part, one run after another and complete. The lowest member places them. Such a request
    /// pulls nothing. They stay the caller's until the request is done.
    std::vector<std::span<const float>> place;
    /// The caller's, handed back with the answer.
    PullCall* call = nullptr;
    std::span<float> out = {};
  };
  struct Done {
    uint64_t id = 0;
    uint64_t n = 0;
    SharedBytes values;  ///< as many as were asked for
    std::optional<Error> error;
    PullCall* call = nullptr;
    std::span<float> out = {};
  };
  /// Holds the link to each shard; empty: the shard cannot be reached now.
  struct Reach {
    std::vector<std::optional<ShardLink>> shards;
    /// This worker, as the lowest member, places first weights.
    bool places = false;
    /// By shard: much waits to be sent there. No weights are placed there meanwhile. Empty: nowhere.
    std::vector<bool> queued = {};
    /// By shard: something still leaves. Nothing is sent again meanwhile. Empty: nowhere.
    std::vector<bool> sending = {};
    /// Returns the steps of a part that this worker has. A rejoin off the log lowers them. Empty: no rejoin did.
    std::function<uint64_t(uint32_t part)> steps_applied = {};
  };

  /// Its number, from 1.
  uint64_t ask(Request request);
  /// Asks for all of them, or for none where memory runs out. Returns the first one's number; the others follow.
  uint64_t ask_all(std::span<Request> requests);
  /// Withdraws a request. The client does not read its `place` any more.
  void cancel(uint64_t id) { pending_.erase(id); }
  bool idle() const { return pending_.empty(); }

  void on_pulled(const protocol::Message& message, TimeNs now, std::vector<Done>& done);
  /// Notes that bytes came from the shard, perhaps of an answer that has not ended: it delays the time-outs there. Few
  /// bytes do not, and each request has a limit, so that other traffic cannot hide a lost answer.
  void on_received(uint32_t shard, uint64_t bytes, TimeNs now);
  void advance(const Reach& reach, TimeNs now, Actions& actions);
  TimeNs next_deadline() const;

 private:
  static constexpr TimeNs kNever = INT64_MAX;
  /// For this time a request may wait behind a queue that is never empty. Then it may be lost.
  static constexpr TimeNs kLeavingMax = 60 * kNsPerS;

  struct Pending {
    Request request;
    bool sent = false;
    bool placed = false;    ///< its weights were sent
    TimeNs place_at = 0;    ///< the shard has dropped them: they are sent again then; 0: it has not
    TimeNs place_wait = 0;  ///< the last wait for that
    uint64_t at_least = 0;  ///< as last sent
    TimeNs sent_at = 0;
    TimeNs again_at = 0;
    TimeNs interval = 0;
    protocol::ArrivingBytes arriving;  ///< from the shard since it was sent
  };
  /// Identifies the peer that got the last requests of a shard. Another peer gets them again.
  struct Peer {
    uint64_t incarnation = 0;
    uint64_t shard_incarnation = 0;
    bool reached = false;
    TimeNs place_again_at = kNever;  ///< all first weights, if it has not answered
    TimeNs place_interval = 0;
  };
  static uint64_t at_least_of(const Request& request) { return std::max(request.at_least, request.own_steps); }
  void forget_lost_sends(const Reach& reach);
  void extend_deadlines(const Pending& answered, TimeNs now);
  void forget_old_places(const Reach& reach, TimeNs now);
  void forget_dropped_place(uint32_t part, TimeNs now);
  static TimeNs again_at(Pending& pending, const Reach& reach, TimeNs now);
  void send_weights(Pending& pending, const ShardLink& link, TimeNs now, Actions& actions);
  void send(uint64_t id, Pending& pending, const ShardLink& link, TimeNs now, Actions& actions) const;

  Config config_;
  uint64_t next_id_ = 1;
  std::map<uint64_t, Pending> pending_;
  std::vector<Peer> peers_;
  bool places_left_ = false;  ///< after this turn's, which were one part a shard
};

}  // namespace millrace::worker
