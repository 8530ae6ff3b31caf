#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/stream/stream.h"
#include "protocol/job/layout.h"
#include "protocol/messages/messages.h"
#include "tests/sim/scenario.h"

namespace millrace::testing {

/// A place in a part's log: after n steps, the last of them decided in that epoch. {0, 0}: the beginning. In one epoch
/// at most one shard decides a part's steps. A place therefore identifies one log, also where a shard recovered and
/// decided a step again.
struct LogPosition {
  uint64_t n = 0;
  uint64_t decided_in = 0;
  auto operator<=>(const LogPosition&) const = default;
};

/// A part's step as the wire showed it.
struct DecidedStep {
  uint64_t decided_in = 0;
  uint64_t branch = 0;  ///< in which it was first seen
  LogPosition before;   ///< the log that it continues
  std::vector<protocol::ContributorId> contributors;
  double weight_sum = 0;
  bool whole_sum = true;
  uint64_t identity = 0;       ///< container_identity() of its payload
  Stream update;               ///< as decoded
  std::vector<bool> carried;   ///< [part] entries that the contributors lose to it
  std::vector<float> sum;      ///< [part] of the contributions, in the order of the workers
  std::vector<float> weights;  ///< [part] after this step
};

/// Watches every message as it is sent, before the network touches it. Keeps accounts apart from the code under test:
/// each worker's contributions, the updates that follow from them, the entries that updates carried, the weights.
/// Collects disagreements in faults() and asserts nothing, so that the caller can write a trace first.
class ClusterOracle {
 public:
  ClusterOracle(const Scenario& scenario, const protocol::JobLayout& layout);

  void on_sent_by_worker(const protocol::Message& message);
  void on_sent_by_shard(const protocol::Message& message);

  /// That worker has said, and it is so, that it has taken the log up to there.
  void on_acknowledged(uint32_t worker, uint32_t part, LogPosition at);
  /// Returns the workers that have acknowledged a log that goes through that place.
  uint32_t acknowledged(uint32_t part, LogPosition at) const;
  /// Returns the fewest members of a view since a worker left because it had finished; before that UINT32_MAX.
  uint32_t members_least() const;

  /// Every view that the table held, oldest first.
  void on_membership(const protocol::Membership& membership);

  /// Notes that a shard cut by an older threshold: a peer was silent, or the members changed after the shards had
  /// agreed. From then on, sizes of updates are not exact.
  void on_approximate_cut() { approximate_cuts_ = true; }

  /// The last step before that place; nullptr: never decided, or at.n is 0.
  const DecidedStep* find(uint32_t part, LogPosition at) const;
  /// Whether the log that ends at `later` goes through `earlier`.
  bool is_on_path(uint32_t part, LogPosition earlier, LogPosition later) const;
  /// The places that the log goes through from step `first` on: of the steps [first, at.n), ascending.
  std::vector<LogPosition> path(uint32_t part, uint64_t first, LogPosition at) const;
  bool counted(uint32_t part, LogPosition at, uint32_t worker, uint64_t incarnation) const;
  /// Returns whether the step was decided, and no decision of it counted that contribution. Not of mode asynchronous.
  bool left_out(uint32_t part, uint64_t step, uint32_t worker, uint64_t incarnation) const;
  /// Returns the number of steps up to the last one so far that counted this worker, under any incarnation.
  uint64_t counted_until(uint32_t part, uint32_t worker) const;

  /// Weights of a part at a place of its log, from zero. REQUIRES: decided.
  std::vector<float> weights(uint32_t part, LogPosition at) const;

  /// Adds to `carried` [dimension of the part] the entries of that incarnation's contribution that were carried by the
  /// step before that place.
  void add_carried(uint32_t part, LogPosition at, uint32_t worker, uint64_t incarnation,
                   std::span<double> carried) const;

  /// Returns the contribution that this incarnation of the worker sent as (part, step), if the wire saw it. Mode
  /// asynchronous: `step` is the sequence number.
  const Stream* contribution(uint32_t part, uint64_t step, uint32_t worker, uint64_t incarnation) const;
  /// Where that is of a contributor to that step.
  const Stream* contribution_of(uint32_t part, uint64_t step, const protocol::ContributorId& who) const;

  /// Notes that a shard restarted without its state: its thresholds are lost, and updates may have become void.
  void on_shard_restart() { approximate_cuts_ = true; }
  /// Returns the number of steps that were decided twice, because no member that was asked had the first decision.
  uint64_t steps_void() const { return steps_void_; }

  /// Messages that had several steps in one update.
  uint64_t updates_merged() const { return updates_merged_; }

  bool started() const { return !views_.empty() && views_.rbegin()->second.started; }
  uint64_t steps_decided() const { return steps_decided_; }
  const std::map<uint64_t, protocol::Membership>& views() const { return views_; }
  const std::vector<std::string>& faults() const { return faults_; }

 private:
  struct Contributed {
    uint64_t hash = 0;
    double weight = 1;
    Stream stream;
  };
  using ContributionKey =
      std::tuple<uint32_t, uint64_t, uint32_t, uint64_t>;  // part, step or number, worker, incarnation
  bool asynchronous() const { return scenario_.spec.mode == protocol::Mode::kAsynchronous; }
  ContributionKey key_of(uint32_t part, uint64_t step, const protocol::ContributorId& who) const {
    return {part, asynchronous() ? who.sequence : step, who.worker, who.incarnation};
  }
  const protocol::ContributorId* find_contributor(uint32_t part, LogPosition at, uint32_t worker,
                                                  uint64_t incarnation) const;
  /// Returns the fault of an update out of order; empty: none. Correct is one contributor, a synced member of that view
  /// whose earlier contributions were all counted and whose present one was not.
  std::string disorder(uint32_t part, LogPosition before, const protocol::Update& body,
                       const protocol::Membership& membership) const;

  void on_contribution(const protocol::Message& message, const protocol::Contribution& body);
  void on_update(const protocol::Message& message, const protocol::Update& body);
  void on_step_decided(const protocol::Message& message, const protocol::StepDecided& body);
  void on_merged(const protocol::Message& message, const protocol::Update& body);
  void check_same(const protocol::Update& body, uint64_t identity);
  void decide(const protocol::Update& body, uint64_t identity, Result<Stream> update);
  void add_up(uint32_t part, uint64_t step, const protocol::Update& body, DecidedStep& decided);
  void check_values(uint32_t part, uint64_t step, const DecidedStep& decided);
  void check_contributors(uint32_t part, LogPosition before, const protocol::Update& body);
  /// Returns the fault of an absence; empty: the mode and the members of that view permit every absence.
  std::string absence(uint32_t part, LogPosition before, const protocol::Update& body,
                      const protocol::Membership& membership) const;
  void check_absence(uint32_t part, LogPosition before, const protocol::Update& body);
  const DecidedStep* newest(uint32_t part, uint64_t step) const;
  void check_cut(uint32_t bucket, uint64_t step);
  void check_reuse_size(uint32_t bucket_number, uint64_t step, uint64_t k);
  void check_cut_entries(uint32_t bucket, uint64_t step, uint64_t k);
  void fault(const std::string& sentence) { faults_.push_back(sentence); }

  const Scenario& scenario_;
  const protocol::JobLayout& layout_;
  std::map<ContributionKey, Contributed> contributions_;
  std::vector<std::vector<std::map<uint64_t, DecidedStep>>> log_;  ///< [part][step], by the epoch of the decision
  std::map<uint64_t, protocol::Membership> views_;                 ///< by epoch
  std::set<std::pair<uint32_t, uint64_t>> finishing_;              ///< (worker, incarnation) that announced it
  std::map<std::pair<uint32_t, uint32_t>, std::set<LogPosition>> acknowledged_;  ///< by (part, worker)
  std::vector<std::string> faults_;
  uint64_t steps_decided_ = 0;
  uint64_t updates_merged_ = 0;
  uint64_t steps_void_ = 0;
  bool approximate_cuts_ = false;
};

/// Applies an update as a worker of the simulation does: weights[i] -= sum[i] / denominator.
void apply_update(std::span<float> weights, const StreamView& sum, double denominator);

/// The denominator that a job's rule for combining gives.
double denominator_of(const protocol::JobSpec& spec, size_t contributors, double weight_sum);

}  // namespace millrace::testing
