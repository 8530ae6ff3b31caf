#include "worker/cli/interruption.h"

#include <csignal>

namespace millrace::cli {
namespace {

std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free, "set in a signal handler");

extern "C" void on_signal(int /*signal*/) { interrupted.store(true); }

}  // namespace

const std::atomic<bool>& interruption_flag() {
  struct sigaction action{};
  action.sa_handler = on_signal;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  return interrupted;
}

}  // namespace millrace::cli
