#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "kernels/base/result.h"
#include "server/actions.h"
#include "server/disk.h"
#include "server/store_file.h"

namespace millrace::server {

/// The saves of one shard in a folder, a file a job. A save appears whole or not at all, and stays over power cuts: temporary
/// file, fsync, rename, fsync of the folder. Whatever fails, what was there before stays, and the temporary file is removed; one
/// that a dead process left is overwritten by the next save of that job.
///
/// Threads  one at a time.
class StoreFolder {
 public:
  /// `disk` outlives this.
  StoreFolder(std::string folder, uint32_t shard, Disk& disk)
      : folder_(std::move(folder)), shard_(shard), disk_(disk) {}
  ~StoreFolder();
  StoreFolder(const StoreFolder&) = delete;
  StoreFolder& operator=(const StoreFolder&) = delete;

  /// Begins a save, goes on with it, ends it. Errors  io; invalid_argument: nothing was begun.
  Status write(const StoreRequest& request);

  /// Errors  io: no save of that name, or it cannot be read; as read_store_file().
  Result<StoreFile> load(const std::string& name);

  /// FOLDER/NAME-HASH.shard-N.store: what is no letter, digit, '_', '-' or '.' in the name is %XX; long names are cut.
  std::string path_of(const std::string& name) const;

 private:
  Status write_and_end(const std::string& name, int file, const StoreRequest& request);
  void give_up(const std::string& name);

  std::string folder_;
  uint32_t shard_;
  Disk& disk_;
  std::map<std::string, int> open_;  ///< saves under way, by job name: their files
};

}  // namespace millrace::server
