#include <fmt/format.h>
#include <fmt/ranges.h>

#include <csignal>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "monitoring/open_files.h"
#include "monitoring/standard_streams.h"
#include "switch_agg/process/command_line.h"
#include "switch_agg/process/options.h"
#include "switch_agg/process/process.h"

namespace {

constexpr const char* kProgram = "millrace-switch";

millrace::switch_agg::SwitchProcess* running = nullptr;  // for the signal handler; set once before signals are taken

void on_stop(int) { running->request_stop(); }
void on_reload(int) { running->request_reload(); }

void take_signals() {
  struct sigaction action = {};
  action.sa_handler = on_stop;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
  action.sa_handler = on_reload;
  sigaction(SIGHUP, &action, nullptr);
  signal(SIGPIPE, SIG_IGN);
}

void print_start_line(const millrace::switch_agg::RunOptions& options,
                      const millrace::switch_agg::SwitchProcess& process) {
  if (options.json) {
    const nlohmann::json line = {
        {"event", "listening"}, {"addresses", process.addresses()}, {"http", process.http_address()}};
    fmt::print("{}\n", line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  } else {
    fmt::print("switch listens on {}{}{}\n", fmt::join(process.addresses(), ", "),
               process.http_address().empty() ? "" : ", status on http://", process.http_address());
  }
  millrace::switch_agg::flush(kProgram);
}

/// A program that started this one reads the failure where it expected the address; people read stderr.
void print_failed_start(const millrace::switch_agg::RunOptions& options, const millrace::Error& error) {
  if (!options.json) return millrace::switch_agg::say(kProgram, error.message);
  const nlohmann::json line = {{"event", "failed"}, {"error", error.message}, {"code", error_code_name(error.code)}};
  fmt::print("{}\n", line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  millrace::switch_agg::flush(kProgram);
}

int run(const millrace::switch_agg::RunOptions& options) {
  auto process = millrace::switch_agg::SwitchProcess::start(options);
  if (!process) {
    print_failed_start(options, process.error());
    return millrace::switch_agg::exit_code_of(process.error().code);
  }
  running = process->get();
  take_signals();
  print_start_line(options, **process);
  (*process)->run();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  millrace::monitoring::hold_standard_streams();
  millrace::monitoring::raise_open_file_limit();
  const auto parsed = millrace::switch_agg::parse_options(argc, argv);
  if (const int* code = std::get_if<int>(&parsed)) return *code;
  return run(std::get<millrace::switch_agg::RunOptions>(parsed));
}
