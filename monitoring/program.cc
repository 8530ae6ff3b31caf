#include "monitoring/program.h"

#include <fmt/format.h>

#include <csignal>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "monitoring/open_files.h"
#include "monitoring/standard_streams.h"

namespace millrace::monitoring {

void begin_program() {
  hold_standard_streams();
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  raise_open_file_limit();
}

void take_server_signals(void (*on_end)(int), int other, void (*on_other)(int)) {
  struct sigaction action = {};
  action.sa_handler = on_end;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
  action.sa_handler = on_other;
  sigaction(other, &action, nullptr);
}

void ServerProgram::say(std::string_view sentence) const { monitoring::say(fmt::format("{}: {}", name, sentence)); }

void ServerProgram::print_line(std::string_view line) const {
  fmt::print("{}\n", line);
  if (const Status written = flush_output(); !written) say(written.error().message);
}

int ServerProgram::report_usage(std::string_view sentence) const {
  say(fmt::format("{}; see {} --help", sentence, name));
  return static_cast<int>(ExitCode::kUsage);
}

int ServerProgram::report_error(const Error& error) const {
  say(error.message);
  return static_cast<int>(exit_code_of(error.code, place));
}

int ServerProgram::report_failed_start_as_json(const Error& error) const {
  const nlohmann::json line = {{"event", "failed"}, {"error", error.message}, {"code", error_code_name(error.code)}};
  print_line(line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  return static_cast<int>(exit_code_of(error.code, place));
}

}  // namespace millrace::monitoring
