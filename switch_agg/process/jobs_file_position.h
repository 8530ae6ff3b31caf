#pragma once

#include <cstddef>
#include <string>
#include <string_view>

/// Where in a jobs file something is wrong: what people who wrote it look for.
namespace millrace::switch_agg {

/// Why `text` is no JSON, and at what line and column: "line 3, column 7: syntax error while parsing array - unexpected
/// '}'"; empty where it is.
std::string json_fault(std::string_view text);

/// The line, from 1 on, in which element `number` (from 0 on) of the list in {"jobs": [...]} begins; the last one where
/// it has not so many.
/// REQUIRES: `text` is JSON.
size_t line_of_job(std::string_view text, size_t number);

}  // namespace millrace::switch_agg
