#pragma once

#include <cstdint>
#include <expected>
#include <string>
#include <string_view>
#include <utility>

namespace millrace {

/// Classes of errors that a caller can act on. The numbers are on the wire (protocol/wire/errors_and_limits.md): they
/// are never reused and never renumbered.
enum class ErrorCode : uint16_t {
  kInvalidArgument = 1,    ///< the caller asked for something that cannot be (k > n, unknown name)
  kMalformed = 2,          ///< bytes that do not have the form that they claim
  kUnsupported = 3,        ///< well formed, but this build does not know it
  kLimitExceeded = 4,      ///< over a stated limit
  kNonFinite = 5,          ///< NaN or infinity where the policy refuses it
  kVersionMismatch = 6,    ///< protocol versions without overlap
  kJobMismatch = 7,        ///< the job is known under another specification (shape, codec, mode ...)
  kIdentityInUse = 8,      ///< two live workers under one identity
  kNotAMember = 9,         ///< removed, or never admitted
  kStale = 10,             ///< an older epoch, incarnation or step
  kConflict = 11,          ///< same identity with other bytes
  kShardMapMismatch = 12,  ///< shards, or a worker and a shard, disagree on the shard map
  kShardLost = 13,         ///< a shard restarted without its state
  kUnavailable = 14,       ///< peer cannot be reached, or is shutting down
  kTimeout = 15,           ///< a stated time has passed
  kIo = 16,                ///< file or socket error
  kUnauthenticated = 17,   ///< a key that is not allowed, or lacks a right
  kInternal = 18,
};

/// The field's short word for a code: "invalid_argument", ... Stable: used in logs, metrics labels and JSON.
std::string_view error_code_name(ErrorCode code);

/// Returns the code of such a word; internal for an unknown word.
ErrorCode error_code_by_name(std::string_view name);

/// Holds a code and one sentence that says what to do.
struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;
};

template <typename T>
using Result = std::expected<T, Error>;
using Status = std::expected<void, Error>;

inline std::unexpected<Error> fail(ErrorCode code, std::string message) {
  return std::unexpected(Error{code, std::move(message)});
}

}  // namespace millrace
