#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace millrace::program {

/// Rows of cells as aligned text, the first row above a line: the first column to the left, the others to the right.
std::string aligned_table(const std::vector<std::vector<std::string>>& rows);

/// Returns the "rows" of a benchmark's JSON as tables for a person: "algorithm" first, neighbours with the same keys in
/// one table.
std::string bench_table(const nlohmann::json& bench);

/// Returns any JSON object for a person: plain values first, then arrays of plain objects as tables, others indented by
/// two more.
std::string object_text(const nlohmann::json& object, size_t indent);

}  // namespace millrace::program
