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

/// A rank that stops at a virtual time: it sends and receives nothing from then on; what is on its way arrives.
struct SimulatedFault {
  uint32_t rank = 0;
  TimeNs at = 0;
  /// How long after that the others' transports say so (the rank died); none: never (it is stuck, or its machine is
  /// gone).
  std::optional<TimeNs> noticed_after;
};

struct SimulationOptions {
  uint32_t ranks = 1;
  /// alpha: of each message, in which its sender's and its receiver's port are busy.
  TimeNs latency = kNsPerUs;
  /// In flight beside that, in which nobody is busy. The papers' models have none.
  TimeNs propagation = 0;
  /// 1 / beta, of every link; bytes of headers count.
  double bytes_per_s = 1.25e9;
  /// Of the link between two ranks, where they differ. Called for each message.
  std::function<double(uint32_t from, uint32_t to)> link_bytes_per_s;
  /// Each message comes up to so much later than it could, drawn for each: later ones overtake it.
  TimeNs jitter_max = 0;
  /// Of what Channel::charge() says.
  double work_scale = 1;
  uint64_t seed = 1;
  std::vector<SimulatedFault> faults;
  GroupOptions group;
  /// The simulation ends with an error where something is under way at this time.
  TimeNs end_at_max = 1'000'000 * kNsPerS;
};

/// A group of ranks in one thread, under a virtual clock: each is a PeerCore, and the network is a model of one.
///
///     alpha-beta    a message of L bytes keeps both ports busy for latency + L / rate.
///     single port   a rank sends one message at a time, in the order in which they were handed over, and receives one
///                   at a time, in the order in which they were sent (at one time: the lower rank's first). Who sends
///                   does not wait for a busy receiver: the network holds the message.
///     computation   what an algorithm charges; what arrives meanwhile waits.
///
/// The same options, and the same that is started, give the same times, counts and bits.
///
/// Order    nothing that is sent arrives sooner than a header takes. So all that happens within so short a time goes
///          rank by rank, each by itself, and what was sent in it is handed over afterwards in the order of the ports:
///          the memory of the ranks is gone through in one direction, ahead of its use.
/// Bodies   of some KiB that are the same bytes, wherever they were made, are kept once: in an allgather by doubling,
///          half of the ranks send the same.
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

  /// The rank starts this when it is that time, or as soon after as it has started what it was given before. `make` is
  /// called then, once.
  void start(uint32_t rank, TimeNs at, std::function<Collective()> make);

  /// Goes on until nothing is left to happen. Errors  timeout: end_at_max.
  Status run();

  struct Ended {
    Status status;
    TimeNs at = 0;
  };
  /// How what this rank started has ended, in the order of start(); none: it has not (a rank that stopped).
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
  /// Of all ranks: what was delivered.
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
  void settle(uint32_t at);
  void schedule(uint32_t at);
  void look_at_sends(uint32_t at);
  TimeNs scaled(TimeNs work) const;
  TimeNs transfer_time(uint32_t from, uint32_t to, uint64_t bytes) const;

  SimulationOptions options_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<Hot> hot_;
  Earliest earliest_;
  TimeNs lookahead_ = 1;  ///< what is sent now arrives so much later at least
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
