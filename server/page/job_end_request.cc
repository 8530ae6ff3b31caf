#include "server/page/job_end_request.h"

#include <charconv>
#include <nlohmann/json.hpp>
#include <system_error>

#include "kernels/base/plain_text.h"
#include "protocol/job/job_spec.h"

namespace millrace::server {
namespace {

using RequestJson = nlohmann::json;

constexpr std::string_view kPathStart = "/jobs/";
constexpr std::string_view kPathEnd = "/end";

/// Returns the bytes that a part of a path stands for. Nothing: a % without two hexadecimal digits.
std::optional<std::string> percent_decoded(std::string_view part) {
  constexpr int kHexadecimal = 16;
  std::string bytes;
  for (size_t at = 0; at < part.size(); ++at) {
    if (part[at] != '%') {
      bytes += part[at];
      continue;
    }
    const std::string_view digits = part.substr(at + 1, 2);
    unsigned char byte = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), byte, kHexadecimal);
    if (digits.size() != 2 || error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
    bytes += static_cast<char>(byte);
    at += digits.size();
  }
  return bytes;
}

}  // namespace

std::optional<std::string> job_of_end_path(std::string_view path) {
  if (!path.starts_with(kPathStart) || !path.ends_with(kPathEnd)) return std::nullopt;
  if (path.size() <= kPathStart.size() + kPathEnd.size()) return std::nullopt;
  path.remove_prefix(kPathStart.size());
  path.remove_suffix(kPathEnd.size());
  std::optional<std::string> name = path.contains('/') ? std::nullopt : percent_decoded(path);
  return name && name->size() <= protocol::kNameBytesMax && is_plain_text(*name) ? name : std::nullopt;
}

Result<std::string> reason_of_body(std::string_view body) {
  const size_t begin = body.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return "";
  if (body[begin] != '{') return std::string(body.substr(begin, body.find_last_not_of(" \t\r\n") - begin + 1));
  const RequestJson json = RequestJson::parse(body, nullptr, false);
  if (!json.is_object() || json.size() != 1 || !json.contains("reason") || !json["reason"].is_string())
    return fail(ErrorCode::kInvalidArgument, R"(the body is neither a text nor JSON of the form {"reason": "TEXT"})");
  return json["reason"].get<std::string>();
}

}  // namespace millrace::server
