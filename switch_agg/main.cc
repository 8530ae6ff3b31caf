#include <fmt/format.h>
#include <fmt/ranges.h>

#include <csignal>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "monitoring/exit_code.h"
#include "monitoring/open_files.h"
#include "monitoring/standard_streams.h"
#include "switch_agg/bench.h"
#include "switch_agg/load.h"
#include "switch_agg/options.h"
#include "switch_agg/process.h"

namespace {

using millrace::ErrorCode;

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

void say(const std::string& sentence) { millrace::monitoring::say("millrace-switch: " + sentence); }

void flush() {
  if (const millrace::Status written = millrace::monitoring::flush_output(); !written) say(written.error().message);
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
  flush();
}

/// A program that started this one reads the failure where it expected the address; people read stderr.
void print_failed_start(const millrace::switch_agg::RunOptions& options, const millrace::Error& error) {
  if (!options.json) return say(error.message);
  const nlohmann::json line = {{"event", "failed"}, {"error", error.message}, {"code", error_code_name(error.code)}};
  fmt::print("{}\n", line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  flush();
}

int exit_code_of(ErrorCode code) {
  using millrace::monitoring::ErrorPlace;
  return static_cast<int>(millrace::monitoring::exit_code_of(code, ErrorPlace::kSwitch));
}

int run(const millrace::switch_agg::RunOptions& options) {
  auto process = millrace::switch_agg::SwitchProcess::start(options);
  if (!process) {
    print_failed_start(options, process.error());
    return exit_code_of(process.error().code);
  }
  running = process->get();
  take_signals();
  print_start_line(options, **process);
  (*process)->run();
  return 0;
}

int bench(const millrace::switch_agg::BenchOptions& options) {
  const auto report = millrace::switch_agg::run_bench(options);
  if (!report) {
    say(report.error().message);
    return exit_code_of(report.error().code);
  }
  fmt::print("{}\n", options.json ? millrace::switch_agg::bench_json(options, *report)
                                  : millrace::switch_agg::bench_text(options, *report));
  flush();
  return 0;
}

int load(const millrace::switch_agg::LoadOptions& options) {
  const auto report = millrace::switch_agg::run_load(options);
  if (!report) {
    say(report.error().message);
    return exit_code_of(report.error().code);
  }
  fmt::print("{}\n", millrace::switch_agg::load_json(options, *report));
  flush();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  millrace::monitoring::hold_standard_streams();
  millrace::monitoring::raise_open_file_limit();
  const auto parsed = millrace::switch_agg::parse_options(argc, argv);
  if (const int* code = std::get_if<int>(&parsed)) return *code;
  if (const auto* options = std::get_if<millrace::switch_agg::BenchOptions>(&parsed)) return bench(*options);
  if (const auto* options = std::get_if<millrace::switch_agg::LoadOptions>(&parsed)) return load(*options);
  return run(std::get<millrace::switch_agg::RunOptions>(parsed));
}
