#pragma once

#include <span>
#include <string_view>

#include "kernels/base/result.h"
#include "millrace/millrace.h"
#include "protocol/job_spec.h"

namespace millrace::worker {

/// The job specification that the public options describe, validated.
///
/// Errors  invalid_argument (and what protocol::validate() says), each naming the option.
Result<protocol::JobSpec> spec_from_options(const JobOptions& job, std::span<const TensorOptions> tensors);

/// "none", "topk:0.01", "topk:1000", "threshold:0.001", "threshold_reuse:0.01:32", "bucket_topk:0.01:512". A whole number from
/// 2 on is a count, a number up to 1 a density.
Result<SelectionSpec> selection_from_text(std::string_view text);

/// "none", "correction:FACTOR[:unmasked]" or "nesterov:FACTOR[:unmasked]".
Result<protocol::MomentumSpec> momentum_from_text(std::string_view text);

/// "none" or "topk:DENSITY|COUNT".
Result<protocol::ReselectSpec> reselect_from_text(std::string_view text, uint32_t threshold_period);

}  // namespace millrace::worker
