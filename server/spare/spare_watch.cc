#include "server/spare/spare_watch.h"

namespace millrace::server {
namespace {

/// Returns whether the process of the last start holds the lease. A process that wrote no note counts as that one.
bool last_start_holds(const protocol::ClusterView::Shard& shard) {
  return shard.held && (shard.process.address.empty() || shard.process.address == shard.entry.address);
}

/// Returns whether the process of the last start leaves its number: at an operator's request, or at its end.
bool is_left(const protocol::ClusterView::Shard& shard) {
  const bool by_operator = shard.drain && shard.drain->refusal.empty();
  return by_operator || (shard.leaving && shard.process.address == shard.entry.address);
}

}  // namespace

std::optional<SpareWatch::Vacancy> SpareWatch::look(const std::vector<protocol::ClusterView::Shard>& shards,
                                                    TimeNs now) {
  seen_.resize(shards.size());
  std::optional<Vacancy> vacancy;
  for (uint32_t shard = 0; shard < shards.size(); ++shard) {
    Seen& seen = seen_[shard];
    const protocol::ShardEntry& entry = shards[shard].entry;
    if (seen.incarnation != entry.incarnation) {
      const bool is_again = seen.incarnation != 0 && seen.address == entry.address;
      seen = {.incarnation = entry.incarnation,
              .address = entry.address,
              .counts_from = is_again ? now + kOldLeaseAfter : now};
    }
    seen.was_held = seen.was_held || (now >= seen.counts_from && last_start_holds(shards[shard]));
    if (shards[shard].held) {
      seen.is_held = true;
      continue;
    }
    if (seen.is_held) seen.without_since = now;
    seen.is_held = false;
    const TimeNs free_after = seen.was_held || is_left(shards[shard]) ? kFreeAfter : kFreeUnseenAfter;
    if (!vacancy && seen.incarnation != 0 && now - seen.without_since >= free_after)
      vacancy = Vacancy{shard, seen.incarnation};
  }
  return vacancy;
}

}  // namespace millrace::server
