#include "worker/cli/interruption.h"

#include <unistd.h>

#include <csignal>
#include <string_view>

#include "worker/cli/atomic_file.h"
#include "worker/cli/outcome.h"

namespace millrace::cli {
namespace {

std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free, "set in a signal handler");

extern "C" void on_signal(int /*signal*/) { interrupted.store(true); }

extern "C" void on_last_signal(int /*signal*/) {
  constexpr std::string_view kLine = "millrace: interrupted; nothing was written\n";
  remove_unfinished_files();
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kLine.data(), kLine.size());
  _exit(static_cast<int>(ExitCode::kInterrupted));
}

void take_signals(void (*handler)(int)) {
  struct sigaction action{};
  action.sa_handler = handler;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

}  // namespace

void end_at_interruption() { take_signals(on_last_signal); }

const std::atomic<bool>& interruption_flag() {
  take_signals(on_signal);
  return interrupted;
}

}  // namespace millrace::cli
