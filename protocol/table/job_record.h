#pragma once

#include "protocol/table/membership_table.h"

namespace millrace::protocol {

/// Encodes a job's record for a table: version, fields, XXH3 of the bytes before. Internal to the tables.
ByteBuffer encode_job_record(const JobRecord& record);

/// Decodes a job's record. Errors  malformed: truncated, a wrong checksum or an impossible value; unsupported: another
/// version.
Result<JobRecord> decode_job_record(ByteSpan bytes);

}  // namespace millrace::protocol
