#include "protocol/messages/log_branch.h"

#include <tuple>

namespace millrace::protocol {

uint64_t lineage_of(const JobView& view, uint32_t shard) {
  for (auto at = view.activations.rbegin(); at != view.activations.rend(); ++at) {
    if (at->shard == shard) return at->lineage;
  }
  return 0;
}

bool is_on_path(const JobView& view, uint32_t shard, uint64_t lineage) {
  uint64_t here = lineage_of(view, shard);
  // Parents come before their children: one walk from the newest to the oldest follows the path.
  for (auto at = view.activations.rbegin(); at != view.activations.rend() && here > lineage; ++at) {
    if (at->shard == shard && at->lineage == here) here = at->parent;
  }
  return here == lineage;
}

bool activations_make_sense(const JobView& view) {
  for (size_t i = 0; i < view.activations.size(); ++i) {
    const Activation& each = view.activations[i];
    if (each.shard >= view.shards.size() || each.lineage > view.lineages || each.parent >= each.lineage) return false;
    if (i == 0) continue;
    const Activation& before = view.activations[i - 1];
    if (std::tie(before.lineage, before.shard) >= std::tie(each.lineage, each.shard)) return false;
  }
  return true;
}

}  // namespace millrace::protocol
