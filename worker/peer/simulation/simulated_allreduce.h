#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "worker/peer/collectives/allreduce.h"
#include "worker/peer/simulation/simulation.h"

namespace millrace::peer {

/// Runs an allreduce on every rank of a simulated group, step after step: each begins when the last rank has ended the
/// one before.
class SimulatedAllreduce {
 public:
  /// What rank `rank` contributes; asked for when it starts.
  using Own = std::function<SharedStream(uint32_t rank)>;
  /// Takes a rank's result, as soon as it is there. A callee that does not retain it needs the memory of one rank's
  /// result.
  using Done = std::function<void(uint32_t rank, Reduced result, const SharedStream& own)>;

  /// Errors   as make_allreduce.
  static Result<std::unique_ptr<SimulatedAllreduce>> make(const SimulationOptions& options, AlgorithmId id,
                                                          const AllreduceSettings& settings) {
    std::unique_ptr<SimulatedAllreduce> made(new SimulatedAllreduce(options, settings));
    for (uint32_t rank = 0; rank < options.ranks; ++rank) {
      auto one = make_allreduce(id, settings);
      if (!one) return std::unexpected(one.error());
      made->ranks_.push_back(std::move(*one));
    }
    return made;
  }

  Simulation& simulation() { return simulation_; }
  const Allreduce& of_rank(uint32_t rank) const { return *ranks_[rank]; }

  /// Runs a step; returns the time from the begin to the last rank's end, of the virtual clock.
  /// Errors   of the first rank that has one; timeout: the simulation's end. Ranks that stopped have none.
  Result<TimeNs> step(Own own, Done done) {
    const TimeNs begin = std::max(begin_, simulation_.now());
    for (uint32_t rank = 0; rank < simulation_.size(); ++rank) {
      simulation_.start(rank, begin, [this, rank, own, done] {
        Allreduce& allreduce = *ranks_[rank];
        return Collective{description_of(allreduce, settings_), [&allreduce, mine = own(rank), done](Channel& channel) {
                            return one(allreduce, channel, mine, done);
                          }};
      });
    }
    if (Status ran = simulation_.run(); !ran) return std::unexpected(ran.error());
    std::optional<Error> error;
    for (uint32_t rank = 0; rank < simulation_.size(); ++rank) {
      const auto& ended = simulation_.ended(rank).back();
      if (!ended) continue;
      if (!ended->status && !error) error = ended->status.error();
      begin_ = std::max(begin_, ended->at);
    }
    if (error) return std::unexpected(*error);
    return begin_ - begin;
  }

 private:
  SimulatedAllreduce(const SimulationOptions& options, const AllreduceSettings& settings)
      : settings_(settings), simulation_(options) {}

  static Task<Status> one(Allreduce& allreduce, Channel& channel, SharedStream own, Done done) {
    Result<Reduced> result = co_await allreduce.run(channel, own);
    if (!result) co_return std::unexpected(result.error());
    done(channel.rank(), std::move(*result), own);
    co_return Status{};
  }

  AllreduceSettings settings_;
  std::vector<std::unique_ptr<Allreduce>> ranks_;  ///< outlive what runs
  Simulation simulation_;
  TimeNs begin_ = 0;
};

}  // namespace millrace::peer
