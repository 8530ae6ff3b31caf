#include "worker/cli/interruption.h"

#include <unistd.h>

#include <csignal>
#include <string_view>

#include "worker/cli/atomic_file.h"
#include "worker/cli/outcome.h"

namespace millrace::cli {
namespace {

std::atomic<bool> interrupted{false};
std::atomic<int> interruptions{0};
std::atomic<int> last_signal{0};
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free,
              "set in signal handlers");

extern "C" void on_signal(int /*signal*/) { interrupted.store(true); }

extern "C" void on_each_signal(int signal) {
  last_signal.store(signal);
  interruptions.fetch_add(1);
}

extern "C" void on_last_signal(int /*signal*/) {
  constexpr std::string_view kLine = "millrace: interrupted; nothing was written\n";
  remove_unfinished_files();
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kLine.data(), kLine.size());
  _exit(static_cast<int>(ExitCode::kInterrupted));
}

void take_signals(void (*handler)(int), int flags) {
  struct sigaction action{};
  action.sa_handler = handler;
  action.sa_flags = flags;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

}  // namespace

void end_at_interruption() { take_signals(on_last_signal, static_cast<int>(SA_RESETHAND)); }

const std::atomic<bool>& interruption_flag() {
  take_signals(on_signal, static_cast<int>(SA_RESETHAND));
  return interrupted;
}

const std::atomic<int>& interruption_count() {
  take_signals(on_each_signal, 0);
  return interruptions;
}

ExitCode last_interruption_code() {
  return last_signal.load() == SIGINT ? ExitCode::kEndedBySigint : ExitCode::kEndedBySigterm;
}

}  // namespace millrace::cli
