#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/random.h"
#include "kernels/base/result.h"
#include "worker/peer/group/peer_core.h"
#include "worker/peer/simulation/tournament_tree.h"
#include "worker/peer/transport/communicator.h"

namespace millrace::peer {

/// Describes a rank that stops at a virtual time: from then on it sends and receives nothing. Messages on their way
/// arrive.
struct SimulatedFault {
  uint32_t rank = 0;
  TimeNs at = 0;
  /// The delay after which the others' transports report the fault (the rank died). None: never (it is stuck, or its
  /// machine is lost).
  std::optional<TimeNs> noticed_after;
};

struct SimulationOptions {
  uint32_t ranks = 1;
  /// alpha: of each message, in which its sender's and its receiver's port are busy.
  TimeNs latency = kNsPerUs;
  /// Time of flight beside the latency, during which no port is busy. The papers' models have none.
  TimeNs propagation = 0;
  /// 1 / beta, of every link; bytes of headers count.
  double bytes_per_s = 1.25e9;
  /// Of the link between two ranks, where they differ. Called for each message.
  std::function<double(uint32_t from, uint32_t to)> link_bytes_per_s;
  /// Maximum of the random delay of each message, drawn for each: later messages can overtake it.
  TimeNs jitter_max = 0;
  /// Of what Channel::charge() says.
  double work_scale = 1;
  uint64_t seed = 1;
  std::vector<SimulatedFault> faults;
  GroupOptions group;
  /// The simulation ends with an error where something is under way at this time.
  TimeNs end_at_max = 1'000'000 * kNsPerS;
};

/// Simulates a group of ranks in one thread, under a virtual clock: each rank is a PeerCore, and the network is a
/// model.
///
/// alpha-beta    a message of L bytes keeps both ports busy for latency + L / rate.
/// single port   a rank sends one message at a time, in the order of the calls. It receives one at a time, in the order
///               of sending (at equal times: the lower rank's first). A sender is not blocked on a busy receiver: the
///               network holds the message.
/// computation   takes the time that an algorithm charges; messages that arrive meanwhile wait.
///
/// The same options and the same collectives give the same times, counts and bits.
///
/// Order    no message arrives sooner than a header takes. So the simulation runs each rank by itself through a window
///          of that length. It then delivers the messages of the window in the order of the ports. This goes through
///          the memory of the ranks in one direction, ahead of its use.
/// Bodies   equal bodies of some KiB are stored once, regardless of their sender: in an allgather by doubling, half of
///          the ranks send the same.
/// Threads  one.
/// Source   the model: [SparCML19, 5.2]; [RedSync19, 2.4] (single port).
class Simulation {
 public:
  /// REQUIRES: ranks >= 1, latency, propagation, jitter_max >= 0, bytes_per_s > 0, faults' ranks < ranks.
  explicit Simulation(const SimulationOptions& options);
  Simulation(const Simulation&) = delete;
  Simulation& operator=(const Simulation&) = delete;
  ~Simulation();

  uint32_t size() const { return options_.ranks; }
  TimeNs now() const { return now_; }

  /// Starts a collective on the rank at the time `at`, or as soon after as the rank has started its earlier ones. Calls
  /// `make` then, once.
  void start(uint32_t rank, TimeNs at, std::function<Collective()> make);

  /// Runs until no event is left. Errors  timeout: end_at_max.
  Status run();

  struct Ended {
    Status status;
    TimeNs at = 0;
  };
  /// Returns the ends of the collectives that this rank started, in the order of start(). None: it has not ended (a
  /// rank that stopped).
  const std::vector<std::optional<Ended>>& ended(uint32_t rank) const;
  const std::optional<GroupFailure>& failure(uint32_t rank) const;

  /// Messages on the wire so far: a message counts when its transfer begins. Bodies apart from headers.
  struct Counts {
    Traffic traffic;
    uint64_t body_bytes_sent = 0;
    uint64_t body_bytes_received = 0;
    TimeNs work = 0;  ///< charged, scaled
  };
  const Counts& counts(uint32_t rank) const;
  /// Returns the number of messages delivered to all ranks.
  uint64_t messages() const { return messages_; }

 private:
  template <typename Item>
  class Queue;
  struct Arriving;
  struct Batch;
  struct Start;
  struct Hot;
  struct Rank;
  struct Transfer;
  class Bodies;

  TimeNs end_of_window(TimeNs begin) const;
  void run_window(TimeNs end);
  void run_rank(uint32_t at, TimeNs end);
  void prefetch(size_t place) const;
  void begin_transfer(uint32_t from);
  void hand_over();
  void receive(Transfer&& transfer);
  void schedule_touched();
  void deliver(uint32_t to);
  void start_next(uint32_t at);
  void tick(uint32_t at);
  void fault(const SimulatedFault& fault);
  void notice(const SimulatedFault& fault);
  void take(uint32_t at, Actions&& actions);
  void record_ended(uint32_t at);
  void schedule(uint32_t at);
  void look_at_sends(uint32_t at);
  TimeNs scaled(TimeNs work) const;
  TimeNs transfer_time(uint32_t from, uint32_t to, uint64_t bytes) const;

  SimulationOptions options_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<Hot> hot_;
  Earliest earliest_;
  TimeNs lookahead_ = 1;  ///< a message arrives at least this much later than it is sent
  std::unique_ptr<Bodies> bodies_;
  // Of the window under way.
  std::vector<uint32_t> active_;     ///< ranks with something to do, ascending
  std::vector<Transfer> transfers_;  ///< begun, rank by rank
  std::vector<std::pair<TimeNs, uint32_t>> order_;
  std::vector<uint32_t> touched_;        ///< ranks whose next time may have changed
  std::vector<SimulatedFault> stops_;    ///< to come, the next one last
  std::vector<SimulatedFault> notices_;  ///< the same, by when they are noticed
  RandomSequence draws_;
  TimeNs now_ = 0;
  uint64_t messages_ = 0;
};

}  // namespace millrace::peer
