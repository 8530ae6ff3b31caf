#include "kernels/base/result.h"

namespace millrace {

std::string_view error_code_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument: return "invalid_argument";
    case ErrorCode::kMalformed: return "malformed";
    case ErrorCode::kUnsupported: return "unsupported";
    case ErrorCode::kLimitExceeded: return "limit_exceeded";
    case ErrorCode::kNonFinite: return "non_finite";
    case ErrorCode::kVersionMismatch: return "version_mismatch";
    case ErrorCode::kJobMismatch: return "job_mismatch";
    case ErrorCode::kIdentityInUse: return "identity_in_use";
    case ErrorCode::kNotAMember: return "not_a_member";
    case ErrorCode::kStale: return "stale";
    case ErrorCode::kConflict: return "conflict";
    case ErrorCode::kShardMapMismatch: return "shard_map_mismatch";
    case ErrorCode::kShardLost: return "shard_lost";
    case ErrorCode::kUnavailable: return "unavailable";
    case ErrorCode::kTimeout: return "timeout";
    case ErrorCode::kIo: return "io";
    case ErrorCode::kUnauthenticated: return "unauthenticated";
    case ErrorCode::kInternal: return "internal";
  }
  return "unknown";
}

ErrorCode error_code_by_name(std::string_view name) {
  for (auto code = uint16_t{1}; code <= static_cast<uint16_t>(ErrorCode::kInternal); ++code) {
    if (error_code_name(ErrorCode{code}) == name) return ErrorCode{code};
  }
  return ErrorCode::kInternal;
}

}  // namespace millrace
