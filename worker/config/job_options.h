#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "kernels/base/result.h"
#include "millrace/millrace.h"
#include "protocol/job/job_spec.h"

namespace millrace::worker {

/// Returns the job specification that the public options describe, validated.
///
/// Errors  invalid_argument (and what protocol::validate() says), each naming the option.
Result<protocol::JobSpec> spec_from_options(const JobOptions& job, std::span<const TensorOptions> tensors);

/// Holds the addresses of JobOptions::path, where it is not "server": "switch:HOST:PORT" or, of a worker in a rack,
/// "switch:HOST:PORT,rack:HOST:PORT".
struct SwitchAddresses {
  std::string_view decider;  ///< the job's: in its specification
  std::string_view rack;     ///< this worker's own; empty: none
};
/// Views into `path`. Empty: it is of another form.
std::optional<SwitchAddresses> switch_addresses(std::string_view path);

/// Reads "none", or "correction", "nesterov" or "nesterov_printed" with ":FACTOR[:unmasked]".
Result<protocol::MomentumSpec> momentum_from_text(std::string_view text);

/// Reads "BLOCK:EXPONENT": indices of a block, and the first exponent of 2.
/// chosen   what "auto" is.
Result<protocol::GridSpec> grid_from_text(std::string_view text, const protocol::GridSpec& chosen);

/// Reads "none" or "topk:DENSITY|COUNT".
Result<protocol::ReselectSpec> reselect_from_text(std::string_view text, uint32_t threshold_period);

}  // namespace millrace::worker
