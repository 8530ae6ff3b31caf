#pragma once

#include "protocol/job_spec.h"

namespace millrace::protocol {

/// What a reproducible job may not be, each with its reason. Internal to protocol/: validate() calls it on what is valid else.
Status check_reproducible(const JobSpec& spec);

}  // namespace millrace::protocol
