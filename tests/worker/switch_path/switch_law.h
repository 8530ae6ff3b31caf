#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "kernels/base/random.h"
#include "tests/worker/switch_path/switch_cluster.h"

/// Steps on a cluster of path switch whose members come and go, and the law over all processes that ever were in it.
/// Values lie on a grid on which sums are exact: equality is asked for.
namespace millrace::testing {

inline constexpr uint32_t kLawWindow = 64;  ///< window_indices of options_for()

SwitchCluster::Options options_for(uint32_t workers, const std::vector<uint64_t>& dimensions, uint64_t seed);

bool may_push(SwitchCluster& cluster, uint32_t worker);
/// All tensors of one step.
void push_step(SwitchCluster& cluster, uint32_t worker, RandomSequence& random);
bool all_synced(SwitchCluster& cluster);
/// Lets all workers push until all have this step.
void run_steps(SwitchCluster& cluster, uint64_t until, RandomSequence& random);

/// Holds the offers of processes in their steps, by bucket: the last ones. A dead process's last results may have
/// reached no other process.
class Offers {
 public:
  using Entries = std::map<uint32_t, double>;
  void note(const WatchedCore& core);
  /// Of its last two steps that were over, as it saw it.
  std::vector<Entries> last_done(const WatchedCore& core, uint32_t bucket) const;

 private:
  std::map<const WatchedCore*, std::array<std::vector<Entries>, 3>> offers_;
};

/// The law over all processes that ever were. REQUIRES: all are synced, and have the same steps.
void expect_the_law(SwitchCluster& cluster, const Offers& offers = {});
/// Equal weights, and books that balance.
void expect_alike(SwitchCluster& cluster);
double lost_by(const WatchedCore& core);

}  // namespace millrace::testing
