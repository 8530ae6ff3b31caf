#include <stdexcept>
#include <string>
#include <string_view>

#include "kernels/base/result.h"
#include "millrace/millrace.h"

/// The library's exception. Apart from session.cc, so that the session's thread knows it too.
namespace millrace {
inline namespace v0 {

std::string_view job_error_name(JobErrorCode code) { return error_code_name(static_cast<ErrorCode>(code)); }

JobError::JobError(JobErrorCode code, const std::string& sentence, JobErrorOrigin origin)
    : std::runtime_error(sentence), code_(code), origin_(origin) {}
JobError::~JobError() = default;

}  // namespace v0
}  // namespace millrace
