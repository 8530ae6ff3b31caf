#include "worker/program/progress.h"

#include <fmt/core.h>
#include <unistd.h>

#include <utility>

#include "monitoring/standard_streams.h"

namespace millrace::program {
namespace {

constexpr TimeNs kTerminalEvery = kNsPerS / 2;
constexpr TimeNs kLogEvery = 5 * kNsPerS;

}  // namespace

std::string grouped(uint64_t number) {
  std::string text = std::to_string(number);
  for (size_t at = text.size(); at > 3; at -= 3) text.insert(at - 3, ",");
  return text;
}

Progress::Progress(std::string what, std::string unit)
    : what_(std::move(what)),
      unit_(std::move(unit)),
      terminal_(isatty(STDERR_FILENO) == 1),
      next_ns_(monotonic_now_ns() + (terminal_ ? kTerminalEvery : kLogEvery)) {}

Progress::~Progress() {
  if (shown_ && terminal_) monitoring::write_error("\r\033[K");
}

void Progress::at(uint64_t count) {
  const TimeNs now = monotonic_now_ns();
  if (now < next_ns_) return;
  next_ns_ = now + (terminal_ ? kTerminalEvery : kLogEvery);
  shown_ = true;
  monitoring::write_error(
      fmt::format("{}{}: {} {}{}", terminal_ ? "\r\033[K" : "", what_, grouped(count), unit_, terminal_ ? "" : "\n"));
}

}  // namespace millrace::program
