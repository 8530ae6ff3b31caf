#include <fmt/core.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "monitoring/http_client.h"
#include "worker/cli/commands.h"
#include "worker/cli/flag_range.h"
#include "worker/cli/table.h"

namespace millrace::cli {
namespace {

struct StatusFlags {
  std::vector<std::string> addresses;
  int timeout_ms = 3'000;
  bool json = false;
};

Result<nlohmann::json> status_of(const std::string& address, int timeout_ms) {
  const auto reply = monitoring::http_get(address, "/status", timeout_ms);
  if (!reply) return std::unexpected(reply.error());
  if (reply->status != 200) {
    return fail(ErrorCode::kUnavailable,
                address + " answers /status with " + std::to_string(reply->status) + ": is it a process of Millrace?");
  }
  auto status = nlohmann::json::parse(reply->body, nullptr, false);
  if (!status.is_object())
    return fail(ErrorCode::kUnavailable, address + " answers /status with something else than a JSON object");
  return status;
}

/// All addresses are asked, whatever one of them says; the first failure is the outcome.
Outcome run_status(const StatusFlags& flags) {
  Outcome outcome;
  nlohmann::json all = nlohmann::json::object();
  for (const std::string& address : flags.addresses) {
    const auto status = status_of(address, flags.timeout_ms);
    if (!status) {
      all[address] = {{"error", status.error().message}};
      if (!flags.json) fmt::print("{}\n  {}\n", address, status.error().message);
      if (outcome) outcome = fail_with(status.error());
      continue;
    }
    all[address] = *status;
    if (!flags.json) fmt::print("{}\n{}", address, object_text(*status, 2));
  }
  if (flags.json) fmt::print("{}\n", all.dump());
  return outcome;
}

}  // namespace

Command add_status_command(CLI::App& root) {
  auto flags = std::make_shared<StatusFlags>();
  CLI::App* app = root.add_subcommand("status", "asks running servers and workers how they are");
  app->add_option("addresses", flags->addresses, "HTTP ports: host:port host:port (what --http said)")->required();
  app->add_option("--timeout-ms", flags->timeout_ms, "for connecting and for reading, each")
      ->capture_default_str()
      ->check(in_range(1, 600'000));
  app->add_flag("--json", flags->json, "one JSON object as the last line: what each address said");
  app->footer(
      "The same is at http://HOST:PORT/ in a browser, and at /metrics for Prometheus. Exit code 4 when one does not "
      "answer.\n\n"
      "Example:\n"
      "  millrace status 127.0.0.1:7700 127.0.0.1:7701");
  return {app, [flags] { return run_status(*flags); }};
}

}  // namespace millrace::cli
