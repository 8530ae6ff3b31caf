#include "server/membership/spare_watch.h"

namespace millrace::server {

std::optional<SpareWatch::Vacancy> SpareWatch::look(const std::vector<protocol::ShardEntry>& map,
                                                    const std::vector<bool>& held, TimeNs now) {
  seen_.resize(map.size());
  std::optional<Vacancy> vacancy;
  for (uint32_t shard = 0; shard < map.size() && shard < held.size(); ++shard) {
    Seen& seen = seen_[shard];
    const bool another_start = seen.incarnation != map[shard].incarnation;
    seen.incarnation = map[shard].incarnation;
    if (held[shard]) {
      seen.was_held = seen.is_held = true;
      continue;
    }
    if (seen.is_held || another_start) seen.without_since = now;
    seen.is_held = false;
    const TimeNs free_after = seen.was_held ? kFreeAfter : kFreeUnseenAfter;
    if (!vacancy && seen.incarnation != 0 && now - seen.without_since >= free_after)
      vacancy = Vacancy{shard, seen.incarnation};
  }
  return vacancy;
}

}  // namespace millrace::server
