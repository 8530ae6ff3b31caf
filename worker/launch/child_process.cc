#include "worker/launch/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "kernels/base/clock.h"

namespace millrace::launch {
namespace {

constexpr TimeNs kLookEvery = 20 * kNsPerMs;
constexpr int kSetupFailed = 126;  // the child could not set itself up; stderr has the reason

[[noreturn]] void die_in_child(const char* what, const std::string& about) {
  const std::string line = std::string("millrace: ") + what + " '" + about + "': " + std::strerror(errno) + "\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
  _exit(kSetupFailed);
}

void redirect(const std::string& path, int target) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file < 0 || ::dup2(file, target) < 0) die_in_child("cannot write to", path);
}

// A forked body ends at a signal, regardless of its parent's handling; an ignored signal (nohup) stays ignored.
void restore_default(int signal) {
  struct sigaction action{};
  if (::sigaction(signal, nullptr, &action) != 0 || action.sa_handler == SIG_IGN) return;
  action = {};
  action.sa_handler = SIG_DFL;
  ::sigaction(signal, &action, nullptr);
}

// While its signals are still its parent's: one that comes until then ends nothing.
void leave_session(pid_t parent, ChildSession session) {
  if (session == ChildSession::kOwn) {
    ::setsid();
    return;
  }
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) _exit(kSetupFailed);  // the parent died before the line above
}

// Runs in the child between fork and exec.
void become(const SpawnOptions& options, int output, pid_t parent) {
  leave_session(parent, options.session);
  restore_default(SIGINT);
  restore_default(SIGTERM);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  if (!options.network_namespace.empty()) {
    const int space = ::open(("/run/netns/" + options.network_namespace).c_str(), O_RDONLY | O_CLOEXEC);
    if (space < 0 || ::setns(space, CLONE_NEWNET) != 0) {
      die_in_child("cannot enter network namespace (needs root)", options.network_namespace);
    }
  }
  if (!options.stdout_path.empty()) {
    redirect(options.stdout_path, STDOUT_FILENO);
  } else if (::dup2(output, STDOUT_FILENO) < 0) {
    die_in_child("cannot redirect the output of", options.argv.empty() ? "child" : options.argv[0]);
  }
  if (!options.stderr_path.empty()) redirect(options.stderr_path, STDERR_FILENO);
}

ExitReport report_of(int status, const rusage& usage) {
  ExitReport report;
  report.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  report.peak_memory_bytes = static_cast<uint64_t>(usage.ru_maxrss) * 1024;
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  report.cpu_seconds = seconds(usage.ru_utime) + seconds(usage.ru_stime);
  return report;
}

}  // namespace

Result<ChildProcess> ChildProcess::spawn(const SpawnOptions& options) {
  if (options.argv.empty()) return fail(ErrorCode::kInvalidArgument, "nothing to start: the argument list is empty");
  return fork_call(options, [&options]() -> int {
    std::vector<char*> argv;
    for (const auto& argument : options.argv) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    ::execvp(argv[0], argv.data());
    die_in_child("cannot start", options.argv[0]);
  });
}

Result<ChildProcess> ChildProcess::fork_call(const SpawnOptions& options, const std::function<int()>& body) {
  std::array<int, 2> ends{-1, -1};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0)
    return fail(ErrorCode::kIo, std::string("cannot make a pipe: ") + std::strerror(errno));
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) {
    ::close(ends[0]);
    ::close(ends[1]);
    return fail(ErrorCode::kIo, std::string("cannot fork: ") + std::strerror(errno));
  }
  if (pid == 0) {
    become(options, ends[1], parent);
    ::close(ends[0]);
    _exit(body());
  }
  ::close(ends[1]);
  ChildProcess child;
  child.pid_ = pid;
  child.output_ = ends[0];
  return child;
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept { *this = std::move(other); }

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(output_, other.output_);
  std::swap(pending_, other.pending_);
  std::swap(report_, other.report_);
  return *this;
}

ChildProcess::~ChildProcess() {
  constexpr int kGraceMs = 2'000;
  if (pid_ > 0 && !report_) terminate(kGraceMs);
  if (output_ >= 0) ::close(output_);
}

Result<std::string> ChildProcess::read_line(int timeout_ms) {
  const TimeNs deadline = monotonic_now_ns() + timeout_ms * kNsPerMs;
  for (;;) {
    if (const size_t newline = pending_.find('\n'); newline != std::string::npos) {
      std::string line = pending_.substr(0, newline);
      pending_.erase(0, newline + 1);
      return line;
    }
    const TimeNs left_ms = (deadline - monotonic_now_ns()) / kNsPerMs;
    if (left_ms < 0) return fail(ErrorCode::kTimeout, "no line of output within " + std::to_string(timeout_ms) + " ms");
    pollfd wait{output_, POLLIN, 0};
    if (::poll(&wait, 1, static_cast<int>(left_ms)) <= 0) continue;
    std::array<char, 4096> chunk;
    const ssize_t got = ::read(output_, chunk.data(), chunk.size());
    if (got > 0) {
      pending_.append(chunk.data(), static_cast<size_t>(got));
    } else if (got == 0) {
      if (pending_.empty()) return fail(ErrorCode::kUnavailable, "the process ended");
      return std::exchange(pending_, {});
    }
  }
}

std::optional<ExitReport> ChildProcess::try_wait() {
  if (report_) return report_;
  int status = 0;
  rusage usage{};
  if (pid_ > 0 && ::wait4(pid_, &status, WNOHANG, &usage) == pid_) report_ = report_of(status, usage);
  return report_;
}

Result<ExitReport> ChildProcess::wait(int timeout_ms) {
  if (!try_wait()) {
    // A pidfd becomes readable when the process ends: no SIGCHLD handler. Where the system has none, or a filter of
    // system calls refuses it, the process is looked at now and then.
    const int handle = static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0));
    pollfd ended{handle, POLLIN, 0};
    const TimeNs deadline = monotonic_now_ns() + timeout_ms * kNsPerMs;
    for (TimeNs left = deadline - monotonic_now_ns(); left > 0 && !try_wait(); left = deadline - monotonic_now_ns()) {
      const TimeNs nap = handle >= 0 ? left : std::min(left, kLookEvery);
      ::poll(&ended, handle >= 0 ? 1 : 0, static_cast<int>((nap + kNsPerMs - 1) / kNsPerMs));
    }
    if (handle >= 0) ::close(handle);
  }
  if (try_wait()) return *report_;
  return fail(ErrorCode::kTimeout,
              "process " + std::to_string(pid_) + " still runs after " + std::to_string(timeout_ms) + " ms");
}

void ChildProcess::send_signal(int signal) {
  if (!try_wait()) ::kill(pid_, signal);
}

void ChildProcess::ask_to_end() { send_signal(SIGTERM); }

ExitReport ChildProcess::terminate(int grace_ms) {
  ask_to_end();
  if (const auto ended = wait(grace_ms)) return *ended;
  return kill_now();
}

ExitReport ChildProcess::kill_now() {
  if (try_wait()) return *report_;
  ::kill(pid_, SIGKILL);
  int status = 0;
  rusage usage{};
  while (::wait4(pid_, &status, 0, &usage) < 0 && errno == EINTR) {
  }
  report_ = report_of(status, usage);
  return *report_;
}

std::string sibling_program(const std::string& name) {
  std::error_code ignored;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", ignored);
  const auto beside = self.parent_path() / name;
  return std::filesystem::exists(beside, ignored) ? beside.string() : name;
}

}  // namespace millrace::launch
