#pragma once

#include <cstdint>
#include <span>

#include "protocol/messages/messages.h"

namespace millrace::protocol {

/// What two shards must agree on before they exchange anything: how many shards there are and the address of each, by
/// shard number. Lives are left out, a restart does not change the map.
///
/// Bytes hashed (XXH3-64, seed 0): u32 count, then per shard u16 length and the address's bytes; little-endian.
uint64_t shard_map_hash(std::span<const ShardEntry> shards);

}  // namespace millrace::protocol
