#include "server/spare/spare_watch.h"

namespace millrace::server {

std::optional<SpareWatch::Vacancy> SpareWatch::look(const std::vector<protocol::ClusterView::Shard>& shards,
                                                    TimeNs now) {
  seen_.resize(shards.size());
  std::optional<Vacancy> vacancy;
  for (uint32_t shard = 0; shard < shards.size(); ++shard) {
    Seen& seen = seen_[shard];
    const bool another_start = seen.incarnation != shards[shard].entry.incarnation;
    seen.incarnation = shards[shard].entry.incarnation;
    if (shards[shard].held) {
      seen.was_held = seen.is_held = true;
      continue;
    }
    if (seen.is_held || another_start) seen.without_since = now;
    seen.is_held = false;
    const bool is_left = shards[shard].drain && shards[shard].drain->refusal.empty();
    const TimeNs free_after = seen.was_held || is_left ? kFreeAfter : kFreeUnseenAfter;
    if (!vacancy && seen.incarnation != 0 && now - seen.without_since >= free_after)
      vacancy = Vacancy{shard, seen.incarnation};
  }
  return vacancy;
}

}  // namespace millrace::server
