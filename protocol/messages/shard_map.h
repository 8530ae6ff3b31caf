#pragma once

#include <cstdint>
#include <span>

#include "protocol/messages/messages.h"

namespace millrace::protocol {

/// Returns a hash of the shard map that two shards must agree on before they exchange anything. The map has the number
/// of shards, and the address of each, by shard number. Incarnations are left out: a restart does not change the map.
///
/// Bytes hashed (XXH3-64, seed 0): u32 count, then per shard u16 length and the address's bytes; little-endian.
uint64_t shard_map_hash(std::span<const ShardEntry> shards);

}  // namespace millrace::protocol
