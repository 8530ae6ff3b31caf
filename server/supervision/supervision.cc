#include "server/supervision/supervision.h"

#include <fmt/format.h>

#include <utility>

namespace millrace::server {
namespace {

constexpr int64_t kTableFailsForMs = 1'000;
/// The shard calls the table several times a second. Without a failure for this long the table answers again.
constexpr int64_t kTableAnswersForMs = 3'000;

}  // namespace

bool reaches_table(const StatusReport& report) {
  if (!report.table_failures) return true;
  const TableFailuresStatus& failures = *report.table_failures;
  return failures.first_ms - failures.last_ms < kTableFailsForMs || failures.last_ms >= kTableAnswersForMs;
}

std::optional<std::string> unready_reason(const StatusReport& report) {
  if (report.shutting_down) return "shutting down";
  if (report.leaving) return "leaves its number to a spare";
  if (!reaches_table(report)) return fmt::format("the membership table fails: {}", report.table_error);
  for (const JobStatus& job : report.jobs) {
    if (job.recovering) return fmt::format("job '{}' is in recovery", job.name);
  }
  return std::nullopt;
}

void Supervision::as_spare() {
  set("a spare without a number");
  say_ready();
}

void Supervision::serving() {
  set("starting");
  say_ready();
}

void Supervision::reloaded() { say_ready(); }

void Supervision::draining() {
  set("shutting down");
  manager_.stopping("shutting down");
}

void Supervision::update(const StatusReport& report) {
  std::optional<std::string> reason = unready_reason(report);
  if (reason == unready()) return;
  manager_.report(reason.value_or("ready"));
  set(std::move(reason));
}

std::optional<std::string> Supervision::unready() const {
  const std::lock_guard lock(mutex_);
  return unready_;
}

void Supervision::set(std::optional<std::string> reason) {
  const std::lock_guard lock(mutex_);
  unready_ = std::move(reason);
}

void Supervision::say_ready() {
  if (const Status told = manager_.ready(unready().value_or("ready")); !told) program_.say(told.error().message);
}

}  // namespace millrace::server
