#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "kernels/base/result.h"

/// The request "POST /jobs/NAME/end", which ends a job. Pure.
namespace millrace::server {

/// Returns NAME of a path "/jobs/NAME/end". NAME has %XX in place of bytes that a path cannot have; "/" is one of them.
/// Nothing: another path, or no name that a job may have.
std::optional<std::string> job_of_end_path(std::string_view path);

/// Returns the reason in the request's body: a text, or a JSON object {"reason": TEXT}. Empty: it gives none.
/// Errors  invalid_argument: it begins as an object, and is not of that form.
Result<std::string> reason_of_body(std::string_view body);

}  // namespace millrace::server
