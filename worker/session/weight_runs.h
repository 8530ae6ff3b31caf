#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "worker/core/actions.h"

namespace millrace::worker {

/// Holds one shard's requests for this worker's weights, and the runs of the one part that is being given. The runs
/// leave one by one: a queue of whole parts would hold back contributions for as long as it takes, and fill memory.
/// Pure: the caller copies the parts and sends the runs.
class WeightRuns {
 public:
  /// Adds a request. Drops one that repeats a waiting request, or the request whose runs still leave: the shard repeats
  /// a request that seems lost to it.
  void ask(const GiveWeights& asked);
  /// Drops requests and runs of other epochs. No member needs them.
  void keep_epoch(uint64_t epoch);
  /// Drops the runs: their connection is lost, and the shard asks again.
  void drop_runs();

  /// Returns whether nothing waits. The last run of a part waits until the next take_run().
  bool empty() const { return asked_.empty() && !giving_; }
  /// Returns the next run. Empty: none is left of the part that was given last.
  std::optional<SendAction> take_run();
  /// Returns the request to give() next; empty: there is none. REQUIRES: no run is left.
  std::optional<GiveWeights> take_request();
  /// Sets the runs of the request that was taken last.
  void give(std::vector<SendAction>&& runs);

 private:
  std::deque<GiveWeights> asked_;
  std::optional<GiveWeights> giving_;  ///< the request of runs_, and of the last run that was taken
  std::deque<SendAction> runs_;
};

}  // namespace millrace::worker
