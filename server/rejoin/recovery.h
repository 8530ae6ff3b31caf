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
#include "server/base/memory_account.h"
#include "server/membership/members.h"
#include "server/membership/membership_changes.h"
#include "server/part/part_round.h"

namespace millrace::server {

/// Whether a member's State says something of every part of the job that can be, in this view.
bool makes_sense(const protocol::State& state, const protocol::JobLayout& layout, const protocol::JobView& view);

/// A shard that has a job's log to find again, because it started from nothing or because a cut made void what it had
/// (R8). It asks every member of the view where it stands; when all have answered in that view's epoch, it fetches the
/// updates that synced members still need from those who keep them, and the summary of the furthest. Pure: what is to
/// be swapped in the table is asked of it (stage(), removals()).
///
/// Epochs   what was answered and fetched holds for one epoch; begin_epoch() asks everybody anew.
/// Hostile  answers are checked against the view, fetched updates are decoded. Who gives what is none twice is passed
///          over, and removed where nobody else has it.
/// Store    a job with one needs more: what came after the shard's last save. All that is kept without a gap is
///          fetched.
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
  };
  enum class Stage : uint8_t {
    kCollecting,  ///< members have not answered
    kFetching,    ///< updates and summaries are on their way
    kStuck,       ///< nothing more comes without removals()
    kReady,       ///< activate(parent()), then take()
    kCut,         ///< nobody is synced: cut(choice())
  };
  /// Members without whom it goes on.
  struct Removals {
    Leaving why = Leaving::kSilent;
    std::vector<protocol::Member> members;
  };

  Recovery(Setup setup, TimeNs now) : setup_(setup), majority_at_(now) {}

  /// The view is a new one.
  void begin_epoch(TimeNs now, Actions& actions);
  /// A member has been welcomed: what it was asked before it may not have got.
  void greet(uint32_t worker, TimeNs now, Actions& actions);
  /// REQUIRES, of all three: sent in the view's epoch by that member; makes_sense().
  void on_state(const protocol::Member& from, const protocol::State& state, TimeNs now, Actions& actions);
  void on_update(const protocol::Member& from, const protocol::Update& body, const SharedBytes& payload, TimeNs now,
                 Actions& actions);
  void on_fetched(const protocol::Member& from, const protocol::Fetched& body, TimeNs now, Actions& actions);
  /// Asks again who has not answered for a heartbeat.
  void on_tick(TimeNs now, Actions& actions);
  TimeNs deadline() const { return next_ask_; }

  Stage stage() const { return stage_; }
  /// Whom the job goes on without: who gives nothing that is right, or needs what nobody keeps; who has not answered
  /// for dead_after_ms, if a majority has (R8c).
  Removals removals(TimeNs now) const;
  /// Fewer than a majority of the members have answered for so long.
  TimeNs without_majority(TimeNs now) const;
  /// R8e: Greatest lineage of this shard among the synced members' states. REQUIRES: kReady.
  uint64_t parent() const;
  /// REQUIRES: kCut.
  CutChoice choice() const;
  /// What was found, by this shard's parts; the states of the synced members stay. REQUIRES: kReady.
  std::vector<PartRound::Restored> take();
  /// Calls visit(worker, state) for each synced member. REQUIRES: kReady.
  template <typename Visit>
  void for_each_synced(const Visit& visit) const {
    for (const auto& [worker, answer] : answers_) {
      if (answer.synced) visit(worker, answer.state);
    }
  }

  /// Who has not answered, or not given what it keeps.
  std::vector<uint32_t> waited_for() const;
  /// This process stood still: nobody is to blame for that time.
  void forgive(TimeNs paused);

 private:
  struct Answer {
    protocol::State state;
    bool synced = false;  ///< by its own word and the table's
    MemoryCharge charge;
  };
  struct Ask {
    uint64_t life = 0;
    TimeNs since = 0;
    TimeNs asked = 0;
  };
  /// Steps [first, below) of a part from one member.
  struct Source {
    uint32_t worker = 0;
    uint64_t first = 0;
    uint64_t below = 0;
    TimeNs since = 0;    ///< when it last gave something
    TimeNs asked = 0;    ///< 0: not yet
    uint32_t wrong = 0;  ///< answers that were none, or not whole
  };
  struct PartFetch {
    const protocol::PartLayout* layout = nullptr;
    uint64_t first = 0;  ///< the least step that a synced member needs
    uint64_t wanted =
        0;              ///< the least step that the job's store may need, if somebody keeps it; `first` without a store
    uint64_t from = 0;  ///< steps [from, decided) are fetched
    uint64_t decided = 0;  ///< the furthest synced member's
    uint64_t decided_in = 0;
    std::vector<Source> sources;  ///< the first one gives the summary
    std::map<uint64_t, PartRound::KeptUpdate> got;
    std::optional<protocol::Summary> summary;
    std::set<uint32_t> wrong;  ///< members that are not asked any more

    bool complete() const { return summary && got.size() == decided - from; }
  };

  TimeNs heartbeat() const { return static_cast<TimeNs>(setup_.spec.heartbeat_ms) * kNsPerMs; }
  /// Half of them is enough: of two workers one may die for good.
  bool majority() const { return answers_.size() * 2 >= setup_.members.all().size(); }
  uint64_t first_missing(const PartFetch& part, const Source& source) const;
  void ask(TimeNs now, Actions& actions);
  void ask_members(TimeNs now, Actions& actions);
  void ask_sources(TimeNs now, Actions& actions);
  void plan(TimeNs now, Actions& actions);
  void choose_sources(PartFetch& part, TimeNs now);
  void wrong(PartFetch& part, Source& source, TimeNs now, Actions& actions);
  void settle_stage();
  void count(Metric metric, std::string_view label, Actions& actions) const;

  Setup setup_;
  Stage stage_ = Stage::kCollecting;
  std::map<uint32_t, Answer> answers_;  ///< in this epoch, by worker
  std::map<uint32_t, Ask> asks_;        ///< of who has not answered
  std::vector<PartFetch> parts_;        ///< once all have answered
  std::map<uint32_t, Leaving> stuck_;   ///< whom the job goes on without, and why
  TimeNs majority_at_;
  TimeNs next_ask_ = 0;
};

}  // namespace millrace::server
