#include <fmt/format.h>
#include <sched.h>

#include <atomic>
#include <csignal>
#include <nlohmann/json.hpp>
#include <utility>

#include "kernels/base/allocator.h"
#include "monitoring/program.h"
#include "monitoring/service_notifier.h"
#include "server/process/options.h"
#include "server/process/process.h"

namespace {

using millrace::server::kServerProgram;

// For the signal handlers. A spare takes signals before it runs.
std::atomic<millrace::server::ShardProcess*> running = nullptr;
std::atomic<bool> end_requested = false;
std::atomic<bool> reload_requested = false;

void on_signal(int) {
  end_requested.store(true);
  if (millrace::server::ShardProcess* process = running.load()) process->request_stop();
}
void on_save(int) {
  if (millrace::server::ShardProcess* process = running.load()) process->request_save();
}
void on_reload(int) {
  reload_requested.store(true);
  if (millrace::server::ShardProcess* process = running.load()) process->request_reload();
}

/// Gives this process's threads the batch policy; threads that start later inherit it. A thread with new work then does
/// not preempt another that computes: sockets, decoding and sums take turns with fewer changes. A policy that the user
/// chose for the process stays.
void use_batch_scheduling() {
  const sched_param none = {};
  if (sched_getscheduler(0) == SCHED_OTHER) sched_setscheduler(0, SCHED_BATCH, &none);
}

std::string waiting_line(const millrace::server::Options& options) {
  return options.json ? R"({"event":"waiting"})" : "spare waits until a shard's process is gone";
}

std::string start_line(const millrace::server::Options& options, const millrace::server::ShardProcess& process) {
  if (!options.json) {
    return fmt::format("shard {} of {} listens on {}{}{}", process.shard(), process.shards(), process.address(),
                       process.http_address().empty()      ? ""
                       : options.http_security.tls.empty() ? ", status on http://"
                                                           : ", status on https://",
                       process.http_address());
  }
  const nlohmann::json line = {{"event", "listening"},
                               {"shard", process.shard()},
                               {"address", process.address()},
                               {"http", process.http_address()},
                               {"datagrams", process.datagrams_address()},
                               {"incarnation", process.incarnation()}};
  return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

int main(int argc, char** argv) {
  millrace::monitoring::begin_program();
  millrace::keep_freed_memory();
  const auto parsed = millrace::server::parse_options(argc, argv);
  if (const int* code = std::get_if<int>(&parsed)) return *code;
  const auto& options = std::get<millrace::server::Options>(parsed);
  use_batch_scheduling();
  // From here on: the files may have changed after the start read them.
  std::signal(SIGHUP, on_reload);
  if (options.spare) millrace::monitoring::take_server_signals(on_signal, SIGUSR2, on_save);
  auto manager = millrace::monitoring::ServiceNotifier::from_environment();
  if (!manager) kServerProgram.say(manager.error().message);
  auto process = millrace::server::ShardProcess::start(
      options,
      {[&options] { kServerProgram.print_line(waiting_line(options)); }, [] { return end_requested.load(); },
       [] { return reload_requested.exchange(false); }},
      manager ? std::move(*manager) : millrace::monitoring::ServiceNotifier());
  if (!process) {
    return options.json ? kServerProgram.report_failed_start_as_json(process.error())
                        : kServerProgram.report_error(process.error());
  }
  if (!*process) return 0;
  running.store(process->get());
  if (!options.spare) millrace::monitoring::take_server_signals(on_signal, SIGUSR2, on_save);
  if (reload_requested.load()) (*process)->request_reload();
  if (end_requested.load()) (*process)->request_stop();
  kServerProgram.print_line(start_line(options, **process));
  const millrace::Status ended = (*process)->run();
  // A signal from here on has no process to reach, and does not end this one in its last moments.
  running.store(nullptr);
  return ended ? 0 : kServerProgram.report_error(ended.error());
}
