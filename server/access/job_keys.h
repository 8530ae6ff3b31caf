#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kernels/base/log_line.h"
#include "kernels/base/result.h"
#include "protocol/datagram/key.h"

namespace millrace::server {

/// Holds the keys of jobs of path switch: FOLDER/N.key for job N at the switch (protocol/datagram/io/job_key_file.h).
/// The file of a number is read when a job first asks for it, and again on reload() alone. A job that has begun keeps a
/// copy of its key.
///
/// Secrets  keys are in memory alone; no line has one.
/// Threads  one at a time (the loop's).
class JobKeys {
 public:
  explicit JobKeys(std::string folder) : folder_(std::move(folder)) {}

  /// Returns the key for a job that begins.
  ///
  /// Errors   as read_job_key(), where no file of the number was read before.
  Result<protocol::JobKey> key_of(uint32_t number);

  /// Reads the files of all known keys again. A file that is wrong leaves the key as it is. Where the file is gone, the
  /// key is forgotten.
  ///
  /// Returns  lines for the log: an error for each wrong file, and the sum of the changes. Empty: it knows no key.
  std::vector<LogLine> reload();

 private:
  std::string path_of(uint32_t number) const;

  std::string folder_;
  std::map<uint32_t, protocol::JobKey> keys_;
};

}  // namespace millrace::server
