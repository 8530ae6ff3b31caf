#pragma once

#include <string>

namespace millrace::program {

/// Returns seconds for a person, three figures: "1.23 ms" for 0.00123.
std::string rounded_duration_text(double seconds);

}  // namespace millrace::program
