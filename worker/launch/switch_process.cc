#include "worker/launch/switch_process.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "kernels/base/random.h"
#include "worker/launch/child_end.h"
#include "worker/program/json_text.h"

namespace millrace::launch {
namespace {

constexpr size_t kKeyDigits = 64;
constexpr mode_t kOwnerOnly = 0600;

std::string key_text(uint64_t seed) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  RandomSequence random(random_key(seed, 0x5EC2E7));
  std::string text;
  for (size_t i = 0; i < kKeyDigits; ++i) text += kDigits[random.next_below(kDigits.size())];
  return text + "\n";
}

Status write_private(const std::string& path, const std::string& content) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, kOwnerOnly);
  if (file < 0) return fail(ErrorCode::kIo, "cannot write '" + path + "'");
  const ssize_t written = ::write(file, content.data(), content.size());
  const bool closed = ::close(file) == 0;
  if (written == static_cast<ssize_t>(content.size()) && closed) return {};
  return fail(ErrorCode::kIo, "cannot write '" + path + "'");
}

}  // namespace

Result<std::string> write_switch_key(const SwitchProcessOptions& options) {
  std::string path = options.folder + "/" + std::to_string(options.job) + ".key";
  if (Status done = write_private(path, key_text(options.key_seed)); !done) return std::unexpected(done.error());
  return path;
}

Result<SwitchProcess> SwitchProcess::start(const SwitchProcessOptions& options) {
  const std::string name = options.rack.empty() ? "switch" : "rack-" + std::to_string(options.rack_number);
  const Result<std::string> key_file = write_switch_key(options);
  if (!key_file) return std::unexpected(key_file.error());
  const std::string jobs_file = options.folder + "/" + name + "-jobs.json";
  nlohmann::json job = {
      {"name", "bench"},        {"job", options.job},         {"key_file", *key_file},
      {"role", "reduce"},       {"workers", options.workers}, {"window_indices", options.window_indices},
      {"slots", options.slots}, {"lanes", options.lanes},     {"lease_seconds", 60}};
  if (options.reselect_k != 0) job["reselect_k"] = options.reselect_k;
  if (!options.rack.empty()) {
    job["role"] = "combine";
    job["rack"] = options.rack;
    job["rack_number"] = options.rack_number;
    job["shard"] = options.shard;
  }
  const nlohmann::json jobs = {{"jobs", nlohmann::json::array({job})}};
  if (Status done = write_private(jobs_file, program::json_text(jobs)); !done) return std::unexpected(done.error());
  SpawnOptions spawn;
  spawn.argv = {sibling_program("millrace-switch"),
                "run",
                "--listen",
                options.host + ":0",
                "--jobs",
                jobs_file,
                "--packet-bytes-max",
                std::to_string(options.packet_bytes),
                "--lcores",
                std::to_string(options.lanes),
                "--json"};
  spawn.network_namespace = options.network_namespace;
  spawn.stderr_path = options.log;
  auto child = ChildProcess::spawn(spawn);
  if (!child) return std::unexpected(child.error());
  SwitchProcess started(std::move(*child));
  const auto line = started.process_.read_line(options.timeout_ms);
  if (!line) return fail(line.error().code, "the switch did not come up: " + line.error().message);
  const auto ready = program::parse_json(*line).value_or(nlohmann::json());
  if (auto failed = failed_start(ready, "the switch")) return std::unexpected(*failed);
  const bool listens = ready.is_object() && ready.contains("addresses") && ready["addresses"].is_array() &&
                       !ready["addresses"].empty() && ready["addresses"][0].is_string();
  if (!listens) return fail(ErrorCode::kInternal, "the switch said '" + *line + "' instead of its address");
  started.address_ = ready["addresses"][0].get<std::string>();
  started.key_file_ = *key_file;
  return started;
}

}  // namespace millrace::launch
