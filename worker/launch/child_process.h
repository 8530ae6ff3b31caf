#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/result.h"

namespace millrace::launch {

/// Says whose signals reach a child.
enum class ChildSession : uint8_t {
  kParents = 1,  ///< Ctrl-C, and what else its parent's group gets; SIGTERM when its parent dies
  kOwn = 2,      ///< none of these: for what must come to its end
};

/// Says how to start a program or a function as a process of its own.
struct SpawnOptions {
  std::vector<std::string> argv;  ///< program and arguments; argv[0] is looked up in PATH when it has no slash
  std::string network_namespace;  ///< name under /run/netns to enter first (root only); empty: the caller's
  std::string stdout_path;        ///< where its output goes; empty: a pipe that read_line() reads
  std::string stderr_path;        ///< empty: the caller's stderr
  ChildSession session = ChildSession::kParents;
};

/// Holds the resources that a process used, once it has ended.
struct ExitReport {
  int exit_code = 0;               ///< 128 + signal where a signal ended it, as shells say it
  uint64_t peak_memory_bytes = 0;  ///< largest resident set
  double cpu_seconds = 0;          ///< user and system
};

/// Owns a process that this one started. The destructor ends it, then reaps it.
///
/// Threads  one object a thread.
class ChildProcess {
 public:
  /// Errors  io: fork or exec failed, the namespace cannot be entered; the sentence names the program.
  static Result<ChildProcess> spawn(const SpawnOptions& options);

  /// Runs `body` in a forked copy of this process; its result is the exit code. REQUIRES: no other thread is running
  /// here.
  static Result<ChildProcess> fork_call(const SpawnOptions& options, const std::function<int()>& body);

  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  ~ChildProcess();

  pid_t pid() const { return pid_; }

  /// Returns one line of its output without the newline. Errors  timeout; unavailable: the output has ended.
  Result<std::string> read_line(int timeout_ms);

  /// Its report if it has ended, without waiting.
  std::optional<ExitReport> try_wait();

  /// Waits for its end. Errors  timeout.
  Result<ExitReport> wait(int timeout_ms);

  /// Unless it has ended.
  void send_signal(int signal);

  /// Sends SIGTERM, unless it has ended.
  void ask_to_end();

  /// Sends SIGTERM, and SIGKILL after grace_ms; then returns its report.
  ExitReport terminate(int grace_ms);

  /// Sends SIGKILL at once.
  ExitReport kill_now();

 private:
  ChildProcess() = default;
  pid_t pid_ = -1;
  int output_ = -1;
  std::string pending_;
  std::optional<ExitReport> report_;
};

/// Returns the path of a program that was built or installed beside this one ("millrace-server").
std::string sibling_program(const std::string& name);

}  // namespace millrace::launch
