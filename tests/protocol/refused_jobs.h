#pragma once

#include <functional>
#include <vector>

#include "protocol/job/job_spec.h"

namespace millrace::protocol {

/// A refused combination: its item in protocol/job/REFUSED.md, the change to example_spec() that makes it, and the text
/// that the error must contain.
struct Refused {
  const char* row;
  ErrorCode code;
  const char* says;
  std::function<void(JobSpec&)> make;
};

inline constexpr ErrorCode kImpossible = ErrorCode::kInvalidArgument;
inline constexpr ErrorCode kReserved = ErrorCode::kUnsupported;

/// job_spec_reproducible_test.cc; validate()'s test goes through all.
std::vector<Refused> refused_reproducible();
/// job_spec_uncompressed_test.cc.
std::vector<Refused> refused_uncompressed();

}  // namespace millrace::protocol
