#pragma once

#include <memory>
#include <string>
#include <utility>

#include "kernels/base/result.h"
#include "millrace/errors.h"

/// Results become exceptions here, and nowhere below the public interface.
namespace millrace::inline v0::peers {

[[noreturn]] inline void raise(const Error& error, JobErrorOrigin origin) {
  throw JobError(static_cast<JobErrorCode>(error.code), error.message, origin);
}

[[noreturn]] inline void refuse(JobErrorCode code, const std::string& sentence) {
  throw JobError(code, sentence, JobErrorOrigin::kWorker);
}

inline void must(const Status& status, JobErrorOrigin origin) {
  if (!status) raise(status.error(), origin);
}

template <typename T>
T take(Result<T>&& result, JobErrorOrigin origin) {
  if (!result) raise(result.error(), origin);
  return std::move(*result);
}

/// Returns the object behind a public handle. Refuses a handle that was moved from.
/// Hidden: an instance's name begins with its return type, which the exported patterns match.
template <typename T>
[[gnu::visibility("hidden")]] T& held(const std::unique_ptr<T>& impl) {
  if (!impl) refuse(JobErrorCode::kInvalidArgument, "this object was moved from: use the one that it was moved to");
  return *impl;
}

}  // namespace millrace::inline v0::peers
