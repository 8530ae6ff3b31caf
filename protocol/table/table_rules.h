#pragma once

#include "protocol/table/membership_table.h"

/// The rules that every membership table follows, regardless of its storage. Internal to protocol/.
namespace millrace::protocol {

/// Number of finished jobs that a table keeps for processes that still ask for them by number.
inline constexpr uint64_t kFinishedJobsKept = 1'000;

/// Checks the arguments of start_shard(). Errors  invalid_argument: no shards or too many, a number past the count, an
/// address that is too long or not plain text.
Status check_start_shard(uint32_t shard, uint32_t shard_count, std::string_view address, std::string_view datagrams);
/// Checks the arguments of create_job(). Errors  invalid_argument: a name that is empty, too long or not plain text;
/// limit_exceeded: specification too long.
Status check_create_job(std::string_view name, ByteSpan spec);

Error shard_count_error(uint64_t count_in_table, uint32_t count_asked);
Error unknown_job_error(uint64_t job);

/// Returns the record of a job that was just created: epoch 1, no members.
JobRecord new_job_record(std::string_view name, ByteSpan spec, Path path, uint64_t job, std::vector<ShardEntry> shards);

}  // namespace millrace::protocol
