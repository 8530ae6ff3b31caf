#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "protocol/job/job_spec.h"
#include "protocol/job/layout.h"
#include "protocol/messages/messages.h"

namespace millrace::testing {

/// The membership table, reduced to one job and to what workers can see of it.
struct ToyTable {
  protocol::JobSpec spec;
  protocol::JobLayout layout;
  protocol::Membership membership;

  ToyTable(const protocol::JobSpec& spec_, uint32_t shard_count);
  /// As a shard would: adds the worker, or recognises it. The incarnation; 0: refused.
  uint64_t join(uint32_t worker, const protocol::Hello& hello);
  void remove(uint32_t worker);
  const protocol::Member* member(uint32_t worker) const;
  uint64_t synced_members() const;

  // Each conditional on the epoch. False: it is another by now.
  bool make_synced(uint32_t worker, uint64_t incarnation, uint64_t epoch);
  bool activate(uint32_t shard, uint64_t parent, uint64_t epoch);
  bool cut(uint32_t worker, const protocol::State& state, uint64_t epoch);
  std::function<void(uint32_t part, uint64_t n)> truncate;  ///< by a cut: the decisions from step n on are void

 private:
  std::map<uint32_t, uint64_t> lives_;
};

/// The decision of one step of one part.
struct ToyDecision {
  std::set<uint32_t> counted;
  std::map<uint64_t, double> carried;  ///< index in the bucket -> sum, of the entries that the update carries
  std::map<uint32_t, Stream> streams;  ///< by worker, of those counted
  protocol::Update update;
  SharedBytes payload;
};

/// A slow and obvious shard: decides a step of a part when every synced member's contribution is in. It sums in
/// ascending order of workers and keeps updates until all members have them. The test can change the contributions that
/// it counts and the entries that it carries. It can lose everything: then it collects (8), and settles joiners (9).
/// Its log() is the true log, which only the test still sees after a crash.
class ToyShard {
 public:
  ToyShard(ToyTable& table, uint32_t number) : table_(table), number_(number) {
    parts_.resize(table.layout.parts.size());
  }

  /// Takes one message; appends the answers to `out`, by worker.
  using Out = std::vector<std::pair<uint32_t, protocol::Message>>;
  void on_message(uint32_t worker, const protocol::Message& message, Out& out);
  /// Takes over the table's view: notifies all members, then serves again the updates that lack acknowledgements.
  void adopt_membership(Out& out);
  void disconnect(uint32_t worker);
  /// Starts a new process without any state. REQUIRES: the table has its new incarnation.
  void crash();
  /// Asks again the workers without an answer, as a heartbeat would.
  void poll(Out& out);
  bool recovering() const { return recovering_; }
  void truncate(uint32_t part, uint64_t n);

  const std::map<uint64_t, ToyDecision>& log(uint32_t part) const { return parts_[part].log; }
  uint64_t acknowledged(uint32_t part, uint32_t worker) const;

  uint64_t incarnation = 1;
  std::optional<protocol::Refuse> refuses;  ///< every Hello
  /// Selects the members whose contributions are counted, among those that contributed; default: all.
  std::function<std::set<uint32_t>(uint32_t part, uint64_t step, const std::set<uint32_t>& in)> count;
  /// Selects the entries of the sum that the update carries; default: all (then the update says whole_sum).
  std::function<bool(uint32_t part, uint64_t step, uint64_t index)> carry;
  std::function<bool()> prefers_snapshot;  ///< to a joiner that could go on with its own weights
  std::function<void(uint32_t part, const ToyDecision&)> voided;
  std::vector<std::string> complaints;  ///< actions that a correct worker never takes

 private:
  struct Slot {
    protocol::Contribution contribution;
    Stream stream;
    uint64_t incarnation = 0;
  };
  struct Part {
    std::map<uint64_t, std::map<uint32_t, Slot>> open;
    std::map<uint64_t, ToyDecision> log;
    std::map<uint32_t, uint64_t> acks;
    uint64_t first_kept = 0;  ///< the part of the log that the present process has
    std::map<uint64_t, protocol::Message> fetched;
    uint64_t furthest = 0;  ///< n of the synced, while it recovers
    std::set<uint32_t> fetched_from;
  };
  /// A part of a joining worker.
  struct Joiner {
    protocol::State::Part stands;
    bool on_log = false;
    bool asked = false;  ///< for a snapshot
    bool settled = false;
  };

  protocol::Message to(uint32_t worker, protocol::Body body, SharedBytes payload = {}) const;
  void serve(uint32_t worker, const ToyDecision& decision, Out& out) const;
  void on_hello(uint32_t worker, const protocol::Hello& hello, Out& out);
  void on_contribution(uint32_t worker, const protocol::Message& message, Out& out);
  void decide(uint32_t part, Out& out);
  void close(uint32_t part, uint64_t step, Out& out);
  uint64_t life_of(uint32_t worker) const;
  uint64_t stable(uint32_t part) const;
  bool is_mine(uint32_t part) const { return table_.layout.parts[part].shard == number_; }

  // toy_returns.cc
  void on_return_message(uint32_t worker, const protocol::Message& message, Out& out);
  void begin_recovery(Out& out);
  void on_state(uint32_t worker, const protocol::State& state, Out& out);
  void fetch_when_all_answered(Out& out);
  void on_fetched(uint32_t worker, const protocol::Fetched& fetched, Out& out);
  void activate(Out& out);
  void restore(uint32_t part);
  void cut_when_nobody_can_go_on(Out& out);
  void judge(uint32_t worker, Out& out);
  void settle(uint32_t worker, uint32_t part, protocol::Settle::Weights weights, Out& out);
  void on_snapshot(uint32_t worker, const protocol::Message& message, Out& out);
  protocol::Summary summary(uint32_t part, uint64_t n) const;
  std::optional<protocol::SummaryEntry> counted(uint32_t part, uint64_t n, uint32_t worker) const;

  ToyTable& table_;
  uint32_t number_;
  protocol::Membership membership_;
  std::set<uint32_t> connected_;
  bool recovering_ = false;
  bool fetching_ = false;
  uint64_t branch_ = 0;
  std::map<uint32_t, protocol::State> states_;               ///< of this epoch
  std::map<std::pair<uint32_t, uint32_t>, Joiner> joiners_;  ///< (worker, part), of this epoch
  std::map<uint32_t, uint64_t> ack_lives_;
  std::vector<Part> parts_;
  std::map<std::tuple<uint32_t, uint32_t, uint64_t, uint64_t>, uint64_t>
      hashes_;  ///< (part, worker, incarnation, step) -> payload hash: bytes never change
};

}  // namespace millrace::testing
