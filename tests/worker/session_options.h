#pragma once

#include "millrace/options.h"

namespace millrace::testing {

/// Is a job and its worker in one record, which tests pass for both: Session::connect(options, options, tensors).
struct SessionOptions : JobConfig, WorkerConfig {};

}  // namespace millrace::testing
