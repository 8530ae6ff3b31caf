#include "worker/timeline/process_trace.h"

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <thread>
#include <utility>

#include "worker/program/json_text.h"

namespace millrace::timeline {
namespace {

/// Time that each request keeps the recorder on; several times the interval of requests.
constexpr const char* kKeepOn = "seconds=2";
constexpr size_t kWordBytesMax = 32;
constexpr size_t kCursorBytesMax = 2'048;
constexpr size_t kSpanFields = 9;
/// A clock of up to 2^62 ns (146 years): a difference of two does not overflow.
constexpr TimeNs kClockMax = TimeNs{1} << 62;

std::unexpected<Error> malformed(const std::string& what) {
  return fail(ErrorCode::kMalformed, "its /trace has " + what);
}

/// Reads an unsigned or signed integer; false: it is none of that range.
template <typename Number>
bool take(const nlohmann::json& value, Number& out) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    out = static_cast<Number>(number);
    return std::in_range<Number>(number);
  }
  if (!value.is_number_integer()) return false;
  const auto number = value.get<int64_t>();
  out = static_cast<Number>(number);
  return std::in_range<Number>(number);
}

bool take(const nlohmann::json& value, std::string& out, size_t bytes_max) {
  if (!value.is_string() || value.get_ref<const std::string&>().size() > bytes_max) return false;
  out = value.get<std::string>();
  return true;
}

bool take_span(const nlohmann::json& value, TracedSpan& span) {
  if (!value.is_array() || value.size() != kSpanFields) return false;
  return take(value[0], span.thread) && take(value[1], span.name, kWordBytesMax) && take(value[2], span.begin) &&
         take(value[3], span.end) && span.begin <= span.end && take(value[4], span.step) &&
         take(value[5], span.unit_kind, kWordBytesMax) && take(value[6], span.unit) && take(value[7], span.worker) &&
         take(value[8], span.job);
}

}  // namespace

Result<TraceAnswer> read_trace_answer(std::string_view text) {
  const auto json = program::parse_json(text);
  if (!json) return std::unexpected(json.error());
  if (!json->is_object()) return malformed("no object");
  const auto field = [&](const char* name) { return json->value(name, nlohmann::json()); };
  TraceAnswer answer;
  answer.process = field("process");
  if (!answer.process.is_object()) return malformed("no process");
  if (!take(field("now"), answer.now) || answer.now < 0 || answer.now > kClockMax) return malformed("no clock");
  const nlohmann::json wall_clock = field("unix");
  if (!wall_clock.is_null() && (!take(wall_clock, answer.unix_ns) || answer.unix_ns < 0 || answer.unix_ns > kClockMax))
    return malformed("no wall clock");
  if (!take(field("lost"), answer.lost)) return malformed("no count of lost spans");
  if (!take(field("next"), answer.next, kCursorBytesMax) ||
      answer.next.find_first_not_of("0123456789.") != std::string::npos)
    return malformed("no cursor");
  const auto spans = json->find("spans");
  if (spans == json->end() || !spans->is_array()) return malformed("no spans");
  answer.spans.reserve(spans->size());
  for (const nlohmann::json& one : *spans) {
    TracedSpan span;
    if (!take_span(one, span)) return malformed("a span that is none");
    answer.spans.push_back(std::move(span));
  }
  return answer;
}

namespace {

/// Returns the number of spans from that place on: each is an array. Texts without spans must not fill the memory.
size_t spans_in(const std::string& text, size_t at) {
  constexpr size_t kSpanBytesMax = 256;
  const auto arrays = std::ranges::count(std::string_view(text).substr(at), '[');
  if (arrays == 0) return 0;
  return std::max(static_cast<size_t>(arrays), text.size() / kSpanBytesMax);
}

/// Reads an answer without its spans. `spans_at` becomes the place behind "spans":[, or the text's end where all was
/// read.
Result<TraceAnswer> read_head(const std::string& text, size_t& spans_at) {
  constexpr std::string_view kSpans = R"("spans":[)";  // no string of JSON has it: the quotes would be escaped
  spans_at = text.size();
  if (const size_t at = text.find(kSpans); at != std::string::npos) {
    Result<TraceAnswer> head = read_trace_answer(text.substr(0, at) + R"("spans":[]})");
    if (head) {
      spans_at = at + kSpans.size();
      return head;
    }
  }
  return read_trace_answer(text);  // in another order of its fields, or wrong
}

/// Asks one process, and continues behind its last answer. Reads the spans when the recording is over: that takes
/// several times as long as to record them, and may be on the job's machine.
class Follower {
 public:
  Follower(ProcessTrace& into, const FetchTrace& fetch, std::atomic<int64_t>& room)
      : into_(into), fetch_(fetch), room_(room) {}

  /// Returns false: the request failed.
  bool ask(const std::string& parameters) {
    std::string path = "/trace?" + parameters;
    if (!cursor_.empty()) path += (parameters.empty() ? "after=" : "&after=") + cursor_;
    const TimeNs asked = monotonic_now_ns();
    Result<std::string> said = fetch_(into_.address, path);
    const TimeNs answered = monotonic_now_ns();
    size_t spans_at = 0;
    Result<TraceAnswer> answer = said ? read_head(*said, spans_at) : std::unexpected(said.error());
    if (!answer) {
      into_.trouble = answer.error().message;
      return false;
    }
    into_.trouble.clear();
    into_.process = std::move(answer->process);
    into_.clock.add(asked, answered, answer->now);
    into_.lost += answer->lost;
    cursor_ = std::move(answer->next);
    const size_t spans = std::max(answer->spans.size(), spans_in(*said, spans_at));
    if (spans == 0) return true;
    const int64_t room = room_.fetch_sub(static_cast<int64_t>(spans));
    const size_t kept = std::min(spans, static_cast<size_t>(std::max<int64_t>(room, 0)));
    into_.dropped += spans - kept;
    if (kept > 0) answers_.push_back({std::move(*said), kept});
    return true;
  }

  void read_spans() {
    for (Kept& kept : std::exchange(answers_, {})) {
      Result<TraceAnswer> answer = read_trace_answer(kept.text);
      kept.text = std::string();  // = {} would keep its memory
      if (!answer) {
        into_.trouble = answer.error().message;
        continue;
      }
      answer->spans.resize(std::min(answer->spans.size(), kept.spans));
      std::ranges::move(answer->spans, std::back_inserter(into_.spans));
    }
  }

 private:
  struct Kept {
    std::string text;
    size_t spans = 0;  ///< that there is room for
  };
  ProcessTrace& into_;
  const FetchTrace& fetch_;
  std::atomic<int64_t>& room_;
  std::string cursor_;
  std::vector<Kept> answers_;
};

}  // namespace

Collection collect_traces(const std::vector<std::string>& addresses, const CollectOptions& options,
                          const FetchTrace& fetch) {
  Collection collection;
  collection.begin = monotonic_now_ns();
  const TimeNs end = collection.begin + options.duration;
  for (const std::string& address : addresses) collection.processes.push_back({.address = address});
  std::atomic<int64_t> room = static_cast<int64_t>(options.spans_max);
  const auto is_over = [&] { return monotonic_now_ns() >= end || options.is_interrupted(); };
  std::vector<Follower> followers;
  for (ProcessTrace& process : collection.processes) followers.emplace_back(process, fetch, room);
  {
    std::vector<std::jthread> threads;
    for (Follower& follower : followers) {
      threads.emplace_back([&] {
        while (!is_over()) {
          (void)follower.ask(kKeepOn);
          ::poll(nullptr, 0, static_cast<int>(options.ask_every / kNsPerMs));
        }
        (void)follower.ask("");
      });
    }
  }
  collection.end = std::min(end, monotonic_now_ns());
  for (Follower& follower : followers) follower.read_spans();
  return collection;
}

}  // namespace millrace::timeline
