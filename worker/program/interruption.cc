#include "worker/program/interruption.h"

#include <unistd.h>

#include <csignal>
#include <string_view>

#include "protocol/files/atomic_file.h"
#include "worker/program/outcome.h"

namespace millrace::program {
namespace {

std::atomic<bool> interrupted{false};
std::atomic<bool> save_requested{false};
std::atomic<bool> reload_requested{false};
InterruptionRequests requests;
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free &&
                  std::atomic<TimeNs>::is_always_lock_free,
              "set in signal handlers");

extern "C" void on_first_signal(int signal) {
  if (!requests.is_new(signal, monotonic_now_ns())) return;
  if (!interrupted.exchange(true)) return;
  // It waits until this handler returns, and ends the process then.
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

extern "C" void on_each_signal(int signal) { requests.is_new(signal, monotonic_now_ns()); }

extern "C" void on_save_signal(int /*signal*/) { save_requested.store(true); }

extern "C" void on_reload_signal(int /*signal*/) { reload_requested.store(true); }

extern "C" void on_last_signal(int /*signal*/) {
  constexpr std::string_view kLine = "millrace: interrupted; nothing was written\n";
  files::remove_unfinished_files();
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kLine.data(), kLine.size());
  _exit(static_cast<int>(ExitCode::kInterrupted));
}

/// SIGHUP, the end of the terminal, keeps another use: `nohup` ignores it, and servers read files again.
bool is_hangup_taken() {
  struct sigaction now{};
  sigaction(SIGHUP, nullptr, &now);
  return now.sa_handler == SIG_IGN || now.sa_handler == on_reload_signal;
}

void take_signals(void (*handler)(int), int flags) {
  struct sigaction action{};
  action.sa_handler = handler;
  action.sa_flags = flags;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  if (!is_hangup_taken()) sigaction(SIGHUP, &action, nullptr);
}

/// Takes a signal that requests something of a running process.
void take_request(int signal, void (*handler)(int)) {
  struct sigaction action{};
  action.sa_handler = handler;
  action.sa_flags = static_cast<int>(SA_RESTART);  // it ends nothing: writes in progress complete
  sigaction(signal, &action, nullptr);
}

}  // namespace

bool InterruptionRequests::is_new(int signal, TimeNs now) {
  if (count_.load() > 0 && signal_.load() == signal && now - since_.load() < kSameRequestNs) return false;
  signal_.store(signal);
  since_.store(now);
  count_.fetch_add(1);
  return true;
}

void end_at_interruption() { take_signals(on_last_signal, static_cast<int>(SA_RESETHAND)); }

const std::atomic<bool>& interruption_flag() {
  take_signals(on_first_signal, 0);
  return interrupted;
}

const InterruptionRequests& interruption_requests() {
  take_signals(on_each_signal, 0);
  return requests;
}

std::atomic<bool>& save_request_flag() {
  take_request(SIGUSR2, on_save_signal);
  return save_requested;
}

std::atomic<bool>& reload_request_flag() {
  take_request(SIGHUP, on_reload_signal);
  return reload_requested;
}

ExitCode last_interruption_code() {
  return requests.last_signal() == SIGINT ? ExitCode::kEndedBySigint : ExitCode::kEndedBySigterm;
}

}  // namespace millrace::program
