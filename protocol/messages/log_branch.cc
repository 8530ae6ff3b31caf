#include "protocol/messages/log_branch.h"

#include <tuple>

namespace millrace::protocol {

uint64_t branch_of(const Membership& membership, uint32_t shard) {
  for (auto at = membership.activations.rbegin(); at != membership.activations.rend(); ++at) {
    if (at->shard == shard) return at->branch;
  }
  return 0;
}

bool is_on_path(const Membership& membership, uint32_t shard, uint64_t branch) {
  uint64_t here = branch_of(membership, shard);
  // Parents come before their children: one walk from the newest to the oldest follows the path.
  for (auto at = membership.activations.rbegin(); at != membership.activations.rend() && here > branch; ++at) {
    if (at->shard == shard && at->branch == here) here = at->parent;
  }
  return here == branch;
}

bool activations_make_sense(const Membership& membership) {
  for (size_t i = 0; i < membership.activations.size(); ++i) {
    const Activation& each = membership.activations[i];
    if (each.shard >= membership.shards.size() || each.branch > membership.branches || each.parent >= each.branch)
      return false;
    if (i == 0) continue;
    const Activation& before = membership.activations[i - 1];
    if (std::tie(before.branch, before.shard) >= std::tie(each.branch, each.shard)) return false;
  }
  return true;
}

}  // namespace millrace::protocol
