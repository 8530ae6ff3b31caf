#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "kernels/base/result.h"
#include "server/base/actions.h"
#include "server/process/disk.h"
#include "server/process/options.h"
#include "server/store/job_store.h"
#include "server/store/save_format.h"

namespace millrace::server {

/// Returns FOLDER/NAME-HASH.shard-N.store. Other characters of the name than letters, digits, '_', '-', '.' are %XX; a
/// long name is cut.
std::string store_path(const std::string& folder, uint32_t shard, const std::string& name);

/// Returns the saves that a shard offers to its jobs; none without a folder. `options` outlives them.
///
/// Errors  io: the folder cannot be used.
Result<JobStore::Saves> saves_of(const Options& options);

/// The saves of one shard in a folder, a file a job. A save appears whole or not at all, and stays over power cuts:
/// temporary file, fsync, rename, fsync of the folder. On any failure the earlier save stays, and the temporary file is
/// removed. A save that is whole and cannot take its place stays beside it, as NAME.kept. The next save of a job
/// overwrites a file that a dead process left.
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

  /// Begins, continues or ends a save.
  ///
  /// Errors  io: also where the save could not take the place of the one before, found out when it begins;
  ///         invalid_argument: nothing was begun.
  Status write(const StoreRequest& request);

  /// Loads a save. Errors  io: no save of that name, or it cannot be read; as read_store_file().
  Result<StoreFile> load(const std::string& name);

  std::string path_of(const std::string& name) const { return store_path(folder_, shard_, name); }

 private:
  Status write_and_end(const std::string& name, int file, const StoreRequest& request);
  void give_up(const std::string& name);

  std::string folder_;
  uint32_t shard_;
  Disk& disk_;
  std::map<std::string, int> open_;  ///< saves under way, by job name: their files
};

}  // namespace millrace::server
