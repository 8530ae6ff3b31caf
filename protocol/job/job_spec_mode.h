#pragma once

#include "protocol/job/job_spec.h"

namespace millrace::protocol {

/// Refuses a quorum, a deadline or participants in a mode that does not have them: a part of validate().
///
/// Errors   invalid_argument, with the mode's name.
Status check_mode_owns(const JobSpec& spec);

}  // namespace millrace::protocol
