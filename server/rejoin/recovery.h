#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "kernels/base/clock.h"
#include "protocol/base/arriving_bytes.h"
#include "protocol/job/job_spec.h"
#include "protocol/job/layout.h"
#include "protocol/messages/messages.h"
#include "server/base/actions.h"
#include "server/base/memory_account.h"
#include "server/membership/members.h"
#include "server/membership/membership_changes.h"
#include "server/part/part_round.h"

namespace millrace::server {

/// Returns whether a member's State has an entry for every part of the job and fits this membership.
bool makes_sense(const protocol::State& state, const protocol::JobLayout& layout,
                 const protocol::Membership& membership);

/// Finds a job's log again, at a shard that started without it or whose log a cut made void (R8).
///
/// The shard asks every member of the membership for its state. When all have answered in the membership's epoch, it
/// fetches the updates that synced members still need from the members that retain them. It fetches the summary from
/// the synced member that is furthest. Pure: the caller makes the changes of the table that stage() and removals() ask
/// for.
///
/// Epochs   answers and fetched updates hold for one epoch; begin_epoch() asks all members again.
/// Hostile  answers are checked against the membership; fetched updates are decoded. A member that sends an invalid
///          update twice, or repeatedly none of those that it retains, is not asked again. It is removed if no other
///          member retains them.
/// Store    a job with a store also needs the updates since the shard's last save. The shard fetches all updates that
///          members retain without a gap.
/// Cost     an update is decoded on the caller's thread; there are as many as the slowest synced member, or the store,
///          lacks.
class Recovery {
 public:
  struct Setup {
    const protocol::JobSpec& spec;  ///< all outlive this
    const protocol::JobLayout& layout;
    const Members& members;
    MemoryAccount& kept;  ///< fetched updates are charged to it
    uint32_t shard = 0;
    uint64_t message_bytes_max = 0;  ///< of a returned update
  };
  enum class Stage : uint8_t {
    kCollecting,  ///< members have not answered
    kFetching,    ///< updates and summaries are on their way
    kStuck,       ///< nothing more arrives without removals()
    kReady,       ///< activate(parent()), then take()
    kCut,         ///< no member is synced: cut(choice())
  };
  /// Holds the members to remove so that recovery can finish.
  struct Removals {
    Leaving why = Leaving::kSilent;
    std::vector<protocol::Member> members;
  };

  Recovery(Setup setup, TimeNs now) : setup_(setup), majority_at_(now) {}

  /// Begins the recovery in the epoch of a new membership.
  void begin_epoch(TimeNs now, Actions& actions);
  /// Asks a member again that this shard has just welcomed: it may have missed the earlier request.
  void greet(uint32_t worker, TimeNs now, Actions& actions);
  /// REQUIRES, of all three: sent in the membership's epoch by that member; makes_sense().
  void on_state(const protocol::Member& from, const protocol::State& state, TimeNs now, Actions& actions);
  void on_update(const protocol::Member& from, const protocol::Update& body, const SharedBytes& payload, TimeNs now,
                 Actions& actions);
  void on_fetched(const protocol::Member& from, const protocol::Fetched& body, TimeNs now, Actions& actions);
  /// Handles that bytes of an unfinished message came from a member: perhaps of an answer, or of a message before it.
  void on_arriving(uint32_t worker, uint64_t bytes, TimeNs now);
  /// Asks the members again that have not answered for a heartbeat.
  void on_tick(TimeNs now, Actions& actions);
  TimeNs deadline() const { return next_ask_; }

  Stage stage() const { return stage_; }
  /// Returns the members to evict so that recovery can finish: those that sent invalid data or need updates that no
  /// member retains. Once a majority has answered, also those that have not answered for dead_after_ms (R8c).
  Removals removals(TimeNs now) const;
  /// Returns for how long fewer than a majority of the members have answered.
  TimeNs without_majority(TimeNs now) const;
  /// R8e: Returns the greatest log branch of this shard among the synced members' states. REQUIRES: kReady.
  uint64_t parent() const;
  /// R10f: Returns how far the recovered log goes in this shard's parts. REQUIRES: kReady.
  protocol::LogReach reach() const;
  /// Returns the state to cut to. REQUIRES: kCut.
  CutChoice choice() const;
  /// Returns the recovered state of this shard's parts; the states of the synced members stay. REQUIRES: kReady.
  std::vector<PartRound::Restored> take();
  /// Calls visit(worker, state) for each synced member. REQUIRES: kReady.
  template <typename Visit>
  void for_each_synced(const Visit& visit) const {
    for (const auto& [worker, answer] : answers_) {
      if (answer.synced) visit(worker, answer.state);
    }
  }

  /// Returns the members that have not answered, or have not sent the updates that they retain.
  std::vector<uint32_t> waited_for() const;
  /// Extends the deadlines by `paused`, a time in which this process did not run: no member is to blame for it.
  void extend_deadlines(TimeNs paused);

 private:
  struct Answer {
    protocol::State state;
    bool synced = false;  ///< by its own report and the table's
    MemoryCharge charge;
  };
  struct Ask {
    uint64_t incarnation = 0;
    TimeNs since = 0;
    TimeNs asked = 0;
    protocol::ArrivingBytes arriving = {};
  };
  /// Steps [first, below) of a part from one member.
  struct Source {
    uint32_t worker = 0;
    uint64_t first = 0;
    uint64_t below = 0;
    TimeNs since = 0;  ///< when its worker last gave something, of any part
    TimeNs asked = 0;  ///< 0: not yet
    TimeNs moved = 0;  ///< when bytes came that may be of its answer
    protocol::ArrivingBytes arriving = {};
    TimeNs counted = 0;  ///< when the request was sent whose answer counted last in `empty`
    bool gave = false;   ///< its worker gave something since this part's last Fetched
    uint32_t empty = 0;  ///< incomplete answers in a row that gave nothing new
    uint32_t wrong = 0;  ///< invalid answers
  };
  struct PartFetch {
    const protocol::PartLayout* layout = nullptr;
    uint64_t first = 0;  ///< the least step that a synced member needs.
    /// The least step that the job's store may need, if a member retains it; equal to `first` without a store.
    uint64_t wanted = 0;
    uint64_t from = 0;     ///< steps [from, decided) are fetched
    uint64_t decided = 0;  ///< the furthest synced member's
    uint64_t decided_in = 0;
    std::vector<Source> sources;  ///< the first one gives the summary
    std::map<uint64_t, PartRound::RetainedUpdate> got;
    std::optional<protocol::Summary> summary;
    std::set<uint32_t> wrong;  ///< members that are not asked any more

    bool complete() const { return summary && got.size() == decided - from; }
  };

  TimeNs heartbeat() const { return setup_.spec.heartbeat.count() * kNsPerMs; }
  /// Returns whether enough members have answered. Half of them are enough: of two workers, one may be dead
  /// permanently.
  bool majority() const { return answers_.size() * 2 >= setup_.members.all().size(); }
  uint64_t first_missing(const PartFetch& part, const Source& source) const;
  /// Returns whether the source has yet to give an update, or the summary.
  bool lacks(const PartFetch& part, const Source& source) const;
  void ask(TimeNs now, Actions& actions);
  void ask_members(TimeNs now, Actions& actions);
  void ask_sources(TimeNs now, Actions& actions);
  void plan(TimeNs now, Actions& actions);
  void choose_sources(PartFetch& part, TimeNs now);
  /// Records that the worker gave something new. It sends one part after the other: all its sources have more time.
  void note_progress(uint32_t worker, TimeNs now);
  void wrong(PartFetch& part, Source& source, TimeNs now, Actions& actions);
  /// Asks other members instead. The source is gone afterwards.
  void pass_over(PartFetch& part, uint32_t worker, TimeNs now);
  void advance_stage();
  /// Returns the states that a cut may choose from.
  std::map<uint32_t, protocol::State> cut_states() const;
  void count(Metric metric, std::string_view label, Actions& actions) const;

  Setup setup_;
  Stage stage_ = Stage::kCollecting;
  std::map<uint32_t, Answer> answers_;  ///< in this epoch, by worker
  std::map<uint32_t, Ask> asks_;        ///< of the members that have not answered
  std::vector<PartFetch> parts_;        ///< once all have answered
  std::map<uint32_t, Leaving> stuck_;   ///< members to evict so that recovery can finish, and why
  TimeNs majority_at_;
  TimeNs next_ask_ = 0;
};

}  // namespace millrace::server
