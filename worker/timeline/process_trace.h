#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/result.h"
#include "worker/timeline/clock_alignment.h"

namespace millrace::timeline {

/// Holds one span as a process reported it; times of that process's clock.
struct TracedSpan {
  uint32_t thread = 0;
  uint32_t unit = 0;
  TimeNs begin = 0;
  TimeNs end = 0;
  uint64_t step = 0;
  uint64_t job = 0;
  int64_t worker = -1;
  std::string name = {};
  std::string unit_kind = {};
};

/// Holds one answer of /trace.
struct TraceAnswer {
  TimeNs now = 0;       ///< its monotonic clock
  int64_t unix_ns = 0;  ///< its wall clock, ns since 1970; 0: the answer has none
  nlohmann::json process;
  uint64_t lost = 0;
  std::string next;
  std::vector<TracedSpan> spans;
};

/// Parses an answer of /trace; hostile bytes.
/// Errors  malformed: the sentence names the fault.
Result<TraceAnswer> read_trace_answer(std::string_view text);

/// Holds the spans that one process reported.
struct ProcessTrace {
  std::string address;          ///< of its HTTP port
  nlohmann::json process = {};  ///< as the process describes itself; null: it never answered
  ClockAlignment clock = {};
  std::vector<TracedSpan> spans = {};
  uint64_t lost = 0;         ///< spans that its rings had no room for
  uint64_t dropped = 0;      ///< spans beyond CollectOptions::spans_max
  std::string trouble = {};  ///< why an answer or its spans are missing; empty: none is
};

struct CollectOptions {
  TimeNs duration = 10 * kNsPerS;
  TimeNs ask_every = 100 * kNsPerMs;
  size_t spans_max = 1'000'000;                                 ///< of all processes together
  std::function<bool()> is_interrupted = [] { return false; };  ///< ends the collection early
};

/// Fetches "/trace?..." of a process: monitoring::http_get() outside of tests. Called on several threads.
using FetchTrace = std::function<Result<std::string>(const std::string& address, const std::string& path)>;

struct Collection {
  TimeNs begin = 0;  ///< of this process's clock
  TimeNs end = 0;
  std::vector<ProcessTrace> processes;  ///< in the order of the addresses
};

/// Asks every process repeatedly for the duration. A process that is not asked for two seconds stops recording.
///
/// Threads  starts one for each address, and joins them.
Collection collect_traces(const std::vector<std::string>& addresses, const CollectOptions& options,
                          const FetchTrace& fetch);

}  // namespace millrace::timeline
