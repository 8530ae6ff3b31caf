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
/// at most one shard decides a part's steps, so that this names one log, also where shards came back and decided a step
/// anew.
struct LogPosition {
  uint64_t n = 0;
  uint64_t decided_in = 0;
  auto operator<=>(const LogPosition&) const = default;
};

/// A part's step as the wire showed it.
struct DecidedStep {
  uint64_t decided_in = 0;
  uint64_t lineage = 0;  ///< in which it was first seen
  LogPosition before;    ///< the log that it goes on
  std::vector<protocol::ContributorId> contributors;
  double weight_sum = 0;
  bool whole_sum = true;
  uint64_t identity = 0;       ///< container_identity() of its payload
  Stream update;               ///< as decoded
  std::vector<bool> carried;   ///< [part] entries that the contributors lose to it
  std::vector<float> sum;      ///< [part] of the contributions, in the order of the workers
  std::vector<float> weights;  ///< [part] after this step
};

/// Watches every message as it is sent, before the network touches it, and keeps the books apart from the code under
/// test: what each worker contributed, what each update must therefore be, what was carried, which weights follow.
/// Disagreements are collected in
/// faults(); nothing is asserted here, so that a trace can be written first.
class ClusterOracle {
 public:
  ClusterOracle(const Scenario& scenario, const protocol::JobLayout& layout);

  void on_sent_by_worker(const protocol::Message& message);
  void on_sent_by_shard(const protocol::Message& message);

  /// That worker has said, and it is so, that it has taken the log up to there.
  void on_acknowledged(uint32_t worker, uint32_t part, LogPosition at);
  /// Workers that have said so of a log that goes through that place.
  uint32_t acknowledged(uint32_t part, LogPosition at) const;
  /// The fewest members that a view had since somebody left, having finished; before that UINT32_MAX.
  uint32_t members_least() const;

  /// Every view that the table held, oldest first.
  void on_view(const protocol::JobView& view);

  /// A shard cut by an older threshold, because a peer was silent or the members changed after the shards had
  /// agreed: from here on
  /// sizes of updates are not exact.
  void on_approximate_cut() { approximate_cuts_ = true; }

  /// The last step before that place; nullptr: never decided, or at.n is 0.
  const DecidedStep* find(uint32_t part, LogPosition at) const;
  /// Whether the log that ends at `later` goes through `earlier`.
  bool is_on_path(uint32_t part, LogPosition earlier, LogPosition later) const;
  /// The places that the log goes through from step `first` on: of the steps [first, at.n), ascending.
  std::vector<LogPosition> path(uint32_t part, uint64_t first, LogPosition at) const;
  bool counted(uint32_t part, LogPosition at, uint32_t worker, uint64_t life) const;

  /// Weights of a part at a place of its log, from zero. REQUIRES: decided.
  std::vector<float> weights(uint32_t part, LogPosition at) const;

  /// Adds to `carried` [dimension of the part] what the step before that place carried of that life's contribution.
  void add_carried(uint32_t part, LogPosition at, uint32_t worker, uint64_t life, std::span<double> carried) const;

  /// What was sent as (part, step) by that life of the worker, if the wire saw it. Mode asynchronous: as that number.
  const Stream* contribution(uint32_t part, uint64_t step, uint32_t worker, uint64_t life) const;
  /// Where that is of a contributor to that step.
  const Stream* contribution_of(uint32_t part, uint64_t step, const protocol::ContributorId& who) const;

  /// A shard came back without its state: what it knew of thresholds is gone, and updates may have become void.
  void on_shard_restart() { approximate_cuts_ = true; }
  /// Steps that were decided and then decided anew: nobody who was asked had the first.
  uint64_t steps_void() const { return steps_void_; }

  /// Messages that had several steps in one update.
  uint64_t updates_merged() const { return updates_merged_; }

  bool started() const { return !views_.empty() && views_.rbegin()->second.started; }
  uint64_t steps_decided() const { return steps_decided_; }
  const std::map<uint64_t, protocol::JobView>& views() const { return views_; }
  const std::vector<std::string>& faults() const { return faults_; }

 private:
  struct Contributed {
    uint64_t hash = 0;
    double weight = 1;
    Stream stream;
  };
  using ContributionKey = std::tuple<uint32_t, uint64_t, uint32_t, uint64_t>;  // part, step or number, worker, life
  bool asynchronous() const { return scenario_.spec.mode == protocol::Mode::kAsynchronous; }
  ContributionKey key_of(uint32_t part, uint64_t step, const protocol::ContributorId& who) const {
    return {part, asynchronous() ? who.sequence : step, who.worker, who.life};
  }
  const protocol::ContributorId* find_contributor(uint32_t part, LogPosition at, uint32_t worker, uint64_t life) const;
  /// Empty: one contributor, a synced member of that view, of whom everything before it was counted, and it was not.
  std::string disorder(uint32_t part, LogPosition before, const protocol::Update& body,
                       const protocol::JobView& view) const;

  void on_contribution(const protocol::Message& message, const protocol::Contribution& body);
  void on_update(const protocol::Message& message, const protocol::Update& body);
  void on_settled(const protocol::Message& message, const protocol::Settled& body);
  void on_merged(const protocol::Message& message, const protocol::Update& body);
  void check_same(const protocol::Update& body, uint64_t identity);
  void decide(const protocol::Update& body, uint64_t identity, Result<Stream> update);
  void add_up(uint32_t part, uint64_t step, const protocol::Update& body, DecidedStep& decided);
  void check_values(uint32_t part, uint64_t step, const DecidedStep& decided);
  void check_contributors(uint32_t part, LogPosition before, const protocol::Update& body);
  /// Empty: whoever is left out may be, by the mode and the members of that view.
  std::string absence(uint32_t part, LogPosition before, const protocol::Update& body,
                      const protocol::JobView& view) const;
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
  std::map<uint64_t, protocol::JobView> views_;                    ///< by epoch
  std::set<std::pair<uint32_t, uint64_t>> finishing_;              ///< (worker, life) that said so
  std::map<std::pair<uint32_t, uint32_t>, std::set<LogPosition>> acknowledged_;  ///< by (part, worker)
  std::vector<std::string> faults_;
  uint64_t steps_decided_ = 0;
  uint64_t updates_merged_ = 0;
  uint64_t steps_void_ = 0;
  bool approximate_cuts_ = false;
};

/// weights[i] -= sum[i] / denominator: what a worker of the simulation does with an update.
void apply_update(std::span<float> weights, const StreamView& sum, double denominator);

/// The denominator that a job's rule for combining gives.
double denominator_of(const protocol::JobSpec& spec, size_t contributors, double weight_sum);

}  // namespace millrace::testing
