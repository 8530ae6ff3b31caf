#pragma once

#include "protocol/job_spec.h"

namespace millrace::protocol {

/// Errors  invalid_argument: a block or an exponent outside its range.
Status check_grid(const GridSpec& grid);

/// What a reproducible job may not be, each with its reason. validate() calls it on what is valid else.
Status check_reproducible(const JobSpec& spec);

}  // namespace millrace::protocol
