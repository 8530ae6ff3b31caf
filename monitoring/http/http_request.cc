#include "monitoring/http/http_request.h"

#include <algorithm>

#include "kernels/base/words.h"

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

/// Returns the value of the first header of that name; empty: there is none, or it has none. `headers` begins with the
/// end of the request line.
///
/// name  in lower case, with its colon.
std::string_view header_value(std::string_view headers, std::string_view name) {
  while (!headers.empty()) {
    headers.remove_prefix(std::min(kLineEnd.size(), headers.size()));
    const std::string_view line = headers.substr(0, headers.find(kLineEnd));
    headers.remove_prefix(line.size());
    if (starts_with_word(line, name)) return without_spaces(line.substr(name.size()));
  }
  return {};
}

std::string_view bearer_token(std::string_view headers) {
  constexpr std::string_view kScheme = "bearer ";
  const std::string_view value = header_value(headers, "authorization:");
  return starts_with_word(value, kScheme) ? without_spaces(value.substr(kScheme.size())) : std::string_view();
}

}  // namespace

HttpRequestReader::Progress HttpRequestReader::take(std::string_view bytes) {
  if (progress_ != Progress::kMore) return progress_;
  if (body_bytes_) return take_body(bytes);
  const size_t had = head_.size();
  const size_t room = kHttpHeadBytesMax - head_.size();
  const size_t searched = head_.size() < kHeadEnd.size() ? 0 : head_.size() - kHeadEnd.size() + 1;
  head_.append(bytes.substr(0, room));
  const size_t end = head_.find(kHeadEnd, searched);
  const size_t line_end = head_.find(kLineEnd);
  if (end != std::string::npos) {
    const std::string_view head = std::string_view(head_).substr(0, end);
    if (read_request_line(head.substr(0, line_end)) == Progress::kRefused ||
        read_headers(head.substr(line_end)) == Progress::kRefused)
      return progress_;
    return take_body(bytes.substr(end + kHeadEnd.size() - had));
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
  request_ = {std::string(method), std::string(target.substr(0, path_end)), std::string(query)};
  return Progress::kMore;
}

HttpRequestReader::Progress HttpRequestReader::read_headers(std::string_view headers) {
  constexpr int kBadRequest = 400;
  constexpr int kLengthRequired = 411;
  request_.host = header_value(headers, "host:");
  request_.token = bearer_token(headers);
  body_bytes_ = 0;
  if (request_.method != "POST") return Progress::kMore;
  if (!header_value(headers, "transfer-encoding:").empty()) return refuse(kLengthRequired);
  const std::string_view length = header_value(headers, "content-length:");
  body_bytes_ = length.empty() ? std::optional<size_t>(0) : number_from_text<size_t>(length);
  if (!body_bytes_) return refuse(kBadRequest);
  request_.body_is_too_long = *body_bytes_ > kHttpBodyBytesMax;
  if (request_.body_is_too_long) body_bytes_ = 0;
  return Progress::kMore;
}

HttpRequestReader::Progress HttpRequestReader::take_body(std::string_view bytes) {
  request_.body.append(bytes.substr(0, *body_bytes_ - request_.body.size()));
  return progress_ = request_.body.size() == *body_bytes_ ? Progress::kComplete : Progress::kMore;
}

}  // namespace millrace::monitoring
