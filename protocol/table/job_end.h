#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/base/result.h"
#include "protocol/table/membership_table.h"

namespace millrace::protocol {

/// Ends a job's record (R11d). Members that are still listed mean that it ended with an error.
///
/// why   the code and the sentence with which every shard aborts the members, and answers those that ask later. The
///       sentence is cut to the longest that a record holds.
void end_record(JobRecord& record, const Error& why);

/// Writes the reason of the end of a job that is finished.
void give_end_reason(JobRecord& record, const Error& why);

/// The outcome of a request to end a job.
enum class JobEnd : uint8_t {
  kEnded = 1,
  kNotOpen = 2,   ///< no job of that name is open
  kChanging = 3,  ///< its membership changes all the time: try again
};

/// Ends the open job of that name, as end_record() does. The name is free at once.
///
/// Errors  of the table; the job may have ended.
Result<JobEnd> end_job(MembershipTable& table, std::string_view job, const Error& why);

}  // namespace millrace::protocol
