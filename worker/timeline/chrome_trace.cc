#include "worker/timeline/chrome_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <unordered_map>

#include "worker/program/json_text.h"

namespace millrace::timeline {
namespace {

double to_us(TimeNs ns) { return static_cast<double>(ns) / static_cast<double>(kNsPerUs); }

/// Says whether the span is of the job, and began in the time of the collection.
bool is_shown(const Timeline& timeline, const ProcessTrace& process, const TracedSpan& span) {
  if (span.job != 0 && std::ranges::find(timeline.job_numbers, span.job) == timeline.job_numbers.end()) return false;
  const TimeNs begin = process.clock.to_own(span.begin);
  return begin >= timeline.collection.begin && begin < timeline.collection.end;
}

/// Returns the kind that the process names. Each span repeats it: a long one, or none, is not taken.
std::string kind_of(const ProcessTrace& process) {
  constexpr size_t kKindBytesMax = 32;
  const nlohmann::json& said = process.process;
  const auto kind = said.is_object() ? said.find("kind") : said.end();
  const bool fits =
      kind != said.end() && kind->is_string() && kind->get_ref<const std::string&>().size() <= kKindBytesMax;
  return fits ? kind->get<std::string>() : "process";
}

void append_name(std::string& text, std::string_view what, size_t pid, const nlohmann::json& thread,
                 const std::string& name) {
  nlohmann::json event = {{"ph", "M"}, {"name", what}, {"pid", pid}, {"args", {{"name", name}}}};
  if (!thread.is_null()) event["tid"] = thread;
  text += program::json_text(event);
  text += ",\n";
}

/// JSON strings of the few words that spans repeat. Words are of the program, or a hostile process's: both are escaped.
class Words {
 public:
  const std::string& text_of(const std::string& word) {
    const auto [at, is_new] = texts_.try_emplace(word);
    if (is_new) at->second = program::json_text(word);
    return at->second;
  }

 private:
  std::unordered_map<std::string, std::string> texts_;
};

void append_span(std::string& text, const Timeline& timeline, size_t pid, const ProcessTrace& process,
                 const TracedSpan& span, const std::string& kind, Words& words) {
  const TimeNs begin = process.clock.to_own(span.begin) - timeline.collection.begin;
  fmt::format_to(std::back_inserter(text),
                 R"({{"ph":"X","name":{},"cat":{},"pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},"args":{{"step":{},{}:{})",
                 words.text_of(span.name), kind, pid, span.thread, to_us(begin), to_us(span.end - span.begin),
                 span.step, words.text_of(span.unit_kind), span.unit);
  if (span.worker >= 0) fmt::format_to(std::back_inserter(text), R"(,"worker":{})", span.worker);
  text += "}},\n";
}

}  // namespace

std::vector<ProcessSummary> summaries_of(const Timeline& timeline) {
  std::vector<ProcessSummary> summaries;
  for (size_t at = 0; at < timeline.collection.processes.size(); ++at) {
    const ProcessTrace& process = timeline.collection.processes[at];
    ProcessSummary summary{.label = timeline.labels[at], .address = process.address};
    summary.lost = process.lost + process.dropped;
    summary.trouble = process.trouble;
    if (process.clock.known()) summary.clock_error = process.clock.error();
    summary.spans = static_cast<uint64_t>(std::ranges::count_if(
        process.spans, [&](const TracedSpan& span) { return is_shown(timeline, process, span); }));
    summaries.push_back(std::move(summary));
  }
  return summaries;
}

std::string chrome_trace(const Timeline& timeline) {
  const std::vector<ProcessSummary> summaries = summaries_of(timeline);
  std::string text = "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n";
  nlohmann::json processes = nlohmann::json::array();
  Words words;
  for (size_t at = 0; at < summaries.size(); ++at) {
    const ProcessTrace& process = timeline.collection.processes[at];
    const size_t pid = at + 1;
    append_name(text, "process_name", pid, nullptr, timeline.labels[at]);
    const std::string kind = program::json_text(kind_of(process));
    std::set<uint32_t> threads;
    for (const TracedSpan& span : process.spans) {
      if (!is_shown(timeline, process, span)) continue;
      if (threads.insert(span.thread).second)
        append_name(text, "thread_name", pid, span.thread, fmt::format("thread {}", span.thread));
      append_span(text, timeline, pid, process, span, kind, words);
    }
    nlohmann::json about = {{"pid", pid},
                            {"name", timeline.labels[at]},
                            {"address", process.address},
                            {"spans", summaries[at].spans},
                            {"spans_lost", process.lost},
                            {"spans_over_limit", process.dropped}};
    if (process.clock.known()) {
      about["clock_offset_us"] = to_us(process.clock.offset());
      about["clock_error_us"] = to_us(process.clock.error());
    }
    if (!process.trouble.empty()) about["trouble"] = process.trouble;
    processes.push_back(std::move(about));
  }
  // The last event has no comma behind it; there is one for each process at least.
  if (text.ends_with(",\n")) text.resize(text.size() - 2);
  const nlohmann::json other = {
      {"job", timeline.job},
      {"seconds", to_us(timeline.collection.end - timeline.collection.begin) / 1e6},
      {"clock", "times are of the collecting process; clock_error_us bounds the error of each process's times"},
      {"processes", processes}};
  text += "\n],\"otherData\":" + program::json_text(other) + "}\n";
  return text;
}

}  // namespace millrace::timeline
