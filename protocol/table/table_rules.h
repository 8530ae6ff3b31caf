#pragma once

#include <cstdint>
#include <string_view>

#include "protocol/table/membership_table.h"

/// The rules that every membership table follows, regardless of its storage. Internal to protocol/.
namespace millrace::protocol {

/// Number of finished jobs that a table keeps for processes that still ask for them by number.
inline constexpr uint64_t kFinishedJobsKept = 1'000;

/// Bits of a job's number that are drawn at random, below its place in the table. A table after a loss, and an older
/// copy, give the places again, and not the numbers. JSON's numbers hold 53 bits: 33 million jobs.
inline constexpr unsigned kJobNumberRandomBits = 28;

/// Sentences of conflict and stale, the errors of an object whose table is not the one that it opened.
inline constexpr std::string_view kAnotherTable =
    "this is not the table that the process began with: its data were lost, or its cluster was removed";
inline constexpr std::string_view kOlderTable =
    "the table went back: an older copy has taken the place of the one that the process began with";

/// Returns a random number from 1 to 2^63 - 1.
uint64_t random_identity();

/// Draws the number of the job that is the table's `place`-th, from 1. Numbers of later places are larger.
/// Errors  malformed: a place that no table reaches.
Result<uint64_t> draw_job_number(uint64_t place);

/// Returns the least number of the finished jobs that a table keeps once its `last`-th job exists.
uint64_t first_kept_job(uint64_t last);

/// Returns the checksum of a shard's row. A storage that counts the starts itself gives incarnation 0.
uint64_t hash_of_start(uint32_t shard, const ShardEntry& start);

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
