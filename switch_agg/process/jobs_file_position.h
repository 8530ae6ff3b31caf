#pragma once

#include <cstddef>
#include <string>
#include <string_view>

/// Finds the position of a fault in a jobs file, for its authors.
namespace millrace::switch_agg {

/// Returns why `text` is no JSON, with line and column: "line 3, column 7: syntax error while parsing array -
/// unexpected '}'"; empty where it is.
std::string json_fault(std::string_view text);

/// Returns the line, from 1 on, in which element `number` (from 0 on) of the list in {"jobs": [...]} begins. Returns
/// the last line where the list is shorter.
/// REQUIRES: `text` is JSON.
size_t line_of_job(std::string_view text, size_t number);

}  // namespace millrace::switch_agg
