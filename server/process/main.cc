#include <fmt/format.h>
#include <sched.h>

#include <csignal>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "kernels/base/allocator.h"
#include "monitoring/exit_code.h"
#include "monitoring/open_files.h"
#include "monitoring/standard_streams.h"
#include "server/process/options.h"
#include "server/process/process.h"

namespace {

millrace::server::ShardProcess* running = nullptr;  // for the signal handler; set once before signals are taken

void on_signal(int) { running->request_stop(); }
void on_save(int) { running->request_save(); }

void take_signals() {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
  action.sa_handler = on_save;
  sigaction(SIGUSR2, &action, nullptr);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);  // a file that may not grow (ulimit -f) is an error of the call that meets it
}

/// Gives this process's threads the batch policy; threads that start later inherit it. A thread with new work then does
/// not preempt another that computes: sockets, decoding and sums take turns with fewer changes. A policy that the user
/// chose for the process stays.
void use_batch_scheduling() {
  const sched_param none = {};
  if (sched_getscheduler(0) == SCHED_OTHER) sched_setscheduler(0, SCHED_BATCH, &none);
}

void print_start_line(const millrace::server::Options& options, const millrace::server::ShardProcess& process) {
  if (options.json) {
    const nlohmann::json line = {{"event", "listening"},
                                 {"shard", options.shard},
                                 {"address", process.address()},
                                 {"http", process.http_address()},
                                 {"datagrams", process.datagrams_address()},
                                 {"incarnation", process.incarnation()}};
    fmt::print("{}\n", line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  } else {
    fmt::print("shard {} of {} listens on {}{}{}\n", options.shard, options.shards, process.address(),
               process.http_address().empty() ? "" : ", status on http://", process.http_address());
  }
  if (const millrace::Status written = millrace::monitoring::flush_output(); !written)
    millrace::monitoring::say("millrace-server: " + written.error().message);
}

/// Prints why the start failed. A program that started this one reads the failure where it expected the address; people
/// read stderr.
void print_failed_start(const millrace::server::Options& options, const millrace::Error& error) {
  if (options.json) {
    const nlohmann::json line = {{"event", "failed"}, {"error", error.message}, {"code", error_code_name(error.code)}};
    fmt::print("{}\n", line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  } else {
    millrace::monitoring::say("millrace-server: " + error.message);
  }
}

int exit_code_of(millrace::ErrorCode code) {
  using millrace::monitoring::ErrorPlace;
  return static_cast<int>(millrace::monitoring::exit_code_of(code, ErrorPlace::kShard));
}

}  // namespace

int main(int argc, char** argv) {
  millrace::monitoring::hold_standard_streams();
  millrace::keep_freed_memory();
  const auto parsed = millrace::server::parse_options(argc, argv);
  if (const int* code = std::get_if<int>(&parsed)) return *code;
  const auto& options = std::get<millrace::server::Options>(parsed);
  use_batch_scheduling();
  millrace::monitoring::raise_open_file_limit();
  auto process = millrace::server::ShardProcess::start(options);
  if (!process) {
    print_failed_start(options, process.error());
    return exit_code_of(process.error().code);
  }
  running = process->get();
  take_signals();
  print_start_line(options, **process);
  if (const millrace::Status ended = (*process)->run(); !ended) {
    millrace::monitoring::say("millrace-server: " + ended.error().message);
    return exit_code_of(ended.error().code);
  }
  return 0;
}
