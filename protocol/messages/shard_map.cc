#include "protocol/messages/shard_map.h"

#include "kernels/base/bytes.h"
#include "kernels/base/hash.h"
#include "protocol/base/text.h"

namespace millrace::protocol {

uint64_t shard_map_hash(std::span<const ShardEntry> shards) {
  ByteBuffer bytes;
  ByteWriter writer(bytes);
  writer.put(static_cast<uint32_t>(shards.size()));
  for (const ShardEntry& shard : shards) put_text(writer, shard.address);
  return hash64(bytes);
}

}  // namespace millrace::protocol
