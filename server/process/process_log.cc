#include "server/process/process_log.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>

#include "monitoring/standard_streams.h"

namespace millrace::server {
namespace {

std::string_view severity_name(Severity severity) {
  switch (severity) {
    case Severity::kDebug: return "debug";
    case Severity::kInfo: return "info";
    case Severity::kWarning: return "warning";
    case Severity::kError: return "error";
  }
  return "error";
}

}  // namespace

void ProcessLog::print(Severity severity, std::string_view text) const {
  const auto now = std::chrono::time_point_cast<std::chrono::milliseconds>(std::chrono::system_clock::now());
  const auto milliseconds = now.time_since_epoch().count() % 1000;
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  monitoring::say(fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z shard {} {}: {}", fmt::gmtime(seconds), milliseconds, shard_,
                              severity_name(severity), text));
}

void ProcessLog::write(Severity severity, std::string_view text, TimeNs now) {
  if (severity < least_) return;
  if (now - second_begun_ >= kNsPerS) {
    if (left_out_ != 0) print(Severity::kWarning, fmt::format("{} lines were left out", left_out_));
    second_begun_ = now;
    lines_ = 0;
    errors_ = 0;
    left_out_ = 0;
  }
  uint32_t& lines = severity == Severity::kError ? errors_ : lines_;
  if (++lines > kLinesPerSecond) {
    ++left_out_;
    return;
  }
  print(severity, text);
}

}  // namespace millrace::server
