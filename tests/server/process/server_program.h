#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/clock.h"
#include "protocol/job/layout.h"
#include "protocol/transport/transport.h"
#include "tests/support/tree_paths.h"

extern char** environ;

/// millrace-server as a process, and workers by hand.
namespace millrace::server {

/// A folder that goes with the test.
struct TemporaryFolder {
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "millrace-server-XXXXXX").string();
    path = ::mkdtemp(pattern.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path); }
  std::string path;
};

/// The program itself, with its stdout. `log` is the file of its stderr; empty: the test's.
class Program {
 public:
  explicit Program(std::vector<std::string> arguments, const std::string& log = {}) {
    arguments.insert(arguments.begin(), built_file("bin/millrace-server"));
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, ends[1], STDOUT_FILENO);
    if (!log.empty())
      posix_spawn_file_actions_addopen(&files, STDERR_FILENO, log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    EXPECT_EQ(::posix_spawn(&pid_, argv[0], &files, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&files);
    ::close(ends[1]);
    output_ = ends[0];
  }
  ~Program() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    ::close(output_);
  }

  /// All of stdout up to the first line's end, or to the end of file.
  std::string read_line() {
    std::string line;
    char byte = 0;
    pollfd readable{output_, POLLIN, 0};
    while (::poll(&readable, 1, 20'000) > 0 && ::read(output_, &byte, 1) == 1 && byte != '\n') line += byte;
    return line;
  }
  void signal(int number) const { ::kill(pid_, number); }
  pid_t pid() const { return pid_; }
  /// Its exit code; -1 when a signal ended it.
  int wait() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_ = -1;
  int output_ = -1;
};

/// Returns the Hello of a job of one worker.
inline protocol::Hello hello_in(const std::string& job, uint64_t nonce) {
  protocol::Hello hello;
  hello.nonce = nonce;
  hello.spec.name = job;
  hello.spec.workers = 1;
  hello.spec.tensors.push_back({.name = "t", .dimension = 100});
  hello.shard_count = 1;
  hello.layout_hash = protocol::layout_hash(protocol::plan_layout(hello.spec, 1));
  return hello;
}

/// One worker that a test drives by hand: a connection, and the messages that it receives.
class HandWorker {
 public:
  HandWorker(protocol::TransportContext& context, const std::string& address) {
    connection_ = std::move(*protocol::Connection::connect(context, address));
    poller_.add(*connection_);
  }
  void send(const protocol::Message& message) { EXPECT_EQ(connection_->send(message), protocol::SendResult::kSent); }
  template <typename T>
  std::optional<protocol::Message> next() {
    const TimeNs until = monotonic_now_ns() + 20 * kNsPerS;
    while (monotonic_now_ns() < until) {
      while (std::optional<protocol::Received> received = connection_->receive()) {
        if (received->message && std::holds_alternative<T>(received->message->body)) return *received->message;
      }
      poller_.wait(100);
    }
    return std::nullopt;
  }
  /// Returns the sentence of the next Refuse; empty: a Welcome came before it.
  std::string next_answer_to_hello() {
    const TimeNs until = monotonic_now_ns() + 20 * kNsPerS;
    for (; monotonic_now_ns() < until; poller_.wait(100)) {
      while (std::optional<protocol::Received> received = connection_->receive()) {
        if (!received->message) continue;
        if (std::holds_alternative<protocol::Welcome>(received->message->body)) return {};
        if (const auto* refuse = std::get_if<protocol::Refuse>(&received->message->body)) return refuse->sentence;
      }
    }
    return "no answer";
  }

  /// Waits until the server ends the connection.
  bool is_ended() {
    for (const TimeNs until = monotonic_now_ns() + 20 * kNsPerS; monotonic_now_ns() < until; poller_.wait(100)) {
      if (connection_->state() == protocol::ConnectionState::kDisconnected) return true;
    }
    return false;
  }
  /// Returns the number of further refusals until the server ends the connection; empty: it does not.
  std::optional<int> refusals_until_end() {
    int refusals = 0;
    for (const TimeNs until = monotonic_now_ns() + 20 * kNsPerS; monotonic_now_ns() < until; poller_.wait(100)) {
      while (std::optional<protocol::Received> received = connection_->receive())
        refusals += received->message && std::holds_alternative<protocol::Refuse>(received->message->body) ? 1 : 0;
      if (connection_->state() == protocol::ConnectionState::kDisconnected) return refusals;
    }
    return std::nullopt;
  }

 private:
  std::unique_ptr<protocol::Connection> connection_;
  protocol::Poller poller_;
};

}  // namespace millrace::server
