#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "kernels/base/result.h"

namespace millrace::program {

/// Returns a value as JSON on one line, which may go to a terminal. Text in it that is not UTF-8 (names of files may be
/// any bytes) is replaced character by character. The library's own dump() would throw and lose the rest. Control
/// characters that dump() leaves as they are, DEL and C1, are escaped.
inline std::string json_text(const nlohmann::json& value) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  const std::string dumped = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  std::string text;
  text.reserve(dumped.size());
  for (size_t at = 0; at < dumped.size(); ++at) {
    const bool is_c1 = dumped[at] == '\xC2' && static_cast<uint8_t>(dumped[at + 1]) < 0xA0;
    if (!is_c1 && dumped[at] != '\x7F') {
      text += dumped[at];
      continue;
    }
    const auto code = static_cast<uint8_t>(dumped[is_c1 ? ++at : at]);  // C1: the code is the second byte of two
    text += "\\u00";
    text += kDigits[code >> 4];
    text += kDigits[code & 0xF];
  }
  return text;
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

}  // namespace millrace::program
