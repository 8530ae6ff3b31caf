#include "worker/bench/peers/simulated_run.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <optional>
#include <utility>

#include "worker/peer/simulation/simulated_allreduce.h"

namespace millrace::peer {
namespace {

bool same_bits(const StreamView& a, const StreamView& b) {
  const auto equal = [](const void* left, const void* right, size_t bytes) {
    return left == right || bytes == 0 || std::memcmp(left, right, bytes) == 0;
  };
  return a.dimension == b.dimension && a.dense == b.dense && a.indices.size() == b.indices.size() &&
         a.values.size() == b.values.size() && equal(a.values.data(), b.values.data(), a.values.size_bytes()) &&
         equal(a.indices.data(), b.indices.data(), a.indices.size_bytes());
}

/// Checks the law of conservation of one step, index by index: entered values less those in the result and those
/// retained. On the samples' grid it ends at exactly 0; an exact sum retains nothing, so that the same check covers it.
class Balance {
 public:
  Balance(ResultKind kind, uint64_t dimension) : kind_(kind), open_(dimension) {}

  void enter(const StreamView& own) { add(own, 1); }

  void leave(Reduced&& result, const StreamView& own) {
    if (!first_) {
      add(result.sum.view, -1);
      add(result.returned.view(), -1);
      subtract_kept_own(own, result.contributed);
      first_ = std::move(result.sum);
      return;
    }
    same_ = same_ && same_bits(first_->view, result.sum.view);
    add(result.returned.view(), -1);
    subtract_kept_own(own, result.contributed);
  }

  bool holds() const {
    return same_ && first_ && std::ranges::all_of(open_, [](double value) { return value == 0; });
  }

 private:
  void add(const StreamView& stream, double sign) {
    for (size_t i = 0; i < stream.values.size(); ++i) {
      open_[stream.dense ? i : stream.indices[i]] += sign * static_cast<double>(stream.values[i]);
    }
  }

  void subtract_kept_own(const StreamView& own, const IndexBuffer& contributed) {
    if (kind_ == ResultKind::kExactSum) return;
    size_t next = 0;
    for (size_t i = 0; i < own.values.size(); ++i) {
      if (next < contributed.size() && contributed[next] == own.indices[i]) {
        ++next;
      } else {
        open_[own.indices[i]] -= static_cast<double>(own.values[i]);
      }
    }
    same_ = same_ && next == contributed.size();  // it handed over an entry that it did not have
  }

  ResultKind kind_;
  std::vector<double> open_;
  std::optional<SharedStream> first_;
  bool same_ = true;
};

/// Counts the bytes on the wire since the last call, by rank.
class Meter {
 public:
  explicit Meter(const Simulation& simulation) : simulation_(simulation), before_(simulation.size()) {}

  void read(SimulatedStep& step) {
    for (uint32_t rank = 0; rank < before_.size(); ++rank) {
      const Simulation::Counts& now = simulation_.counts(rank);
      Simulation::Counts& before = before_[rank];
      const uint64_t messages = now.traffic.messages_sent - before.traffic.messages_sent;
      const uint64_t bytes = now.traffic.bytes_sent - before.traffic.bytes_sent;
      const uint64_t body =
          std::max(now.body_bytes_sent - before.body_bytes_sent, now.body_bytes_received - before.body_bytes_received);
      step.messages_max = std::max(step.messages_max, messages);
      step.messages_mean += static_cast<double>(messages) / static_cast<double>(before_.size());
      step.bytes_max = std::max(step.bytes_max, bytes);
      step.bytes_mean += static_cast<double>(bytes) / static_cast<double>(before_.size());
      step.words_max = std::max(step.words_max, static_cast<double>(body) / sizeof(float));
      step.work_s_max = std::max(step.work_s_max, static_cast<double>(now.work - before.work) / kNsPerS);
      before = now;
    }
  }

 private:
  const Simulation& simulation_;
  std::vector<Simulation::Counts> before_;
};

}  // namespace

Result<SimulatedRun> run_simulated(AlgorithmId id, const SimulatedRunOptions& options) {
  const TimeNs begin = monotonic_now_ns();
  auto all = SimulatedAllreduce::make(options.network, id, options.settings);
  if (!all) return std::unexpected(all.error());
  Simulation& simulation = (*all)->simulation();
  Meter meter(simulation);
  SimulatedRun run;
  for (uint64_t at = 0; at < options.steps; ++at) {
    Balance balance(algorithm_info(id).result, options.settings.dimension);
    const auto own = [&](uint32_t rank) {
      SharedStream mine = sample_contribution(options.samples, rank, at);
      balance.enter(mine.view);
      return mine;
    };
    const auto done = [&](uint32_t, Reduced result, const SharedStream& mine) {
      balance.leave(std::move(result), mine.view);
    };
    const Result<TimeNs> took = (*all)->step(own, done);
    if (!took) return std::unexpected(took.error());
    SimulatedStep& step = run.steps.emplace_back();
    step.evaluates = evaluates_in(id, options.settings, at);
    step.virtual_s = static_cast<double>(*took) / kNsPerS;
    step.correct = balance.holds();
    meter.read(step);
  }
  run.messages = simulation.messages();
  run.wall_s = static_cast<double>(monotonic_now_ns() - begin) / kNsPerS;
  return run;
}

bool evaluates_in(AlgorithmId id, const AllreduceSettings& settings, uint64_t step) {
  return id == AlgorithmId::kOktopk &&
         (step % settings.boundaries_period == 0 || step % settings.thresholds_period == 0);
}

double evaluating_share(AlgorithmId id, const AllreduceSettings& settings) {
  if (id != AlgorithmId::kOktopk) return 0;
  const double tau = settings.boundaries_period, tau_prime = settings.thresholds_period;
  const auto both =
      static_cast<double>(std::lcm(uint64_t{settings.boundaries_period}, uint64_t{settings.thresholds_period}));
  return 1 / tau + 1 / tau_prime - 1 / both;
}

double words_bound(uint64_t k, uint32_t ranks) { return 6.0 * static_cast<double>(k) * (ranks - 1) / ranks; }

}  // namespace millrace::peer
