#pragma once

#include <string>

#include "kernels/base/clock.h"
#include "kernels/base/result.h"

namespace millrace::program {

/// Parses "250ns", "1.5us", "20ms", "2s" as nanoseconds. Errors  invalid_argument: no number, no unit, below 0 or above
/// a day.
Result<TimeNs> parse_duration(const std::string& text);

/// Parses "10gbit", "2.5mbit", "800kbit" (per second, as tc(8) has it) as bytes a second.
/// Errors   invalid_argument: no number, no unit, not from 1kbit to 10000gbit.
Result<double> parse_rate(const std::string& text);

/// Returns seconds for a person, three figures: "1.23 ms" for 0.00123.
std::string duration_text(double seconds);

}  // namespace millrace::program
