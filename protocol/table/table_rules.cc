#include "protocol/table/table_rules.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>

#include "kernels/base/bytes.h"
#include "kernels/base/check.h"
#include "kernels/base/hash.h"
#include "protocol/base/limits.h"
#include "protocol/base/text.h"

namespace millrace::protocol {

uint64_t random_identity() {
  uint64_t drawn = 0;
  MILLRACE_CHECK(::getrandom(&drawn, sizeof drawn, 0) == sizeof drawn);
  return std::max<uint64_t>(drawn >> 1, 1);
}

Result<uint64_t> draw_job_number(uint64_t place) {
  constexpr uint64_t kPlacesMax = uint64_t{1} << (63 - kJobNumberRandomBits);
  if (place == 0 || place >= kPlacesMax)
    return fail(ErrorCode::kMalformed, "membership table: its count of jobs is damaged");
  constexpr uint64_t kMask = (uint64_t{1} << kJobNumberRandomBits) - 1;
  return (place << kJobNumberRandomBits) | (random_identity() & kMask);
}

uint64_t first_kept_job(uint64_t last) {
  return last > kFinishedJobsKept ? (last - kFinishedJobsKept) << kJobNumberRandomBits : 0;
}

uint64_t hash_of_start(uint32_t shard, const ShardEntry& start) {
  ByteBuffer bytes;
  ByteWriter writer(bytes);
  writer.put(shard);
  writer.put(start.incarnation);
  put_text(writer, start.address);
  put_text(writer, start.datagrams);
  return hash64(ByteSpan(bytes));
}

Status check_start_shard(uint32_t shard, uint32_t shard_count, std::string_view address, std::string_view datagrams) {
  if (shard_count < 1 || shard_count > kShardsMax) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} shards: a shard map has 1 to {}", shard_count, kShardsMax));
  }
  if (shard >= shard_count) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("shard {} of {}: shards are numbered 0 to {}", shard, shard_count, shard_count - 1));
  }
  for (const std::string_view one : {address, datagrams}) {
    if (one.size() <= kAddressBytesMax && is_plain_text(one)) continue;
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("shard {}: its address must be plain text of at most {} bytes", shard, kAddressBytesMax));
  }
  return {};
}

Status check_create_job(std::string_view name, ByteSpan spec) {
  if (name.empty() || name.size() > kNameBytesMax || !is_plain_text(name)) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("a job's name must be plain text of 1 to {} bytes", kNameBytesMax));
  }
  if (spec.size() > kJobSpecBytesMax) {
    return fail(ErrorCode::kLimitExceeded, fmt::format("job '{}': its specification takes {} bytes, the limit is {}",
                                                       name, spec.size(), kJobSpecBytesMax));
  }
  return {};
}

Error shard_count_error(uint64_t count_in_table, uint32_t count_asked) {
  return {
      ErrorCode::kShardMapMismatch,
      fmt::format("the membership table holds a map of {} shards and this shard was started for {}: start it with the "
                  "table's count. For another count stop all shards, and let 'millrace cluster remove' forget the map",
                  count_in_table, count_asked)};
}

Error unknown_job_error(uint64_t job) {
  return {ErrorCode::kInvalidArgument, fmt::format("the membership table knows no job {}", job)};
}

JobRecord new_job_record(std::string_view name, ByteSpan spec, Path path, uint64_t job,
                         std::vector<ShardEntry> shards) {
  JobRecord record;
  record.name = name;
  record.membership.job = job;
  record.membership.epoch = 1;
  record.membership.shards = std::move(shards);
  record.membership.path = path;
  record.spec.assign(spec.begin(), spec.end());
  return record;
}

}  // namespace millrace::protocol
