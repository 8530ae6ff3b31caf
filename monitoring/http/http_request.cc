#include "monitoring/http/http_request.h"

#include <algorithm>

namespace millrace::monitoring {
namespace {

constexpr std::string_view kLineEnd = "\r\n";
constexpr std::string_view kHeadEnd = "\r\n\r\n";

bool is_visible(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c > 0x20 && c < 0x7f; });
}

char lower_case(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c; }

bool starts_with_word(std::string_view text, std::string_view word) {
  return text.size() >= word.size() &&
         std::ranges::equal(text.substr(0, word.size()), word, {}, lower_case, lower_case);
}

std::string_view without_spaces(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

/// Returns the token of the first header of that name. `headers` begins with the end of the request line.
std::string_view bearer_token(std::string_view headers) {
  constexpr std::string_view kName = "authorization:";
  constexpr std::string_view kScheme = "bearer ";
  while (!headers.empty()) {
    headers.remove_prefix(std::min(kLineEnd.size(), headers.size()));
    const std::string_view line = headers.substr(0, headers.find(kLineEnd));
    headers.remove_prefix(line.size());
    if (!starts_with_word(line, kName)) continue;
    const std::string_view value = without_spaces(line.substr(kName.size()));
    return starts_with_word(value, kScheme) ? without_spaces(value.substr(kScheme.size())) : std::string_view();
  }
  return {};
}

}  // namespace

HttpRequestReader::Progress HttpRequestReader::take(std::string_view bytes) {
  if (progress_ != Progress::kMore) return progress_;
  const size_t room = kHttpHeadBytesMax - head_.size();
  const size_t searched = head_.size() < kHeadEnd.size() ? 0 : head_.size() - kHeadEnd.size() + 1;
  head_.append(bytes.substr(0, room));
  const size_t end = head_.find(kHeadEnd, searched);
  const size_t line_end = head_.find(kLineEnd);
  if (end != std::string::npos) {
    progress_ = read_request_line(std::string_view(head_).substr(0, line_end));
    if (progress_ == Progress::kComplete)
      request_.token = bearer_token(std::string_view(head_).substr(line_end, end - line_end));
    return progress_;
  }
  if (bytes.size() < room) return Progress::kMore;
  constexpr int kTargetTooLong = 414;
  constexpr int kHeadersTooLarge = 431;
  return refuse(line_end == std::string::npos ? kTargetTooLong : kHeadersTooLarge);
}

HttpRequestReader::Progress HttpRequestReader::refuse(int status) {
  refusal_ = status;
  return progress_ = Progress::kRefused;
}

/// Takes "METHOD TARGET HTTP/1.x" apart.
HttpRequestReader::Progress HttpRequestReader::read_request_line(std::string_view line) {
  constexpr int kBadRequest = 400;
  const size_t first = line.find(' ');
  const size_t last = line.rfind(' ');
  if (first == std::string_view::npos || first == last) return refuse(kBadRequest);
  const std::string_view method = line.substr(0, first);
  std::string_view target = line.substr(first + 1, last - first - 1);
  const std::string_view version = line.substr(last + 1);
  if (!is_visible(method) || !is_visible(target) || (version != "HTTP/1.1" && version != "HTTP/1.0"))
    return refuse(kBadRequest);
  for (const std::string_view scheme : {std::string_view("http://"), std::string_view("https://")}) {
    if (!target.starts_with(scheme)) continue;  // the absolute form, as for a proxy
    const size_t slash = target.find('/', scheme.size());
    target = slash == std::string_view::npos ? "/" : target.substr(slash);
  }
  if (target.front() != '/') return refuse(kBadRequest);
  const size_t path_end = std::min(target.find('?'), target.size());
  const std::string_view query = target.substr(std::min(path_end + 1, target.size()));
  request_ = {std::string(method), std::string(target.substr(0, path_end)), std::string(query), {}};
  return Progress::kComplete;
}

}  // namespace millrace::monitoring
