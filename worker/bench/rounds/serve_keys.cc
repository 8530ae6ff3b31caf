#include "worker/bench/rounds/serve_keys.h"

#include "protocol/keys/key_files.h"

namespace millrace::bench {

Status make_serve_keys(const std::string& folder) {
  if (folder.empty()) return {};
  for (const char* name : {"cluster", "worker"}) {
    if (const auto files = protocol::write_new_keys(folder, name); !files) return std::unexpected(files.error());
  }
  return {};
}

launch::ShardProcessOptions with_serve_keys(launch::ShardProcessOptions options, const std::string& folder) {
  options.insecure = folder.empty() && !options.network_namespace.empty();
  options.http_security.insecure = !options.http.empty() && !options.network_namespace.empty();
  if (folder.empty()) return options;
  options.key = folder + "/cluster.key";
  options.allowed_keys = folder;
  return options;
}

WorkerConfig with_serve_keys(WorkerConfig config, const std::string& folder) {
  if (folder.empty()) return config;
  config.key_file = folder + "/worker.key";
  config.server_key_file = folder + "/cluster.pub";
  return config;
}

}  // namespace millrace::bench
