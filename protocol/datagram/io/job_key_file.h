#pragma once

#include <cstdint>
#include <string>

#include "protocol/datagram/key.h"

namespace millrace::protocol {

/// Reads a job key file: 64 hexadecimal digits and a newline. Its owner and group may read it, as with all secrets
/// (protocol/keys/secret_file.h).
///
/// Errors   io; invalid_argument: other bytes, or all users may read it (the message names chmod). No sentence has a
///          part of the file.
Result<JobKey> read_job_key(const std::string& path);

/// Draws a job key, writes it to FOLDER/JOB.key with mode 0600, and returns the path. The folder is made where it is
/// missing.
/// Errors   io; also where the file exists: then it is not changed.
Result<std::string> write_new_job_key(const std::string& folder, uint32_t job);

}  // namespace millrace::protocol
