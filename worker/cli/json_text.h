#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace millrace::cli {

/// Returns a value as JSON on one line. Text in it that is not UTF-8 (names of files may be any bytes) is replaced character by
/// character, where the library's own dump() would throw and lose the rest.
inline std::string json_text(const nlohmann::json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace millrace::cli
