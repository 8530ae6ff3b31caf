#include "worker/launch/shard_process.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "kernels/base/host_port.h"
#include "kernels/base/units.h"
#include "worker/launch/child_end.h"
#include "worker/program/json_text.h"

namespace millrace::launch {

Result<ShardProcess> ShardProcess::start(const ShardProcessOptions& options) {
  SpawnOptions spawn;
  spawn.argv = {sibling_program("millrace-server"),
                "--shard",
                std::to_string(options.shard),
                "--shards",
                std::to_string(options.shards),
                "--listen",
                host_port_text({options.host, options.port}),
                "--table",
                options.table,
                "--json"};
  if (!options.http.empty()) {
    spawn.argv.push_back("--http");
    spawn.argv.push_back(options.http);
  }
  if (!options.store_dir.empty()) {
    spawn.argv.push_back("--store-dir");
    spawn.argv.push_back(options.store_dir);
    spawn.argv.push_back("--store-save-every");
    spawn.argv.push_back(duration_text(options.store_save_seconds * kNsPerS));
  }
  if (!options.datagrams.empty()) {
    spawn.argv.push_back("--datagrams");
    spawn.argv.push_back(options.datagrams);
    spawn.argv.push_back("--job-keys");
    spawn.argv.push_back(options.job_keys);
  }
  if (options.link_rate > 0) {
    spawn.argv.push_back("--link-rate");
    spawn.argv.push_back(rate_text(options.link_rate));
  }
  if (options.drain_ms) {
    spawn.argv.push_back("--drain");
    spawn.argv.push_back(duration_text(*options.drain_ms * kNsPerMs));
  }
  spawn.network_namespace = options.network_namespace;
  spawn.stderr_path = options.log;
  auto child = ChildProcess::spawn(spawn);
  if (!child) return std::unexpected(child.error());
  ShardProcess shard(std::move(*child));
  auto line = shard.process_.read_line(options.timeout_ms);
  const std::string where = options.log.empty() ? "; its output is above" : "; its log: " + options.log;
  if (!line)
    return fail(line.error().code,
                "shard " + std::to_string(options.shard) + " did not come up: " + line.error().message + where);
  const auto ready = program::parse_json(*line).value_or(nlohmann::json());
  if (auto failed = failed_start(ready, "shard " + std::to_string(options.shard))) return std::unexpected(*failed);
  if (!ready.is_object() || !ready.contains("address")) {
    return fail(ErrorCode::kInternal,
                "shard " + std::to_string(options.shard) + " said '" + *line + "' instead of its address" + where);
  }
  shard.address_ = ready.value("address", "");
  shard.http_address_ = ready.value("http", "");
  shard.datagrams_ = ready.value("datagrams", "");
  return shard;
}

}  // namespace millrace::launch
