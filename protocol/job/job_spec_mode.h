#pragma once

#include "protocol/job/job_spec.h"

namespace millrace::protocol {

/// Refuses what the types of millrace::Consistency cannot hold: a part of validate(). That is a quorum, a deadline or
/// participants in a mode that does not have them, a mode that needs one of them and has none, and participants with
/// staleness.
///
/// Errors   invalid_argument, with the mode's name.
Status check_mode_options(const JobSpec& spec);

}  // namespace millrace::protocol
