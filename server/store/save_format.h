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

/// The bytes of a save (DESIGN.md, "The store"): records, each with a hash that continues the one before.
namespace millrace::server {

/// Identifies the job, shard and layout of a save.
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

/// A record as the file holds it, and its hash, which the next one continues.
struct StoreRecord {
  ByteBuffer bytes;
  uint64_t hash = 0;
};

StoreRecord encode_store_header(const StoreHeader& header);
StoreRecord encode_store_part(uint32_t part, const StorePosition& position, const StoreArrays& arrays,
                              uint64_t previous_hash);
StoreRecord encode_store_end(uint32_t parts, uint64_t previous_hash);

/// Returns the bytes at the beginning of a file, before the header's record.
ByteSpan store_file_magic();
/// Returns the hash of an encoded record, which the next record continues.
uint64_t store_record_hash(ByteSpan record);

/// The source of a save: fills all of `out`, or returns the reason of a failure.
using ReadExactly = std::function<Status(std::span<uint8_t> out)>;

/// Reads a save. Hostile bytes: every change or truncation is found (up to a collision of 2^-64).
///
/// bytes    of the file: no record may be longer than the rest of it.
/// Memory   the arrays, and one record.
/// Errors   malformed; unsupported: of a later version; the errors of `read`.
Result<StoreFile> read_store_file(uint64_t bytes, const ReadExactly& read);

/// Returns whether the save is of another job than `job`, and has a decided step. Reads it up to the first such part.
///
/// Memory   one record.
/// Errors   as read_store_file().
Result<bool> is_trained_by_another(uint64_t bytes, const ReadExactly& read, uint64_t job);

/// Returns whether a job may begin with the weights of that save. They must have its parts, its layout (`layout_hash`),
/// its shard and its number of shards. Otherwise returns the first difference.
///
/// Errors   job_mismatch.
Status may_start_with(const StoreFile& saved, const StoreHeader& own);

}  // namespace millrace::server
