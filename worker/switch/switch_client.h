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
#include "kernels/stream/shared_stream.h"
#include "protocol/datagram/key.h"
#include "protocol/datagram/packet_sink.h"
#include "protocol/datagram/window/window_code.h"
#include "worker/switch/congestion_control.h"
#include "worker/switch/integer_limit.h"
#include "worker/switch/switch_handover.h"

/// The worker's side of the switch protocol, for one tensor (or part) of one job: a pure state machine. Normative: S1,
/// S2, S5, S6; worker/switch/DESIGN.md decides the points that they leave open.
namespace millrace::worker {

/// Says which precision a job needs of its sums.
enum class SwitchSums : uint8_t {
  /// An i32 has room for the sum of all workers' largest values.
  kInI32 = 1,
  /// An f32 holds the integers exactly as well, and exponents follow sums that are not 0 only. Shards and peers use the
  /// same rules in reproducible jobs.
  kExactInF32 = 2,
};

struct SwitchClientOptions {
  uint32_t job = 0;
  protocol::JobKey key{};
  uint16_t worker = 0;          ///< < 64
  uint32_t workers = 1;         ///< most workers of the whole job at any time: the headroom of sums
  uint32_t dimension = 0;       ///< of the tensor, in indices
  uint32_t window_indices = 0;  ///< a multiple of 64, <= kWindowIndicesMax
  /// At most as many as the decider reserves for the job, and exactly as many as a rack does. <= windows of the tensor,
  /// <= kSlotsMax, and a multiple of `lanes`.
  uint32_t slots = 1;
  /// Of a job on several cores of its aggregator: window w is in lane w % lanes, which is the job of number `job` +
  /// lane there.
  uint32_t lanes = 1;
  uint32_t packet_bytes_max = 1472;
  protocol::WindowCodecs codecs{};
  int exponent_initial = -20;  ///< of all windows, before any result
  /// The job has racks: packets leave room for the bytes that a rack adds when it forwards them.
  bool through_racks = false;
  SwitchSums sums = SwitchSums::kInI32;
  /// Where several tensors have one numbering of windows: the first window of each, ascending.
  std::vector<uint32_t> tensor_windows = {0};
  /// Random, different for each incarnation.
  uint64_t nonce_seed = 0;
  RoundTripOptions round_trip{};
  /// Interval at which a worker with no turn under way probes its aggregator: others may wait for its hello.
  TimeNs idle_probe_ns = 100 * kNsPerMs;
  /// Time-outs without a packet of the aggregator after which the client sends CHALREQ.
  uint32_t silent_timeouts_to_probe = 3;
  /// The same, after which path_suspect() is true.
  uint32_t silent_timeouts_to_suspect = 10;
};

/// Says which process decides in an epoch, and how packets reach it.
enum class SwitchRole : uint8_t { kReduce = 1, kCombine = 2 };

/// Holds an epoch as the membership table has it.
struct SwitchEpoch {
  uint32_t epoch = 0;
  uint64_t live = 0;             ///< one bit for each worker
  uint64_t membership_hash = 0;  ///< of (live, path, incarnations)
  SwitchRole role = SwitchRole::kReduce;
  protocol::Endpoint decider{};  ///< the switch, or the shard
  /// kCombine: contributions go there first; port 0: this worker is in no rack.
  protocol::Endpoint rack{};
  AggregatorIncarnations incarnations{};  ///< of the live workers
};

/// Holds the workers of a rack that truncated its sum, and the entries of the update that it retained.
struct RackSelection {
  uint64_t workers = 0;
  /// [indices of the update] 1: these workers' values are included; 0: they are not.
  std::vector<uint8_t> kept;
};

/// Holds one step's entries of one worker, and the integers sent for them.
///
/// Threads  the client's, which writes `sent` window by window; after step_done() any thread may read it.
struct StepOffer {
  SharedStream entries;  ///< [k] indices strictly increasing, < dimension; values finite
  /// [k] as receivers decode it, x 2^exponent of the window's turn; 0: not sent.
  Buffer<int32_t> sent;
};

/// Holds the result of one turn in one window. All pointers are into the client and valid during the call.
struct CompletedWindow {
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
  std::span<const RackSelection> racks;
  /// The entries that this worker offered: those of begin_step() from here on, as many as `offered` has.
  size_t first = 0;
  IndexSpan offered;              ///< their indices
  std::span<const float> values;  ///< of each
  std::span<const int32_t> sent;  ///< of each, x 2^exponent: `sent` of StepOffer
  /// Those of `indices` where the update includes this worker's value. That is all of them, those that its rack
  /// retained, or none, where this worker is no contributor. The other offered values return to the residual.
  std::span<const uint16_t> applied;

  /// Returns for each offered entry the part that the update applied, x 2^exponent.
  Buffer<int32_t> taken() const;
  /// Calls take(index, value) for each value that returns to the residual, by index, without zeros.
  template <typename Take>
  void each_returned(const Take& take) const {
    const Buffer<int32_t> gone = taken();
    for (size_t i = 0; i < offered.size(); ++i) {
      const float back = grid_remainder(values[i], gone[i], exponent);
      if (back != 0) take(offered[i], back);
    }
  }
};

/// Receives the client's events, during receive().
class SwitchOutcome {
 public:
  virtual ~SwitchOutcome() = default;
  /// Takes the result of a turn, once for each turn: the update and the entries that return to the residual.
  virtual void on_completed(const CompletedWindow& window) = 0;
  /// Reports that every slot of every lane has finished the step. begin_step() may follow, but not from this call.
  virtual void step_done(uint32_t step) = 0;
};

/// Counts dropped packets by reason, and actions.
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
  /// Authentic packets that an aggregator that follows the rules does not send.
  uint64_t contradiction = 0;
  uint64_t duplicates = 0;
  uint64_t bad_payload = 0;
  uint64_t results = 0;  ///< turns settled
  uint64_t not_contributor = 0;
  uint64_t resends = 0;  ///< packets
  uint64_t timeouts = 0;
  /// Turns sent again because no result arrived in the time that a turn takes.
  uint64_t probes = 0;
  /// Turns sent again because the results of later ones arrived long before theirs.
  uint64_t overtaken = 0;
  uint64_t sent_on_notice = 0;  ///< packets sent again because the aggregator reported that it lacks them
  uint64_t hellos = 0;
  uint64_t challenge_requests = 0;
  uint64_t new_lives = 0;
  uint64_t fetches_answered = 0;
  /// Authentic packets of a session that the network marked (ECN).
  uint64_t congestion_marks = 0;
  uint64_t held_back = 0;  ///< answers that waited for the congestion window
  /// Entries that did not fit 16 fragments; they returned to the residual.
  uint64_t entries_left_over = 0;
  uint64_t entries_saturated = 0;
  uint64_t refused = 0;  ///< NO_SLOTS, POSITIONS, MEMBERSHIP
  uint64_t rack_welcomes = 0;
  /// Times at which contributions stopped going to the rack.
  uint64_t rack_lost = 0;
  /// Packets of contributions; the others went to the decider.
  uint64_t sent_to_rack = 0;
};

/// Holds one counter with its name. named_counts() returns all in order; the names are those of metrics. A counter that
/// is missing in the list does not build.
struct NamedSwitchCount {
  std::string_view name;
  uint64_t count = 0;
};
inline constexpr size_t kSwitchClientCounters = sizeof(SwitchClientCounters) / sizeof(uint64_t);
std::array<NamedSwitchCount, kSwitchClientCounters> named_counts(const SwitchClientCounters& counters);

enum class SwitchPhase : uint8_t {
  kOutside,  ///< no epoch yet, or one without this worker
  kAsking,   ///< CHALREQ: asks for the aggregator's challenge
  kHello,
  kRunning,
};

/// Runs the protocol of one worker.
///
/// Threads  one at a time; calls only `outcome`, and the sink that it is given.
class SwitchClient {
 public:
  /// Errors  invalid_argument: an option outside its range.
  static Status validate(const SwitchClientOptions& options);

  /// REQUIRES: validate(options).
  SwitchClient(const SwitchClientOptions& options, SwitchOutcome& outcome);
  /// Creates a worker that joins a running job and continues from the state of `handover`.
  SwitchClient(const SwitchClientOptions& options, SwitchOutcome& outcome, const SwitchHandover& handover);
  ~SwitchClient();

  /// Takes the membership table's present epoch. Ignores older or equal epochs. After it returns, results of older
  /// epochs are no longer taken. Ends pause().
  void set_epoch(const SwitchEpoch& epoch, TimeNs now, protocol::PacketSink& sink);

  /// Offers one step's values: settled() returns those that are not applied.
  ///
  /// indices  [k] strictly increasing, < dimension.
  /// values   [k] finite.
  /// Errors   invalid_argument: indices, values, another step than the next (the first is 0); the step before is not
  ///          over.
  Status begin_step(uint32_t step, IndexSpan indices, std::span<const float> values, TimeNs now,
                    protocol::PacketSink& sink);
  /// Does the same with entries that are known to be valid: does not copy or check them. The client keeps the offer
  /// while it may revoke a part of it, which is until two steps later.
  /// REQUIRES  an offer as StepOffer describes, with as many values and `sent` as indices.
  Status begin_valid_step(uint32_t step, std::shared_ptr<StepOffer> offer, TimeNs now, protocol::PacketSink& sink);
  /// Ends this worker's steps: answers others' with empty contributions until all have sent FIN.
  /// Errors   invalid_argument: a step is under way.
  Status finish(TimeNs now, protocol::PacketSink& sink);
  /// Says whether all workers have sent FIN under their present incarnations: this worker may leave. A later joiner
  /// makes it false again.
  bool finished() const;

  /// Lets no step begin until the next epoch, neither this worker's own nor one that it only answers. A joiner then
  /// takes over this worker's state. No worker advances past the step, so the handover stays valid.
  void pause();
  /// Says that nothing of a step is in flight: handover() may be called.
  bool at_rest() const;
  /// Takes this worker out of the job: it takes no further results and sends nothing.
  void leave();
  /// Ends the step of a worker that was evicted and rejoins. Settles the contributions in flight as other workers know
  /// of its removal (6.8); unsent ones return. Then calls step_done(). Contributions that no worker knows of are in
  /// neither: `CompletedWindow`s lack them. The owner may call it again before this worker is synced, with the handover
  /// of another worker that may know of an earlier T. That revokes the rest.
  ///
  /// Returns   the values of the step before, or of this one, that it had counted as applied and that are not.
  /// incarnation      the incarnation that was removed.
  /// known     the handover that it continues from: its removals. REQUIRES: as many lanes.
  std::vector<SwitchRevoked> abandon_step(uint64_t incarnation, const SwitchHandover& known);

  /// Takes one packet, possibly of an attacker.
  void receive(const protocol::ReceivedPacket& packet, TimeNs now, protocol::PacketSink& sink);
  /// Does all actions whose time has come. Call it at next_deadline(), or about every millisecond.
  void tick(TimeNs now, protocol::PacketSink& sink);
  TimeNs next_deadline() const;

  /// Returns the phase; of several lanes that of the least advanced one.
  SwitchPhase phase() const;
  /// Says whether contributions go to this worker's rack first at present, in all lanes.
  bool at_rack() const;
  /// Says that the aggregator has been silent for long, or refused the job: the table should raise the epoch with
  /// another path.
  bool path_suspect() const;
  /// Returns the time for which the aggregator has not taken this worker's HELLOs, since it has another job of this
  /// number, or a newer epoch. 0: it takes them.
  TimeNs backed_off_for(TimeNs now) const;
  /// Returns the newest epoch that an aggregator named: if it is newer than set_epoch()'s, the table must be read.
  uint32_t epoch_seen() const;
  /// Returns the state for a joiner. REQUIRES: at_rest().
  SwitchHandover handover() const;
  const SwitchClientCounters& counters() const;

 private:
  friend struct SwitchClientPeek;  ///< of tests
  struct State;
  struct Lane;
  std::unique_ptr<State> state_;
};

}  // namespace millrace::worker
