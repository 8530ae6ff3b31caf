#pragma once

#include <string>
#include <string_view>

/// Functions that the command lines of `millrace-switch` and `millrace-switch-bench` share.
namespace millrace::switch_agg {

/// Returns the program's version, and those of DPDK and of the library that computes MACs.
std::string version_text(std::string_view program);

}  // namespace millrace::switch_agg
