#include "worker/bench/peers/measured_child.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <system_error>

#include "worker/program/json_text.h"

namespace millrace::peer {
namespace {

void limit(int what, uint64_t most) {
  struct rlimit own{};
  if (::getrlimit(static_cast<__rlimit_resource_t>(what), &own) != 0) return;
  own.rlim_cur = std::min<rlim_t>(own.rlim_max, most);
  ::setrlimit(static_cast<__rlimit_resource_t>(what), &own);
}

[[noreturn]] void be_child(int out, const ChildLimits& limits, const std::function<nlohmann::json()>& work) {
  limit(RLIMIT_AS, limits.memory_bytes_max);
  limit(RLIMIT_CPU, limits.processor_s_max);
  nlohmann::json result;
  try {
    result = work();
  } catch (const std::bad_alloc&) {
    result["error"] = "no memory within " + std::to_string(limits.memory_bytes_max >> 20) + " MiB";
  } catch (const std::exception& problem) {
    result["error"] = problem.what();
  }
  const std::string text = program::json_text(result);
  for (size_t at = 0; at < text.size();) {
    const ssize_t wrote = ::write(out, text.data() + at, text.size() - at);
    if (wrote < 0 && errno != EINTR) break;
    if (wrote > 0) at += static_cast<size_t>(wrote);
  }
  // Nothing that the parent still has to write is written twice.
  ::_exit(0);
}

std::string read_all(int in) {
  std::string text;
  std::array<char, 4096> buffer{};
  for (;;) {
    const ssize_t got = ::read(in, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return text;
    text.append(buffer.data(), static_cast<size_t>(got));
  }
}

}  // namespace

nlohmann::json run_in_child(const ChildLimits& limits, const std::function<nlohmann::json()>& work) {
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
  const pid_t child = ::fork();
  if (child < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (child == 0) {
    ::close(ends[0]);
    be_child(ends[1], limits, work);
  }
  ::close(ends[1]);
  const std::string text = read_all(ends[0]);
  ::close(ends[0]);
  int status = 0;
  struct rusage usage{};
  while (::wait4(child, &status, 0, &usage) < 0 && errno == EINTR) {
  }
  nlohmann::json result = program::parse_json(text).value_or(nlohmann::json());
  if (!result.is_object()) result = nlohmann::json::object();
  if (WIFSIGNALED(status)) {
    result["error"] = WTERMSIG(status) == SIGXCPU
                          ? "not done after " + std::to_string(limits.processor_s_max) + " s of processor time"
                          : "ended by signal " + std::to_string(WTERMSIG(status));
  }
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  result["processor_s"] = seconds(usage.ru_utime) + seconds(usage.ru_stime);
  result["peak_mb"] = static_cast<double>(usage.ru_maxrss) / 1024;
  return result;
}

}  // namespace millrace::peer
