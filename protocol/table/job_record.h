#pragma once

#include "protocol/table/membership_table.h"

namespace millrace::protocol {

/// A job's record as the bytes that a table keeps: version, fields, XXH3 of what precedes. Internal to the tables.
ByteBuffer encode_job_record(const JobRecord& record);

/// Errors  malformed: cut off, a checksum or a value that cannot be; unsupported: another version.
Result<JobRecord> decode_job_record(ByteSpan bytes);

}  // namespace millrace::protocol
