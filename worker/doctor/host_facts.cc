#include "worker/doctor/host_facts.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/timex.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include "kernels/base/instruction_set.h"
#include "kernels/base/words.h"
#include "worker/program/memory_room.h"

namespace millrace::doctor {
namespace {

std::optional<std::string> first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return line;
}

/// Sets the policy that this process has. By the system's own call: programs replace the library's function
/// (protocol/transport/same_scheduling.cc).
long set_same_scheduling() {
  sched_param own{};
  const long policy = ::syscall(SYS_sched_getscheduler, 0);
  if (policy < 0 || ::syscall(SYS_sched_getparam, 0, &own) < 0) return -1;
  return ::syscall(SYS_sched_setscheduler, 0, policy, &own);
}

long make_memory_file() { return ::syscall(SYS_memfd_create, "millrace-doctor", MFD_CLOEXEC); }

long open_own_process() { return ::syscall(SYS_pidfd_open, ::getpid(), 0); }

/// Makes one call in a child process, which a filter may kill. The child makes no other call that allocates.
CallOutcome try_call(long (*call)()) {
  constexpr int kRefused = 1;
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit no_core{};
    ::setrlimit(RLIMIT_CORE, &no_core);
    ::_exit(call() < 0 && (errno == EPERM || errno == ENOSYS || errno == EACCES) ? kRefused : 0);
  }
  int status = 0;
  pid_t ended = -1;
  do {
    ended = child < 0 ? -1 : ::waitpid(child, &status, 0);
  } while (ended < 0 && child >= 0 && errno == EINTR);
  if (ended < 0) return CallOutcome::kNotTried;
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS) return CallOutcome::kKills;
  if (!WIFEXITED(status)) return CallOutcome::kNotTried;
  return WEXITSTATUS(status) == 0 ? CallOutcome::kAllowed : CallOutcome::kRefused;
}

std::vector<TriedCall> tried_calls() {
  return {{"sched_setscheduler", try_call(set_same_scheduling)},
          {"memfd_create", try_call(make_memory_file)},
          {"pidfd_open", try_call(open_own_process)}};
}

std::optional<bool> clock_synchronised() {
  timex state{};
  const int mode = ::adjtimex(&state);
  if (mode < 0) return std::nullopt;
  return mode != TIME_ERROR && (state.status & STA_UNSYNC) == 0;
}

std::vector<std::pair<std::string, uint32_t>> interface_mtus() {
  std::vector<std::pair<std::string, uint32_t>> mtus;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/class/net", ignored)) {
    const std::string name = entry.path().filename().string();
    const auto state = first_line(entry.path().string() + "/operstate");
    const auto mtu = first_line(entry.path().string() + "/mtu");
    // Tunnels, bridges and containers' pairs have no device; their MTU is that of the network that they are made for.
    if (!mtu || state == "down" || !std::filesystem::exists(entry.path() / "device", ignored)) continue;
    if (const auto number = number_from_text<uint32_t>(*mtu)) mtus.emplace_back(name, *number);
  }
  std::ranges::sort(mtus);
  return mtus;
}

}  // namespace

HostFacts read_host_facts() {
  HostFacts facts;
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0) facts.open_files = files.rlim_max;
  const uint64_t available = program::memory_available_bytes();
  if (available != std::numeric_limits<uint64_t>::max()) facts.memory_available = available;
  facts.transparent_huge_pages = first_line("/sys/kernel/mm/transparent_hugepage/enabled");
  facts.calls = tried_calls();
  facts.instruction_set = instruction_set();
  facts.clock_synchronised = clock_synchronised();
  facts.interface_mtus = interface_mtus();
  return facts;
}

std::string host_name() {
  constexpr size_t kNameBytesMax = 256;
  std::array<char, kNameBytesMax> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') return "?";
  return name.data();
}

}  // namespace millrace::doctor
