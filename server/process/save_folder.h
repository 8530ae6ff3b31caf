#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

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

/// The start of a shard that saves in a folder. A later start may save there too: of a spare, or of the same command.
struct ShardStart {
  uint64_t incarnation = 0;  ///< 0: no other process saves there
  std::string table;         ///< the location of the membership table that counts the starts
};

/// The saves of one shard in a folder, a file a job. A save appears whole or not at all, and stays over power cuts:
/// temporary file, fsync, rename, fsync of the folder. On any failure the earlier save stays, and the temporary file is
/// removed. A save that is whole and cannot take its place stays beside it, as NAME.kept. The next save of a job
/// removes a file that a dead process left.
///
/// Another job  A save that has a step, and that a save of another job replaces, stays as NAME.previous: one of a name.
///
/// Other processes  each has temporary files of its own. A file beside the saves has the last start of the shard; an
///                  earlier start saves no more. Limit: an earlier start whose last rename is under way meanwhile.
/// Threads          one at a time.
class StoreFolder {
 public:
  /// `disk` outlives this.
  StoreFolder(std::string folder, uint32_t shard, Disk& disk, ShardStart start = {})
      : folder_(std::move(folder)), shard_(shard), disk_(disk), start_(std::move(start)) {}
  ~StoreFolder();
  StoreFolder(const StoreFolder&) = delete;
  StoreFolder& operator=(const StoreFolder&) = delete;

  /// Makes this start the owner of the shard's saves. Call it before the first load: an earlier start must not replace
  /// a save that was loaded. Where it fails, the next save tries it again.
  ///
  /// Errors  io.
  Status claim();

  /// Begins, continues, ends or gives up a save.
  ///
  /// Errors  io: also where the save could not take the place of the one before, found out when it begins.
  ///         stale: a later start of the shard owns the saves. invalid_argument: nothing was begun.
  Status write(const StoreRequest& request);

  /// Returns the sentence on a save that write() kept as NAME.previous, once; empty: none.
  std::string take_note() { return std::exchange(note_, {}); }

  /// Loads a save. Errors  io: no save of that name, or it cannot be read; as read_store_file().
  Result<StoreFile> load(const std::string& name);

  std::string path_of(const std::string& name) const { return store_path(folder_, shard_, name); }

 private:
  std::string temporary(const std::string& path) const;
  std::string owner_path() const;
  Result<uint64_t> read_owner();
  Status write_owner();
  Status check_owner();
  void remove_leftovers(const std::string& path);
  Status begin(const std::string& name);
  Status keep_previous(const std::string& name, uint64_t job);
  Status write_and_end(const std::string& name, int file, const StoreRequest& request);
  void give_up(const std::string& name);

  std::string folder_;
  uint32_t shard_;
  Disk& disk_;
  ShardStart start_;
  /// The owner that claim() found, of an earlier start. It may be greater than this one: a new table at its place
  /// counts from 1.
  uint64_t owner_before_ = 0;
  std::string note_;
  std::map<std::string, int> open_;  ///< saves under way, by job name: their files
};

}  // namespace millrace::server
