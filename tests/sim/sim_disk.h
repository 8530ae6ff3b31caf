#pragma once

#include <map>
#include <string>

#include "kernels/base/buffer.h"
#include "kernels/base/result.h"
#include "server/base/actions.h"
#include "server/store/save_format.h"

namespace millrace::testing {

/// The state of a shard that outlives its processes: the saves of its stores, each whole or absent.
class SimDisk {
 public:
  void write(const server::StoreRequest& request);
  Result<server::StoreFile> load(const std::string& name) const;
  /// Drops unfinished files: a process that is gone began them, and no process completes them.
  void forget_unfinished() { unfinished_.clear(); }

 private:
  std::map<std::string, ByteBuffer> unfinished_;
  std::map<std::string, ByteBuffer> saves_;
};

}  // namespace millrace::testing
