#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/stream/stream.h"
#include "protocol/layout.h"
#include "protocol/messages.h"
#include "tests/sim/scenario.h"

namespace millrace::testing {

/// A part's step as the wire showed it.
struct DecidedStep {
  uint64_t decided_in = 0;
  std::vector<protocol::ContributorId> contributors;
  double weight_sum = 0;
  bool whole_sum = true;
  uint64_t payload_hash = 0;
  Stream<float> update;        ///< as decoded
  std::vector<bool> carried;   ///< [part] entries that the contributors lose to it
  std::vector<float> sum;      ///< [part] of the contributions, in the order of the workers
  std::vector<float> weights;  ///< [part] after this step
};

/// Watches every message as it is sent, before the network touches it, and keeps the books apart from the code under test: what
/// each worker contributed, what each update must therefore be, what was carried, which weights follow.
/// Disagreements are collected in
/// faults(); nothing is asserted here, so that a trace can be written first.
class ClusterOracle {
 public:
  ClusterOracle(const Scenario& scenario, const protocol::JobLayout& layout);

  void on_sent_by_worker(const protocol::Message& message);
  void on_sent_by_shard(const protocol::Message& message);

  /// Every view that the table held, oldest first.
  void on_view(const protocol::JobView& view);

  /// A shard cut by an older threshold, because a peer was silent or the members changed after the shards had
  /// agreed: from here on
  /// sizes of updates are not exact.
  void on_approximate_cut() { approximate_cuts_ = true; }

  const std::vector<DecidedStep>& log(uint32_t part) const { return log_[part]; }
  bool counted(uint32_t part, uint64_t step, uint32_t worker, uint64_t life) const;

  /// What updates carried of the contributions of that life of the worker so far. [dimension of the bucket]
  std::span<const double> carried(uint32_t worker, uint64_t life, uint32_t bucket);

  /// Weights of a part after `steps` of its steps, from zero. REQUIRES: so many are decided.
  std::vector<float> weights(uint32_t part, uint64_t steps) const;

  /// What was sent as (part, step) by that life of the worker, if the wire saw it.
  const Stream<float>* contribution(uint32_t part, uint64_t step, uint32_t worker, uint64_t life) const;

  bool started() const { return !views_.empty() && views_.rbegin()->second.started; }
  uint64_t steps_decided() const { return steps_decided_; }
  const std::map<uint64_t, protocol::JobView>& views() const { return views_; }
  const std::vector<std::string>& faults() const { return faults_; }

 private:
  struct Contributed {
    uint64_t hash = 0;
    double weight = 1;
    Stream<float> stream;
  };
  struct ByWorkerAndLife {
    bool operator()(const protocol::ContributorId& a, const protocol::ContributorId& b) const {
      return std::tie(a.worker, a.life) < std::tie(b.worker, b.life);
    }
  };
  using ContributionKey = std::tuple<uint32_t, uint64_t, uint32_t, uint64_t>;  // part, step, worker, life

  void on_contribution(const protocol::Message& message, const protocol::Contribution& body);
  void on_update(const protocol::Message& message, const protocol::Update& body);
  void on_settled(const protocol::Message& message, const protocol::Settled& body);
  void decide(const protocol::Message& message, const protocol::Update& body);
  void add_up(uint32_t part, uint64_t step, const protocol::Update& body, DecidedStep& decided);
  void check_values(uint32_t part, uint64_t step, const DecidedStep& decided);
  void check_contributors(uint32_t part, uint64_t step, const protocol::Update& body);
  void check_absence(uint32_t part, uint64_t step, const protocol::Update& body, const protocol::JobView& view);
  void check_cut(uint32_t bucket, uint64_t step);
  void check_reuse_size(uint32_t bucket_number, uint64_t step, uint64_t k);
  void check_cut_entries(uint32_t bucket, uint64_t step, uint64_t k);
  void fault(const std::string& sentence) { faults_.push_back(sentence); }

  const Scenario& scenario_;
  const protocol::JobLayout& layout_;
  std::map<ContributionKey, Contributed> contributions_;
  std::vector<std::vector<DecidedStep>> log_;                                                     ///< [part][step]
  std::map<protocol::ContributorId, std::vector<std::vector<double>>, ByWorkerAndLife> carried_;  ///< [bucket][index]
  std::map<uint64_t, protocol::JobView> views_;                                                   ///< by epoch
  std::set<std::pair<uint32_t, uint64_t>> finishing_;  ///< (worker, life) that said so
  std::vector<std::string> faults_;
  uint64_t steps_decided_ = 0;
  bool approximate_cuts_ = false;
};

/// weights[i] -= sum[i] / denominator: what a worker of the simulation does with an update.
void apply_update(std::span<float> weights, const StreamView<float>& sum, double denominator);

/// The denominator that a job's rule for combining gives.
double denominator_of(const protocol::JobSpec& spec, size_t contributors, double weight_sum);

}  // namespace millrace::testing
