#include <fmt/format.h>
#include <fmt/ranges.h>

#include <atomic>
#include <csignal>
#include <nlohmann/json.hpp>

#include "monitoring/program.h"
#include "monitoring/service_notifier.h"
#include "switch_agg/process/options.h"
#include "switch_agg/process/process.h"

namespace {

using millrace::switch_agg::kSwitchProgram;

// For the signal handlers.
std::atomic<millrace::switch_agg::SwitchProcess*> running = nullptr;

void on_stop(int) {
  if (millrace::switch_agg::SwitchProcess* process = running.load()) process->request_stop();
}
void on_reload(int) {
  if (millrace::switch_agg::SwitchProcess* process = running.load()) process->request_reload();
}

std::string start_line(const millrace::switch_agg::RunOptions& options,
                       const millrace::switch_agg::SwitchProcess& process) {
  if (!options.json) {
    return fmt::format("switch listens on {}{}{}", fmt::join(process.addresses(), ", "),
                       process.http_address().empty()      ? ""
                       : options.http_security.tls.empty() ? ", status on http://"
                                                           : ", status on https://",
                       process.http_address());
  }
  const nlohmann::json line = {
      {"event", "listening"}, {"addresses", process.addresses()}, {"http", process.http_address()}};
  return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

int run(const millrace::switch_agg::RunOptions& options) {
  std::signal(SIGHUP, SIG_IGN);  // a start reads the file of jobs anyway
  auto manager = millrace::monitoring::ServiceNotifier::from_environment();
  if (!manager) {
    kSwitchProgram.say(manager.error().message);
    manager = millrace::monitoring::ServiceNotifier();
  }
  auto process = millrace::switch_agg::SwitchProcess::start(options);
  if (!process) {
    return options.json ? kSwitchProgram.report_failed_start_as_json(process.error())
                        : kSwitchProgram.report_error(process.error());
  }
  running.store(process->get());
  millrace::monitoring::take_server_signals(on_stop, SIGHUP, on_reload);
  kSwitchProgram.print_line(start_line(options, **process));
  (*process)->run(*manager);
  // A signal from here on has no process to reach, and does not end this one in its last moments.
  running.store(nullptr);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  millrace::monitoring::begin_program();
  const auto parsed = millrace::switch_agg::parse_options(argc, argv);
  if (const int* code = std::get_if<int>(&parsed)) return *code;
  return run(std::get<millrace::switch_agg::RunOptions>(parsed));
}
