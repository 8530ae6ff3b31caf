#pragma once

#include <string>

#include "kernels/base/result.h"
#include "millrace/options.h"
#include "worker/launch/shard_process.h"

/// Keys of a benchmark's processes: files of one folder. An empty folder: none.
namespace millrace::bench {

/// Draws the keys. Errors  of protocol::write_new_keys().
Status make_serve_keys(const std::string& folder);

/// Return the options with these keys. Without keys, a shard on a host of its own may listen there all the same.
launch::ShardProcessOptions with_serve_keys(launch::ShardProcessOptions options, const std::string& folder);
WorkerConfig with_serve_keys(WorkerConfig config, const std::string& folder);

}  // namespace millrace::bench
