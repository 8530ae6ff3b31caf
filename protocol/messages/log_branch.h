#pragma once

#include <cstdint>

#include "protocol/messages/messages.h"

/// Log branches: unbroken runs of a shard's log (R8g, R9a, R10c). Every activation of a shard, after it lost its state
/// or after a cut, begins a new branch. Its parent is the branch that it continues. The numbers are the job's, so that
/// they order the branches; every shard has a tree of its own. A state whose log branch is not on the path from the
/// newest one to the root is off the log.
namespace millrace::protocol {

/// Returns the log branch of the shard's last activation; 0: it has had none, and serves the job's beginning.
uint64_t branch_of(const Membership& membership, uint32_t shard);

/// Returns whether the log branch is that of the shard's last activation, or one of its ancestors.
bool is_on_path(const Membership& membership, uint32_t shard, uint64_t branch);

/// Returns whether the membership's activations are valid: ascending, of existing shards, numbered up to its number of
/// log branches, parents before their children.
bool activations_make_sense(const Membership& membership);

}  // namespace millrace::protocol
