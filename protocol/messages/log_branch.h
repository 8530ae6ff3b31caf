#pragma once

#include <cstdint>

#include "protocol/messages/messages.h"

/// Lineages: unbroken runs of a shard's log (R8g, R9a, R10c). Every activation of a shard, after it lost its state or
/// after a cut, begins a new one, whose parent is the one that it grew out of. Numbers are the job's, so that "later"
/// can be told; every shard has a tree of its own. A state whose lineage is not on the path from the newest one to the
/// root is off the log.
namespace millrace::protocol {

/// That of the shard's last activation; 0: it has had none, and serves the job's beginning.
uint64_t lineage_of(const JobView& view, uint32_t shard);

/// Whether `lineage` is that of the shard's last activation, or one that it grew out of.
bool is_on_path(const JobView& view, uint32_t shard, uint64_t lineage);

/// What every view must be: ascending, of shards that there are, numbers up to view.lineages, parents before their
/// children.
bool activations_make_sense(const JobView& view);

}  // namespace millrace::protocol
