#pragma once

#include "protocol/job/job_spec.h"

namespace millrace::protocol {

/// Refuses a combination that the types of millrace::Consistency cannot hold: a part of validate(). That is an option
/// of another mode, a mode without the quorum, deadline or participants that it needs, or participants with staleness.
///
/// Errors   invalid_argument, with the mode's name.
Status check_mode_options(const JobSpec& spec);

}  // namespace millrace::protocol
