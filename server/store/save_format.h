#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/result.h"
#include "protocol/job/job_spec.h"
#include "server/store/store_task.h"

/// The bytes of a save (DESIGN.md, "The store"): records, each with a hash that goes on from the one before.
namespace millrace::server {

/// What a save is of.
struct StoreHeader {
  uint64_t job = 0;  ///< its number in the table then
  std::string name;
  uint32_t shard = 0;
  uint32_t shard_count = 1;
  uint64_t layout_hash = 0;
  uint32_t parts = 0;
  protocol::JobSpec spec;

  bool operator==(const StoreHeader&) const = default;
};

struct StorePart {
  uint32_t part = 0;
  StorePosition position;
  StoreArrays arrays;

  bool operator==(const StorePart&) const = default;
};

struct StoreFile {
  StoreHeader header;
  std::vector<StorePart> parts;  ///< ascending

  bool operator==(const StoreFile&) const = default;
};

/// A record as it stands in the file, and its hash, which the next one goes on from.
struct StoreRecord {
  ByteBuffer bytes;
  uint64_t hash = 0;
};

StoreRecord encode_store_header(const StoreHeader& header);
StoreRecord encode_store_part(uint32_t part, const StorePosition& position, const StoreArrays& arrays,
                              uint64_t previous_hash);
StoreRecord encode_store_end(uint32_t parts, uint64_t previous_hash);

/// What comes at the beginning of a file, before the header's record.
ByteSpan store_file_magic();
/// Of a record that was encoded: what the next one goes on from.
uint64_t store_record_hash(ByteSpan record);

/// Where a save is read from: fills all of `out`, or says why not.
using ReadExactly = std::function<Status(std::span<uint8_t> out)>;

/// Reads a save. Hostile bytes: whatever was changed or cut off is found (up to a collision of 2^-64).
///
/// bytes    of the file: no record may be longer than what is left of it.
/// Memory   the arrays, and one record.
/// Errors   malformed; unsupported: of a later version; what `read` says.
Result<StoreFile> read_store_file(uint64_t bytes, const ReadExactly& read);

/// Whether a job may begin with the weights of that save: its parts, in the layout of `layout_hash` at that shard of so
/// many. The first difference else.
///
/// Errors   job_mismatch.
Status may_begin_with(const StoreFile& saved, const StoreHeader& own);

}  // namespace millrace::server
