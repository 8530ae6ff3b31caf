#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

/// The errors of the worker library.
namespace millrace {
inline namespace v0 {

#define MILLRACE_API __attribute__((visibility("default")))

/// Classes of errors that a caller can act on. The numbers never change.
enum class JobErrorCode : uint16_t {
  kInvalidArgument = 1,    ///< an impossible request (wrong size, unknown name, two pushes of one step)
  kMalformed = 2,          ///< bytes of a peer or a file that are not in their format
  kUnsupported = 3,        ///< known, but not in this version
  kLimitExceeded = 4,      ///< over a stated limit
  kNonFinite = 5,          ///< NaN or infinity in a gradient, and the job refuses them
  kVersionMismatch = 6,    ///< worker and shard speak protocol versions without overlap
  kJobMismatch = 7,        ///< the job is known under another specification (shape, codec, mode ...)
  kIdentityInUse = 8,      ///< another live process is this worker
  kNotAMember = 9,         ///< removed from the job, or the job has started without this worker
  kStale = 10,             ///< an older epoch, incarnation or step
  kConflict = 11,          ///< same identity with other bytes
  kShardMapMismatch = 12,  ///< the shards disagree with each other, or with the list of addresses
  kShardLost = 13,         ///< a shard restarted without its state
  kUnavailable = 14,       ///< a shard cannot be reached, or has left
  kTimeout = 15,           ///< a stated time has passed
  kIo = 16,                ///< file or socket error
  kUnauthenticated = 17,   ///< a key that is not allowed, or lacks a right
  kInternal = 18,
};

/// Returns the code's name, as "shard_lost". Names never change: logs and scripts may use them.
MILLRACE_API std::string_view job_error_name(JobErrorCode code);

/// Says where the cause of an error is: kMalformed, for example, is a damaged file of this worker, or a server's
/// message.
enum class JobErrorOrigin : uint8_t {
  kWorker = 1,  ///< this worker's options, files, callbacks and memory, and the arguments of its calls
  kJob = 2,     ///< the servers, and the job's other workers; a time limit that has passed
};

/// Is the one exception of this library: a code, the origin of its cause, and a sentence with the remedy.
class MILLRACE_API JobError : public std::runtime_error {
 public:
  JobError(JobErrorCode code, const std::string& sentence, JobErrorOrigin origin = JobErrorOrigin::kJob);
  ~JobError() override;
  JobErrorCode code() const { return code_; }
  JobErrorOrigin origin() const { return origin_; }

 private:
  JobErrorCode code_;
  JobErrorOrigin origin_;
};

/// Returns the library's version: "MAJOR.MINOR.PATCH".
MILLRACE_API std::string_view version();

}  // namespace v0
}  // namespace millrace
