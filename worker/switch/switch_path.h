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

/// What a session of path switch has beside the shards. Where the decider of an epoch is, the views say by name.
struct SwitchAccess {
  protocol::JobKey key{};
  protocol::PacketSink* sink = nullptr;  ///< outlives the session's core
  std::function<Result<protocol::Endpoint>(std::string_view)> resolve = {};
  /// This worker's rack adds up in front of the switch that the specification names. It knows no other decider: in
  /// epochs that another one decides, contributions go straight there.
  std::optional<protocol::Endpoint> rack = {};
};

/// What came of one step in all buckets, indices of the switch's array (protocol::SwitchLayout).
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
  // The update: ascending within a window, the windows in the order in which their results came.
  Buffer<uint16_t> indices;  ///< in the window
  Buffer<int32_t> sums;      ///< x the window's step
  /// Entries of begin_step() that are settled: so many from `first` on.
  struct Offered {
    size_t first = 0;
    size_t last = 0;
    double step = 0;         ///< of the grid
    uint32_t begin = 0;      ///< of their window in the array
    bool is_cut = false;     ///< not all of the update has it: this worker's rack cut its sum, or it is no contributor
    size_t first_index = 0;  ///< of `kept` where that is so, else of `indices`: where what was sent is in the update
    size_t last_index = 0;
  };
  std::vector<Offered> offered;  ///< ascending; what is in none: nobody knows what became of it
  std::shared_ptr<const StepOffer> offer;
  std::vector<uint16_t> kept;  ///< in the window

  /// Indices in the window, ascending: what was sent there is in the update, all else is not.
  std::span<const uint16_t> applied(const Offered& of) const {
    return (of.is_cut ? std::span(kept) : std::span<const uint16_t>(indices))
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

/// A session's way to the decider of its job's steps: a SwitchClient for all buckets, the probe of a switch that was
/// left, and what came of a step until the step is over. Pure: time is handed in, packets go into the sink.
/// Threads  one at a time.
class SwitchPath final : private SwitchOutcome {
 public:
  /// nonce_seed: random, of its own for each process.
  SwitchPath(const protocol::JobSpec& spec, const protocol::JobLayout& layout, uint32_t worker, SwitchAccess access,
             uint64_t nonce_seed);

  const protocol::SwitchLayout& layout() const { return layout_; }

  /// An adopted view of a started job: an epoch of the client. What is to be told of it, empty: nothing.
  /// Errors   limit_exceeded: epochs are 32 bits on this path.
  Result<std::string> follow(const protocol::JobView& view, TimeNs now);

  /// Errors   as SwitchClient::begin_valid_step(). REQUIRES: as StepOffer says of `entries`.
  Status begin_step(uint64_t step, const HeldStream& entries, TimeNs now);
  void receive(const protocol::ReceivedPacket& packet, TimeNs now);
  void tick(TimeNs now);
  TimeNs next_deadline() const;
  /// The step that is over, once.
  std::optional<SwitchStepDone> take_done();
  /// A step's memory, for another one.
  void give_room(SwitchStepDone&& step) {
    room_ = std::move(step);
    room_.offer.reset();
  }

  /// Somebody is to come in with what this worker has: no step begins until the next epoch.
  void pause() { client_->pause(); }
  /// No step is under way here, so that weights, place and handover belong together.
  bool at_rest() const { return client_->at_rest() && !done_; }
  /// REQUIRES: at_rest().
  ByteBuffer handover() const { return encode_handover(client_->handover()); }

  /// This worker is out of the job.
  void leave_job() { client_->leave(); }
  /// It comes in, or back, beside the one whose handover this is; returned is the next step. One that was under way
  /// when it left, under `life`, is over then (take_done()): what nobody knows of is neither applied nor returned
  /// there.
  /// Errors   malformed: no handover of this job.
  Result<uint64_t> take_over(ByteSpan handover, uint64_t life);
  /// What take_over() found to have been taken for applied, and is not: entries of [begin, end) of the array, not in
  /// order. Each once.
  std::vector<std::pair<uint32_t, double>> take_revoked(uint64_t begin, uint64_t end);
  size_t revoked() const { return revoked_.size(); }  ///< entries that were not taken yet
  /// It goes on at this step beside nobody: the job has no other state any more.
  void begin_anew(uint64_t step);

  /// What the heartbeats to shard 0 say now.
  protocol::Heartbeat::Switch word(TimeNs now) const;
  /// One sentence, once: that the decider is with another job of this number; that this worker's rack was lost, or is
  /// back. Empty: nothing is new.
  std::string news(TimeNs now);
  /// There will be no more steps. Whether this worker may leave: all have said so, or nothing has moved for `patience`.
  enum class Leave : uint8_t { kNotYet, kAllDone, kPatienceEnded };
  Leave leave(TimeNs patience, TimeNs now);

  /// One sentence: what a step under way waits for.
  std::string waiting_for() const;
  /// The same for shard 0, also between steps: others may wait for this worker's greeting.
  protocol::Heartbeat::SwitchWait waits() const;
  SwitchPathStatus status() const;

 private:
  void settled(const SettledWindow& window) override;
  void step_done(uint32_t step) override;
  Result<protocol::Endpoint> find(const std::string& text);
  void take_rack(SwitchEpoch& epoch);
  std::string rack_news();
  void replace_client(const SwitchHandover& handover);
  /// Of all clients that this session has had.
  SwitchClientCounters client_counters() const;

  protocol::SwitchLayout layout_;
  uint32_t worker_;
  std::string switch_address_;
  SwitchAccess access_;
  SwitchClientOptions client_options_;
  std::unique_ptr<SwitchClient> client_;
  /// The one with which this worker left, until it takes part again: what was settled by one giver's word, another's
  /// may revoke.
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
  uint64_t rack_lost_told_ = 0;
  bool rack_back_told_ = true;
  bool stood_off_told_ = false;

  bool stepping_ = false;
  bool done_ = false;
  SwitchStepDone arrived_;  ///< of the step under way; windows and what was offered in order of arrival

  SwitchStepDone room_;  ///< memory only

  bool finishing_ = false;
  uint64_t results_seen_ = 0;
  TimeNs moved_at_ = 0;
};

}  // namespace millrace::worker
