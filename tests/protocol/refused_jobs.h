#pragma once

#include <functional>
#include <vector>

#include "protocol/job_spec.h"

namespace millrace::protocol {

/// A refused combination: its item in protocol/job/REFUSED.md, the change of example_spec() that leads to it, and a text that
/// the refusal must contain.
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
