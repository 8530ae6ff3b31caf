#include "monitoring/http/http_request.h"

#include <algorithm>

namespace millrace::monitoring {
namespace {

constexpr std::string_view kLineEnd = "\r\n";
constexpr std::string_view kHeadEnd = "\r\n\r\n";

bool is_visible(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c > 0x20 && c < 0x7f; });
}

}  // namespace

HttpRequestReader::Progress HttpRequestReader::take(std::string_view bytes) {
  if (progress_ != Progress::kMore) return progress_;
  const size_t room = kHttpHeadBytesMax - head_.size();
  const size_t searched = head_.size() < kHeadEnd.size() ? 0 : head_.size() - kHeadEnd.size() + 1;
  head_.append(bytes.substr(0, room));
  const size_t end = head_.find(kHeadEnd, searched);
  const size_t line_end = head_.find(kLineEnd);
  if (end != std::string::npos) return progress_ = read_request_line(std::string_view(head_).substr(0, line_end));
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
  constexpr std::string_view kScheme = "http://";
  if (target.starts_with(kScheme)) {  // the absolute form, as for a proxy
    const size_t slash = target.find('/', kScheme.size());
    target = slash == std::string_view::npos ? "/" : target.substr(slash);
  }
  if (target.front() != '/') return refuse(kBadRequest);
  request_ = {std::string(method), std::string(target.substr(0, target.find('?')))};
  return Progress::kComplete;
}

}  // namespace millrace::monitoring
