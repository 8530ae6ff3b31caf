#include "worker/launch/shard_process.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/units.h"
#include "protocol/address/host_port.h"
#include "worker/launch/child_end.h"
#include "worker/program/json_text.h"

namespace millrace::launch {

namespace {

std::vector<std::string> shard_arguments(const ShardProcessOptions& options) {
  std::vector<std::string> words = {sibling_program("millrace-server"),
                                    "--listen",
                                    protocol::host_port_text(options.host, options.port),
                                    "--table",
                                    options.table,
                                    "--json"};
  if (options.spare) {
    words.push_back("--spare");
  } else {
    words.push_back("--shard");
    words.push_back(std::to_string(options.shard));
    words.push_back("--shards");
    words.push_back(std::to_string(options.shards));
  }
  if (!options.http.empty()) {
    words.push_back("--http");
    words.push_back(options.http);
  }
  const monitoring::HttpSecurityOptions& security = options.http_security;
  for (const auto& [flag, value] : {std::pair{"--http-tls", security.tls},
                                    {"--http-token-file", security.token_file},
                                    {"--http-ca", security.ca_file}}) {
    if (value.empty()) continue;
    words.push_back(flag);
    words.push_back(value);
  }
  if (security.insecure) words.push_back("--http-insecure");
  if (!options.store_dir.empty()) {
    words.push_back("--store-dir");
    words.push_back(options.store_dir);
    words.push_back("--store-save-every");
    words.push_back(duration_text(options.store_save_seconds * kNsPerS));
  }
  if (!options.datagrams.empty()) {
    words.push_back("--datagrams");
    words.push_back(options.datagrams);
    words.push_back("--job-keys");
    words.push_back(options.job_keys);
  }
  if (!options.key.empty()) {
    words.push_back("--key");
    words.push_back(options.key);
    words.push_back("--allowed-keys");
    words.push_back(options.allowed_keys);
  }
  if (!options.policy.empty()) {
    words.push_back("--policy");
    words.push_back(options.policy);
  }
  if (!options.audit_log.empty()) {
    words.push_back("--audit-log");
    words.push_back(options.audit_log);
  }
  if (options.insecure) words.push_back("--insecure");
  if (options.link_rate > 0) {
    words.push_back("--link-rate");
    words.push_back(rate_text(options.link_rate));
  }
  if (options.drain_ms) {
    words.push_back("--drain");
    words.push_back(duration_text(*options.drain_ms * kNsPerMs));
  }
  return words;
}

}  // namespace

std::vector<std::string> addresses_to_come(uint32_t shards) {
  std::vector<std::string> addresses;
  for (uint32_t port = 1; port <= shards; ++port) addresses.push_back("tcp://127.0.0.1:" + std::to_string(port));
  return addresses;
}

ShardProcess::ShardProcess(ChildProcess process, const ShardProcessOptions& options)
    : process_(std::move(process)),
      who_(options.spare ? "spare" : "shard " + std::to_string(options.shard)),
      where_(options.log.empty() ? "; its output is above" : "; its log: " + options.log),
      timeout_ms_(options.timeout_ms) {}

Result<ShardProcess> ShardProcess::start(const ShardProcessOptions& options) {
  SpawnOptions spawn;
  spawn.argv = shard_arguments(options);
  spawn.network_namespace = options.network_namespace;
  spawn.stderr_path = options.log;
  auto child = ChildProcess::spawn(spawn);
  if (!child) return std::unexpected(child.error());
  ShardProcess shard(std::move(*child), options);
  if (Status up = shard.await_event(options.spare ? "waiting" : "listening"); !up) return std::unexpected(up.error());
  return shard;
}

Status ShardProcess::await_event(const std::string& event) {
  auto line = process_.read_line(timeout_ms_);
  if (!line) return fail(line.error().code, who_ + " did not come up: " + line.error().message + where_);
  const auto ready = program::parse_json(*line).value_or(nlohmann::json());
  if (auto failed = failed_start(ready, who_)) return std::unexpected(*failed);
  if (!ready.is_object() || ready.value("event", "") != event)
    return fail(ErrorCode::kInternal, who_ + " said '" + *line + "' instead of '" + event + "'" + where_);
  if (event == "waiting") return {};
  address_ = ready.value("address", "");
  const auto at = protocol::parse_tcp_address(address_);
  if (!at) return fail(ErrorCode::kInternal, who_ + ": " + at.error().message);
  port_ = at->port;
  http_address_ = ready.value("http", "");
  datagrams_ = ready.value("datagrams", "");
  return {};
}

}  // namespace millrace::launch
