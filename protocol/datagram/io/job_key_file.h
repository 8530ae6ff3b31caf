#pragma once

#include <string>

#include "protocol/datagram/key.h"

namespace millrace::protocol {

/// Reads a job key file: 64 hexadecimal digits and a newline, readable by its owner alone.
/// Errors   io; invalid_argument: other bytes, or other users may read it (the message names chmod).
Result<JobKey> read_job_key(const std::string& path);

}  // namespace millrace::protocol
