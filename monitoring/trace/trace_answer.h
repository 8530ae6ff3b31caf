#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/base/clock.h"
#include "kernels/base/result.h"
#include "monitoring/trace/span_recorder.h"

namespace millrace::monitoring {

/// Longest time that one request keeps a recorder on.
inline constexpr TimeNs kTraceKeepOnMax = 60 * kNsPerS;
/// Most spans of one answer; the next request continues behind them.
inline constexpr size_t kTraceSpansMax = 100'000;

/// Describes the process that answers; empty members are left out.
struct TraceProcess {
  std::string kind;          ///< "shard", "worker", "switch"
  std::string address = {};  ///< for other processes
  std::string job = {};      ///< of a worker; any bytes
  std::optional<uint32_t> worker = {};
};

/// Answers GET /trace?seconds=S&after=CURSOR. Records spans for S seconds from now on, and returns the spans that are
/// here behind the cursor. S 0, or absent, changes nothing.
///
/// Answer   one JSON object, with the members:
///          - "now": this process's monotonic clock, ns, read between the request and the answer;
///          - "unix": its wall clock, ns since 1970, read at the same time;
///          - "process": TraceProcess;
///          - "lost": spans behind the cursor that were recorded and are gone;
///          - "next": the cursor of the next request;
///          - "spans": [thread, name, begin, end, step, unit kind, unit, worker, job] each, ns of that clock.
/// Errors   invalid_argument: a parameter that is not known, or no number in its range.
Result<std::string> answer_trace(SpanRecorder& recorder, std::string_view query, const TraceProcess& process,
                                 TimeNs (*now)() = monotonic_now_ns);

}  // namespace millrace::monitoring
