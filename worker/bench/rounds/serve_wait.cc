#include "worker/bench/rounds/serve_wait.h"

#include <string>

#include "kernels/base/clock.h"
#include "worker/launch/child_end.h"
#include "worker/program/interruption.h"

namespace millrace::bench {

using program::ExitCode;
using program::fail_with;

namespace {

constexpr int kEndedBySignal = 128;  // and the signal's number: ExitReport::exit_code

std::string end_text(const char* what, size_t number, int exit_code) {
  const std::string who = what + (" " + std::to_string(number));
  if (exit_code > kEndedBySignal) return who + " was ended by signal " + std::to_string(exit_code - kEndedBySignal);
  return who + " ended with code " + std::to_string(exit_code);
}

}  // namespace

program::Outcome wait_for_workers(std::vector<launch::ChildProcess>& workers, std::span<const ServerProcess> servers,
                                  std::vector<launch::ExitReport>& reports, int timeout_ms) {
  constexpr int kLookEveryMs = 200;
  const TimeNs deadline = monotonic_now_ns() + timeout_ms * kNsPerMs;
  reports.assign(workers.size(), {});
  for (size_t done = 0; done < workers.size();) {
    done = 0;
    for (size_t at = 0; at < workers.size(); ++at) {
      const auto report = workers[at].try_wait();
      if (!report) continue;
      if (report->exit_code != 0)
        return fail_with(launch::code_of_child_end(report->exit_code), end_text("worker", at, report->exit_code));
      reports[at] = *report;
      ++done;
    }
    if (done == workers.size()) return {};
    for (const ServerProcess& server : servers) {
      const auto report = server.process->try_wait();
      if (report && report->exit_code != 0)
        return fail_with(ExitCode::kJobEnded, end_text(server.what, server.number, report->exit_code));
    }
    if (program::interruption_requests().count() > 0) return fail_with(ExitCode::kInterrupted, "interrupted");
    if (monotonic_now_ns() > deadline) {
      return fail_with(ExitCode::kJobEnded,
                       "the workers did not finish in " + std::to_string(timeout_ms / 1000) + " s");
    }
    for (auto& worker : workers) {
      if (!worker.try_wait()) {
        (void)worker.wait(kLookEveryMs);
        break;
      }
    }
  }
  return {};
}

}  // namespace millrace::bench
