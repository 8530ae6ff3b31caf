#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/clock.h"
#include "kernels/base/result.h"
#include "protocol/datagram/key.h"
#include "protocol/datagram/packet_sink.h"
#include "protocol/job/job_spec.h"
#include "protocol/job/switch_layout.h"
#include "protocol/messages/messages.h"
#include "worker/switch/switch_client.h"
#include "worker/switch/switch_probe.h"

namespace millrace::worker {

/// Gives a session of path switch its means beside the shards. Memberships name the decider of each epoch.
struct SwitchAccess {
  protocol::JobKey key{};
  protocol::PacketSink* sink = nullptr;  ///< outlives the session's core
  std::function<Result<protocol::Endpoint>(std::string_view)> resolve = {};
  /// This worker's rack adds up in front of the switch that the specification names. It knows no other decider: in
  /// epochs that another one decides, contributions go straight there.
  std::optional<protocol::Endpoint> rack = {};
};

/// Holds the results of one step in all buckets, indices of the switch's array (protocol::SwitchLayout).
struct SwitchStepDone {
  struct Window {
    uint32_t contributors = 0;
    bool counted = false;  ///< this worker is among them
    uint32_t decided_epoch = 0;
    uint32_t number = 0;
    size_t first = 0;  ///< of `indices` and `sums`
    size_t last = 0;
    double step = 0;  ///< of the grid
  };
  std::vector<Window> windows;  ///< those that had a turn, ascending
  // The update: ascending within a window, the windows in the order in which their results arrived.
  Buffer<uint16_t> indices;  ///< in the window
  Buffer<int32_t> sums;      ///< x the window's step
  /// Settled entries of begin_step(): the range [first, last).
  struct Offered {
    size_t first = 0;
    size_t last = 0;
    double step = 0;     ///< of the grid
    uint32_t begin = 0;  ///< of their window in the array
    /// The update omits a part of it: this worker's rack truncated its sum, or this worker is no contributor.
    bool is_incomplete = false;
    /// First index where the update has this worker's value: of `kept` where `is_incomplete`, else of `indices`.
    size_t first_index = 0;
    size_t last_index = 0;
  };
  /// Ascending. For entries in no element, no worker knows the outcome.
  std::vector<Offered> offered;
  std::shared_ptr<const StepOffer> offer;
  std::vector<uint16_t> retained_indices;  ///< in the window

  /// Returns the indices in the window, ascending, at which the update has this worker's values.
  std::span<const uint16_t> applied(const Offered& of) const {
    return (of.is_incomplete ? std::span(retained_indices) : std::span<const uint16_t>(indices))
        .subspan(of.first_index, of.last_index - of.first_index);
  }
};

struct SwitchPathStatus {
  bool at_switch = false;  ///< the present epoch's decider
  bool at_rack = false;    ///< contributions go to this worker's rack first at present
  uint64_t fallbacks = 0;  ///< from the switch to a shard
  uint64_t came_back = 0;  ///< and to the switch again
  SwitchClientCounters client;
};

/// Connects a session to the decider of its job's steps. Consists of a SwitchClient for all buckets, the probe of a
/// switch that the job left, and a step's results until the step is over. Pure: the caller gives the time, and packets
/// go into the sink.
/// Threads  one at a time.
class SwitchPath final : private SwitchOutcome {
 public:
  /// nonce_seed: random, of its own for each process.
  SwitchPath(const protocol::JobSpec& spec, const protocol::JobLayout& layout, uint32_t worker, SwitchAccess access,
             uint64_t nonce_seed);

  const protocol::SwitchLayout& layout() const { return layout_; }

  /// Takes an adopted membership of a started job: an epoch of the client. Returns a text for the log; empty: none.
  /// Errors   limit_exceeded: epochs are 32 bits on this path.
  Result<std::string> follow(const protocol::Membership& membership, TimeNs now);

  /// Begins a step. Errors   as SwitchClient::begin_valid_step(). REQUIRES: `entries` as StepOffer describes.
  Status begin_step(uint64_t step, const SharedStream& entries, TimeNs now);
  void receive(const protocol::ReceivedPacket& packet, TimeNs now);
  void tick(TimeNs now);
  TimeNs next_deadline() const;
  /// Returns the results of the step that is over, once.
  std::optional<SwitchStepDone> take_done();
  /// Takes a step's memory back, for another step.
  void recycle_buffers(SwitchStepDone&& step) {
    room_ = std::move(step);
    room_.offer.reset();
  }

  /// Lets no step begin until the next epoch: a joiner is to take over this worker's state.
  void pause() { client_->pause(); }
  /// Says that no step is under way here, so that weights, log position and handover agree.
  bool at_rest() const { return client_->at_rest() && !done_; }
  /// REQUIRES: at_rest().
  ByteBuffer handover() const { return encode_handover(client_->handover()); }

  /// Takes this worker out of the job.
  void leave_job() { client_->leave(); }
  /// Continues from the handover of another worker, after a join or rejoin. Returns the next step. A step that was
  /// under way when this worker left, under `incarnation`, is over then (take_done()). There, entries whose outcome no
  /// worker knows are neither applied nor returned.
  /// Errors   malformed: no handover of this job.
  Result<uint64_t> take_over(ByteSpan handover, uint64_t incarnation);
  /// Returns the entries that take_over() found to have been counted as applied, and that are not. Entries of [begin,
  /// end) of the array, not in order. Each once.
  std::vector<std::pair<uint32_t, double>> take_revoked(uint64_t begin, uint64_t end);
  size_t revoked() const { return revoked_.size(); }  ///< entries that were not taken yet
  /// Continues at this step without another worker: the job has no other state any more.
  void restart_at(uint64_t step);

  /// Returns the switch's state for the heartbeats to shard 0.
  protocol::Heartbeat::Switch report(TimeNs now) const;
  /// Returns one sentence, once: that the decider is with another job of this number; that this worker's rack was lost,
  /// or has recovered. Empty: no news.
  std::string news(TimeNs now);
  /// Ends this worker's steps, and says whether it may leave: all workers have sent FIN, or the given time-out passed
  /// without progress.
  enum class Leave : uint8_t { kNotYet, kAllDone, kTimedOut };
  Leave leave(TimeNs timeout, TimeNs now);

  /// Returns one sentence: the process that a step under way is blocked on.
  std::string waiting_for() const;
  /// Returns the same for shard 0, also between steps: others may wait for this worker's greeting.
  protocol::Heartbeat::SwitchWait waits() const;
  SwitchPathStatus status() const;

 private:
  void on_completed(const CompletedWindow& window) override;
  void step_done(uint32_t step) override;
  Result<protocol::Endpoint> find(const std::string& text);
  void take_rack(SwitchEpoch& epoch);
  std::string rack_news();
  void replace_client(const SwitchHandover& handover);
  /// Returns the counters of all clients of this session.
  SwitchClientCounters client_counters() const;

  protocol::SwitchLayout layout_;
  uint32_t worker_;
  std::string switch_address_;
  SwitchAccess access_;
  SwitchClientOptions client_options_;
  std::unique_ptr<SwitchClient> client_;
  /// The client with which this worker left, until it is synced again. One member's handover settled its entries;
  /// another's may revoke some.
  std::unique_ptr<SwitchClient> left_;
  uint64_t clients_ = 0;          ///< before this one
  SwitchClientCounters counted_;  ///< by those
  std::vector<std::pair<uint32_t, double>> revoked_;
  std::vector<SwitchProbe> probes_;  ///< of each lane: the switch answers where all do
  std::map<std::string, protocol::Endpoint, std::less<>> found_;
  std::optional<protocol::Path> path_;  ///< of the present epoch; none yet
  std::string decider_;                 ///< its name
  uint64_t fallbacks_ = 0;
  uint64_t came_back_ = 0;
  uint64_t last_reported_rack_loss_ = 0;
  bool last_reported_rack_return_ = true;
  bool last_reported_back_off_ = false;

  bool stepping_ = false;
  bool done_ = false;
  /// Of the step under way; windows and offered entries in order of arrival.
  SwitchStepDone arrived_;

  SwitchStepDone room_;  ///< memory only

  bool finishing_ = false;
  uint64_t results_seen_ = 0;
  TimeNs moved_at_ = 0;
};

}  // namespace millrace::worker
