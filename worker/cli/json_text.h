#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "kernels/base/result.h"

namespace millrace::cli {

/// Returns a value as JSON on one line. Text in it that is not UTF-8 (names of files may be any bytes) is replaced character by
/// character, where the library's own dump() would throw and lose the rest.
inline std::string json_text(const nlohmann::json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// Arrays and objects inside of each other in a text that parse_json() takes: copying and printing a value recurse.
inline constexpr int kJsonDepthMax = 32;

/// Parses what another process wrote.
///
/// Errors  malformed: it is no JSON, or deeper than kJsonDepthMax. The sentence does not name the text.
inline Result<nlohmann::json> parse_json(std::string_view text) {
  using Event = nlohmann::json::parse_event_t;
  bool is_too_deep = false;
  const auto callback = [&](int depth, Event event, nlohmann::json&) {
    const bool begins = event == Event::object_start || event == Event::array_start;
    is_too_deep = is_too_deep || (begins && depth >= kJsonDepthMax);
    return !is_too_deep;
  };
  nlohmann::json value = nlohmann::json::parse(text, callback, false);
  if (is_too_deep)
    return fail(ErrorCode::kMalformed,
                "its JSON is nested deeper than the " + std::to_string(kJsonDepthMax) + " levels that are read");
  if (value.is_discarded()) return fail(ErrorCode::kMalformed, "it is no JSON");
  return value;
}

}  // namespace millrace::cli
