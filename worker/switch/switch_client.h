#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/clock.h"
#include "kernels/base/result.h"
#include "kernels/grid/grid.h"
#include "kernels/stream/held_stream.h"
#include "protocol/datagram/key.h"
#include "protocol/datagram/packet_sink.h"
#include "protocol/datagram/window/window_code.h"
#include "worker/switch/congestion_control.h"
#include "worker/switch/integer_limit.h"
#include "worker/switch/switch_handover.h"

/// The worker's side of the switch protocol, for one tensor (or part) of one job: a pure state machine. Normative: S1,
/// S2, S5, S6; what they leave open is settled in worker/switch/DESIGN.md.
namespace millrace::worker {

/// What a job asks of its sums.
enum class SwitchSums : uint8_t {
  kInI32 = 1,  ///< room for all workers' largest in an i32
  /// And in the integers of an f32, and exponents by sums that are not 0 only: what shards and peers have in
  /// reproducible jobs.
  kExactInF32 = 2,
};

struct SwitchClientOptions {
  uint32_t job = 0;
  protocol::JobKey key{};
  uint16_t worker = 0;          ///< < 64
  uint32_t workers = 1;         ///< of the whole job, ever at once: the headroom of sums
  uint32_t dimension = 0;       ///< of the tensor, in indices
  uint32_t window_indices = 0;  ///< a multiple of 64, <= kWindowIndicesMax
  uint32_t slots =
      1;  ///< as the aggregator reserves for the job; <= windows of the tensor, <= kSlotsMax; a multiple of `lanes`
  /// Of a job on several cores of its aggregator: window w is in lane w % lanes, which is the job of number `job` +
  /// lane there.
  uint32_t lanes = 1;
  uint32_t packet_bytes_max = 1472;
  protocol::WindowCodecs codecs{};
  int exponent_initial = -20;  ///< of all windows, before any result
  bool through_racks = false;  ///< the job has racks: packets leave room for what a rack says when it hands them on
  SwitchSums sums = SwitchSums::kInI32;
  std::vector<uint32_t> tensor_windows = {
      0};                   ///< where several are numbered through: the first window of each, ascending
  uint64_t nonce_seed = 0;  ///< random, of its own for each incarnation
  RoundTripOptions round_trip{};
  /// A worker with no turn under way asks so often whether its aggregator still lives: others may wait for its hello.
  TimeNs idle_probe_ns = 100 * kNsPerMs;
  uint32_t silent_timeouts_to_probe = 3;     ///< so many time-outs without any word of the aggregator: CHALREQ
  uint32_t silent_timeouts_to_suspect = 10;  ///< ... : path_suspect()
};

/// Who decides in an epoch, and what way packets take to it.
enum class SwitchRole : uint8_t { kReduce = 1, kCombine = 2 };

/// An epoch as the membership table has it.
struct SwitchEpoch {
  uint32_t epoch = 0;
  uint64_t live = 0;             ///< a bit a worker
  uint64_t membership_hash = 0;  ///< of (live, path, incarnations)
  SwitchRole role = SwitchRole::kReduce;
  protocol::Endpoint decider{};  ///< the switch, or the shard
  protocol::Endpoint rack{};     ///< kCombine: where contributions go first; port 0: this worker is in no rack
  SwitchLives lives{};           ///< of the live workers
};

/// Workers of a rack that cut its sum, and what of the update it kept.
struct CutRack {
  uint64_t workers = 0;
  std::vector<uint8_t> kept;  ///< [indices of the update] 1: what these workers sent is in; 0: it is not
};

/// One step's entries of one worker, and what goes out of them.
///
/// Threads  a client's, which writes `sent` window by window; from step_done() on nobody's: it may be read on any.
struct StepOffer {
  HeldStream entries;    ///< [k] indices strictly increasing, < dimension; values finite
  Buffer<int32_t> sent;  ///< [k] as receivers decode it, x 2^exponent of the window's turn; 0: it was not sent
};

/// What came of one turn in one window. Everything points into the client and holds during the call.
struct SettledWindow {
  uint32_t step = 0;
  uint32_t window = 0;
  uint16_t slot = 0;  ///< of all lanes' slots: window % slots
  uint64_t turn = 0;
  int exponent = 0;
  uint64_t contributors = 0;
  uint32_t decided_epoch = 0;
  uint32_t begin = 0;                 ///< of the window in the tensor
  std::span<const uint16_t> indices;  ///< of the update, in the window, strictly increasing
  std::span<const int32_t> sums;      ///< of each, x 2^exponent
  std::span<const CutRack> racks;
  /// What this worker offered: begin_step()'s entries from here on, as many as `offered` has.
  size_t first = 0;
  IndexSpan offered;              ///< their indices
  std::span<const float> values;  ///< of each
  std::span<const int32_t> sent;  ///< of each, x 2^exponent: StepOffer's
  /// Those of `indices` where what this worker sent is in the update: all; those that its rack kept; none, where it is
  /// not among the contributors. The rest of what was offered goes back to the residual.
  std::span<const uint16_t> applied;

  /// Of each offered entry what the update applied, x 2^exponent.
  Buffer<int32_t> taken() const;
  /// What goes back, without zeros: take(index, value). Index by index.
  template <typename Take>
  void each_returned(const Take& take) const {
    const Buffer<int32_t> gone = taken();
    for (size_t i = 0; i < offered.size(); ++i) {
      const float back = grid_remainder(values[i], gone[i], exponent);
      if (back != 0) take(offered[i], back);
    }
  }
};

/// What the client tells its owner, in the middle of receive().
class SwitchOutcome {
 public:
  virtual ~SwitchOutcome() = default;
  /// Once for each turn: the update and what goes back to the residual belong together.
  virtual void settled(const SettledWindow& window) = 0;
  /// Every slot of every lane has finished the step. begin_step() may follow, not from here.
  virtual void step_done(uint32_t step) = 0;
};

/// Why packets were dropped, and what was done.
struct SwitchClientCounters {
  uint64_t malformed = 0;
  uint64_t wrong_job = 0;
  uint64_t unexpected_type = 0;
  uint64_t forged = 0;
  uint64_t replayed = 0;
  uint64_t wrong_life = 0;
  uint64_t wrong_epoch = 0;
  uint64_t not_running = 0;
  uint64_t other_turn = 0;
  uint64_t contradiction = 0;  ///< authentic, and not what an aggregator that keeps the rules sends
  uint64_t duplicates = 0;
  uint64_t bad_payload = 0;
  uint64_t results = 0;  ///< turns settled
  uint64_t not_contributor = 0;
  uint64_t resends = 0;  ///< packets
  uint64_t timeouts = 0;
  uint64_t probes = 0;  ///< turns sent again because nothing came back, and they were out for longer than a turn takes
  uint64_t overtaken = 0;       ///< turns sent again because later ones were back long before them
  uint64_t sent_on_notice = 0;  ///< packets sent again because the aggregator said that it lacks them
  uint64_t hellos = 0;
  uint64_t challenge_requests = 0;
  uint64_t new_lives = 0;
  uint64_t fetches_answered = 0;
  uint64_t congestion_marks = 0;   ///< authentic packets of a session that the network marked (ECN)
  uint64_t held_back = 0;          ///< answers that waited for the congestion window
  uint64_t entries_left_over = 0;  ///< did not fit 16 fragments; they went back
  uint64_t entries_saturated = 0;
  uint64_t refused = 0;  ///< NO_SLOTS, POSITIONS, MEMBERSHIP
  uint64_t rack_welcomes = 0;
  uint64_t rack_lost = 0;     ///< times that contributions stopped going to the rack
  uint64_t sent_to_rack = 0;  ///< contributions' packets; the others went to the decider
};

/// The counters by name, in their order; the names are those of metrics. A counter that is not in the list does not
/// build.
struct NamedSwitchCount {
  std::string_view name;
  uint64_t count = 0;
};
inline constexpr size_t kSwitchClientCounters = sizeof(SwitchClientCounters) / sizeof(uint64_t);
std::array<NamedSwitchCount, kSwitchClientCounters> named_counts(const SwitchClientCounters& counters);

enum class SwitchPhase : uint8_t {
  kOutside,  ///< no epoch yet, or one without this worker
  kAsking,   ///< CHALREQ: who is there?
  kHello,
  kRunning,
};

/// Threads  one at a time; calls nobody but `outcome`, and the sink that it is handed.
class SwitchClient {
 public:
  /// Errors  invalid_argument: an option outside its range.
  static Status validate(const SwitchClientOptions& options);

  /// REQUIRES: validate(options).
  SwitchClient(const SwitchClientOptions& options, SwitchOutcome& outcome);
  /// A worker that comes to a job under way: it goes on where `handover` was taken.
  SwitchClient(const SwitchClientOptions& options, SwitchOutcome& outcome, const SwitchHandover& handover);
  ~SwitchClient();

  /// What the table says now. Older or equal epochs are ignored. Results of older epochs are no longer taken when this
  /// returns. Ends pause().
  void set_epoch(const SwitchEpoch& epoch, TimeNs now, protocol::PacketSink& sink);

  /// Offers one step's values: what is not applied of them comes back by settled().
  ///
  /// indices  [k] strictly increasing, < dimension.
  /// values   [k] finite.
  /// Errors   invalid_argument: indices, values, another step than the next (the first is 0); the step before is not
  ///          over.
  Status begin_step(uint32_t step, IndexSpan indices, std::span<const float> values, TimeNs now,
                    protocol::PacketSink& sink);
  /// The same, of entries that are known to be so: they are neither copied nor looked at. The client keeps the offer
  /// for as long as it may revoke something of it, which is until two steps later.
  /// REQUIRES  an offer as StepOffer says, as many values and `sent` as indices.
  Status begin_valid_step(uint32_t step, std::shared_ptr<StepOffer> offer, TimeNs now, protocol::PacketSink& sink);
  /// There will be no more steps: answers others' with nothing until all say so (FIN).
  /// Errors   invalid_argument: a step is under way.
  Status finish(TimeNs now, protocol::PacketSink& sink);
  /// All have said so, in the lives that they have now: this worker may leave. Not for good: who comes in has more to
  /// say.
  bool finished() const;

  /// From now on no step begins, this worker's own or one that it only answers, until the next epoch: somebody is to
  /// come in with what this worker has. So nobody gets beyond the step, and what is handed over stays true.
  void pause();
  /// Nothing of a step is out: handover() may be called.
  bool at_rest() const;
  /// This worker is out of the job: no result is taken any more, and nothing sent.
  void leave();
  /// The end of one that has left, and comes back: what of its step was out is settled as others know of its removal
  /// (6.8), what was not sent returns; then step_done(). What nobody knows of is in neither: `SettledWindow`s lack it.
  /// Again, while it does not take part yet and is to go on beside another worker, who may know of an earlier T:
  /// revokes the rest.
  ///
  /// Returns   what of the step before, or of this one, it had taken for applied and is not.
  /// life      the one that it was removed with.
  /// known     the handover that it goes on with: of its removals. REQUIRES: as many lanes.
  std::vector<SwitchRevoked> abandon_step(uint64_t life, const SwitchHandover& known);

  /// Takes one packet, hostile ones among them.
  void receive(const protocol::ReceivedPacket& packet, TimeNs now, protocol::PacketSink& sink);
  /// Does what is due. Call it at next_deadline(), or every millisecond or so.
  void tick(TimeNs now, protocol::PacketSink& sink);
  TimeNs next_deadline() const;

  /// Of several lanes the one that lacks most.
  SwitchPhase phase() const;
  /// Contributions go to this worker's rack first at present, of all lanes.
  bool at_rack() const;
  /// The aggregator has been silent for long, or refused the job: the table should raise the epoch with another path.
  bool path_suspect() const;
  /// For how long the aggregator has not taken this worker's HELLOs, as it is with another job of this number, or in a
  /// newer epoch; 0: it is not so.
  TimeNs stood_off_for(TimeNs now) const;
  /// The newest epoch that an aggregator spoke of: newer than set_epoch()'s, the table is to be read.
  uint32_t epoch_seen() const;
  /// REQUIRES: at_rest().
  SwitchHandover handover() const;
  const SwitchClientCounters& counters() const;

 private:
  friend struct SwitchClientPeek;  ///< of tests
  struct State;
  struct Lane;
  std::unique_ptr<State> state_;
};

}  // namespace millrace::worker
