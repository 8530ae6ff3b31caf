#include "monitoring/trace/trace_answer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "kernels/base/words.h"

namespace millrace::monitoring {
namespace {

struct TraceQuestion {
  TimeNs keep_on = 0;
  std::optional<SpanRecorder::Cursor> after;
};

std::unexpected<Error> no_question(std::string why) { return fail(ErrorCode::kInvalidArgument, std::move(why)); }

Result<SpanRecorder::Cursor> read_cursor(std::string_view text) {
  SpanRecorder::Cursor cursor;
  while (true) {
    const size_t dot = text.find('.');
    const auto number = number_from_text<uint64_t>(text.substr(0, dot));
    if (!number || cursor.size() > SpanRecorder::kThreadsMax) return no_question("after: not what 'next' said");
    cursor.push_back(*number);
    if (dot == std::string_view::npos) return cursor;
    text.remove_prefix(dot + 1);
  }
}

Status read_parameter(std::string_view name, std::string_view value, TraceQuestion& question) {
  if (name == "seconds") {
    const auto seconds = number_from_text<uint32_t>(value);
    if (!seconds || *seconds > kTraceKeepOnMax / kNsPerS) return no_question("seconds: a whole number from 0 to 60");
    question.keep_on = TimeNs{*seconds} * kNsPerS;
    return {};
  }
  if (name == "after") {
    auto cursor = read_cursor(value);
    if (!cursor) return std::unexpected(cursor.error());
    question.after = std::move(*cursor);
    return {};
  }
  return no_question("parameters of /trace: seconds, after");
}

Result<TraceQuestion> read_question(std::string_view query) {
  TraceQuestion question;
  while (!query.empty()) {
    const std::string_view one = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(one.size() + 1, query.size()));
    const size_t equals = one.find('=');
    if (equals == std::string_view::npos) return no_question("parameters of /trace: seconds, after");
    if (Status read = read_parameter(one.substr(0, equals), one.substr(equals + 1), question); !read)
      return std::unexpected(read.error());
  }
  return question;
}

int64_t unix_now_ns() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
}

std::string process_json(const TraceProcess& process) {
  nlohmann::json json = {{"kind", process.kind}};
  if (!process.address.empty()) json["address"] = process.address;
  if (!process.job.empty()) json["job"] = process.job;
  if (process.worker) json["worker"] = *process.worker;
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);  // a job's name may be any bytes
}

void append_span(std::string& text, const SpanRecorder::Taken& taken) {
  const Span& span = taken.span;
  fmt::format_to(std::back_inserter(text), R"([{},"{}",{},{},{},"{}",{},{},{}])", taken.thread, span_name(span.name),
                 span.begin, span.end, span.step, span_unit_name(span.unit_kind), span.unit, span.worker, span.job);
}

}  // namespace

Result<std::string> answer_trace(SpanRecorder& recorder, std::string_view query, const TraceProcess& process,
                                 TimeNs (*now)()) {
  constexpr size_t kBytesOfSpan = 72;  // of the text, about
  const Result<TraceQuestion> question = read_question(query);
  if (!question) return std::unexpected(question.error());
  const TimeNs at = now();
  if (question->keep_on > 0) recorder.keep_on(at, at + question->keep_on);
  const SpanRecorder::Page page = recorder.read(question->after, kTraceSpansMax);
  std::string text;
  text.reserve(page.spans.size() * kBytesOfSpan + 4096);
  fmt::format_to(std::back_inserter(text), R"({{"now":{},"unix":{},"process":{},"lost":{},"next":"{}","spans":[)", at,
                 unix_now_ns(), process_json(process), page.lost, fmt::join(page.next, "."));
  for (size_t span = 0; span < page.spans.size(); ++span) {
    if (span > 0) text += ',';
    append_span(text, page.spans[span]);
  }
  text += "]}";
  return text;
}

}  // namespace millrace::monitoring
