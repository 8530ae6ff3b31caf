#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "kernels/base/clock.h"
#include "protocol/job/job_spec.h"
#include "protocol/job/layout.h"
#include "protocol/messages/messages.h"
#include "server/base/actions.h"
#include "server/membership/members.h"
#include "server/membership/membership_changes.h"
#include "server/rounds/job_rounds.h"

namespace millrace::server {

/// Decides, part by part, how the joining members of a job continue at one active shard (R9).
///
/// A joiner that is on the log and lacks only updates that the shard retains continues with its own weights. Any other
/// joiner gets a synced member's weights. The shard passes these on run by run as they arrive. Only one part per joiner
/// is under way at a time. A joiner that no member can give weights is stranded. When all members are stranded, the log
/// is cut to one of their states (R10a).
///
/// Path switch  shards have no step and no update: a joiner always takes a synced member's weights. At shard 0 it also
///              takes the state for its turns (a handover: bytes that are passed on). The giver makes no steps
///              meanwhile.
/// Epochs   settlements count in one epoch: begin_epoch() forgets them.
/// Order    on a joiner's connection, the updates that its own state lacks up to the snapshot come first. They show
///          which of its sent entries were carried. Then come the snapshot, Settle, and the later updates.
/// Hostile  runs are checked against the request; a giver that sends others is passed over.
class Settlement {
 public:
  struct Setup {
    const protocol::JobSpec& spec;  ///< all outlive this
    const protocol::JobLayout& layout;
    const Members& members;
    JobRounds& rounds;
    uint32_t shard = 0;
  };

  explicit Settlement(Setup setup) : setup_(setup) {}

  void begin_epoch() { joiners_.clear(); }
  /// REQUIRES: sent in the membership's epoch by that member; makes_sense().
  void on_state(const protocol::Member& from, const protocol::State& state, TimeNs now, Actions& actions);
  /// REQUIRES: sent in the membership's epoch by that member.
  void on_snapshot(const protocol::Member& from, const protocol::Snapshot& body, SharedBytes payload, TimeNs now,
                   Actions& actions);
  /// Handles that bytes of an unfinished message came from a member: perhaps of a run, or of a message before it.
  void on_arriving(uint32_t worker, uint64_t bytes, TimeNs now);
  /// Handles that a member has said Hello. Messages of its earlier connection may be lost: a request to a giver, its
  /// runs, and runs and Settles for a joiner.
  void on_welcomed(uint32_t worker, TimeNs now, Actions& actions);
  /// Passes over givers from which no byte has come for two heartbeats, and asks again after a rest.
  void on_tick(TimeNs now, Actions& actions);
  std::optional<TimeNs> deadline() const;

  /// R10a: Returns the state to return to, if all members are joining and none of them can continue.
  std::optional<CutChoice> cut() const;
  /// Lists joiners that are blocked on weights, and the members that may give them (none, where no synced member that
  /// has weights is connected).
  struct Waiting {
    std::vector<uint32_t> joiners;
    std::vector<uint32_t> givers;
    TimeNs since = 0;
  };
  Waiting waiting() const;

 private:
  struct Transfer {
    uint32_t part = 0;
    uint32_t giver = 0;
    TimeNs asked = 0;
    TimeNs moved = 0;                ///< when it was asked for, or when the last run came
    TimeNs heard = 0;                ///< ... or bytes that may be of the next one
    std::optional<uint64_t> n = {};  ///< of its runs
    uint64_t offset = 0;             ///< values that have come
    uint64_t bytes = 0;              ///< of a handover, as its first run announces
  };
  struct Joiner {
    uint64_t incarnation = 0;
    std::optional<protocol::PeerId> peer;  ///< the connection of its first State
    protocol::State state;
    MemoryCharge charge;
    TimeNs since = 0;                 ///< when it first reported its state
    std::map<uint32_t, TimeNs> told;  ///< by part: when its Settle was last sent
    std::deque<uint32_t> wanting;  ///< parts that need a snapshot; the first one is under way while there is a transfer
    std::optional<Transfer> transfer;
    std::optional<Transfer> late;        ///< given up for its giver's silence, until a giver is asked again
    TimeNs rests_until = 0;              ///< no part is asked for before; 0: no rest
    std::optional<uint32_t> rests_from;  ///< the giver of the last part
    std::set<uint32_t> passed_over;      ///< givers
  };

  TimeNs heartbeat() const { return setup_.spec.heartbeat.count() * kNsPerMs; }
  const protocol::Member& member(uint32_t worker) const;
  /// Returns whether only the rest after its last part, or a long queue, keeps the joiner from getting the next one.
  static bool rests(const Joiner& joiner);
  bool by_switch() const { return setup_.spec.path == protocol::Path::kSwitch; }
  /// Returns the part number under which a handover travels, where this shard passes handovers on.
  std::optional<uint32_t> handover_part() const;
  bool is_on_log(const Joiner& joiner, const PartRound& part) const;
  /// Returns whether the joiner may keep its own weights (R9d). They must be on the log. They must not be initial
  /// weights in a job that begins with those of another worker.
  bool may_use_own_weights(const Joiner& joiner, const PartRound& part) const;
  void judge(const protocol::Member& who, Joiner& joiner, const PartRound& part, TimeNs now, Actions& actions);
  void settle(const protocol::Member& who, Joiner& joiner, const PartRound& part, protocol::Settle::Weights weights,
              Actions& actions) const;
  /// Returns whether a worker without weights, of a job with a store, continues with the log where it is, and pulls.
  bool needs_no_weights(const protocol::Member& who) const;
  void settle_by_store(const protocol::Member& who, Joiner& joiner, const PartRound& part, Actions& actions) const;
  void ask_givers(TimeNs now, Actions& actions);
  std::optional<uint32_t> giver_for(Joiner& joiner, uint32_t worker) const;
  bool fits(const Joiner& joiner, const protocol::Snapshot& body, const SharedBytes& payload) const;
  void hand_on(const protocol::Member& who, Joiner& joiner, const protocol::Snapshot& body, SharedBytes payload,
               TimeNs now, Actions& actions);
  void hand_over(const protocol::Member& who, Joiner& joiner, const protocol::Snapshot& body, SharedBytes payload,
                 TimeNs now, Actions& actions);
  void give_up(Joiner& joiner) const;
  void count(Metric metric, std::string_view label, double value, Actions& actions) const;

  Setup setup_;
  std::map<uint32_t, Joiner> joiners_;  ///< that have reported their state in this epoch, by worker
};

}  // namespace millrace::server
