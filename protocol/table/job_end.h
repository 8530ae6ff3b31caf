#pragma once

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

}  // namespace millrace::protocol
