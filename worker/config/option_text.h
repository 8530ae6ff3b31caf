#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "kernels/base/result.h"
#include "protocol/job/job_spec.h"
#include "protocol/job/option_info.h"

/// The text forms of options, for the command line and files: one pair of functions a type, each the other's reverse.
/// Selections, codecs and optimizers have theirs in kernels/.
namespace millrace::worker {

/// Read and print "none", or "correction", "nesterov" or "nesterov_printed" with ":FACTOR[:unmasked]".
Result<protocol::MomentumSpec> momentum_from_text(std::string_view text);
std::string momentum_text(const protocol::MomentumSpec& spec);

/// Holds a re-selection, and whether its text left the period out.
struct ReselectText {
  protocol::ReselectSpec spec;
  bool period_chosen = true;
};

/// Read and print "none" or "topk:DENSITY|COUNT[:PERIOD]", with the steps between exact thresholds as PERIOD.
Result<ReselectText> reselect_from_text(std::string_view text);
std::string reselect_text(const protocol::ReselectSpec& spec);

/// Read and print "BLOCK:EXPONENT": indices of a block, and the first exponent of 2.
Result<protocol::GridSpec> grid_from_text(std::string_view text);
std::string grid_text(const protocol::GridSpec& spec);

/// Read and print "INDEX+VALUE" of a switch's datagrams, as "gap+fixed16".
Result<protocol::SwitchCodecs> switch_codecs_from_text(std::string_view text);
std::string switch_codecs_text(const protocol::SwitchCodecs& codecs);

/// Refuse a number, or a duration, outside its option's limits, and NaN.
///
/// text     the value as it was given.
/// Errors   invalid_argument, with the limits as texts of the option.
Status check_option_limits(const protocol::OptionInfo& info, std::string_view text, double value);
Status check_option_limits(const protocol::OptionInfo& info, std::string_view text, std::chrono::milliseconds value);

}  // namespace millrace::worker
