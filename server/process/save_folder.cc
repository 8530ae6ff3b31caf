#include "server/process/save_folder.h"

#include <fmt/format.h>

#include <utility>

#include "kernels/base/clock.h"
#include "kernels/base/hash.h"
#include "protocol/files/atomic_file.h"

namespace millrace::server {
namespace {

constexpr size_t kNameBytesMax = 120;  ///< of a job's name in its file's; the hash tells long ones apart

bool is_plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';
}

std::string temporary(const std::string& path) { return path + ".new"; }

/// Returns the path of a save that could not take its place.
std::string kept_name(const std::string& path) { return path + ".kept"; }

}  // namespace

std::string store_path(const std::string& folder, uint32_t shard, const std::string& name) {
  std::string plain;
  for (const char c : name) {
    plain += is_plain(c) ? std::string(1, c) : fmt::format("%{:02X}", static_cast<uint8_t>(c));
    if (plain.size() >= kNameBytesMax) break;
  }
  return fmt::format("{}/{}-{:016x}.shard-{}.store", folder, plain, hash64(name), shard);
}

Result<JobStore::Saves> saves_of(const Options& options) {
  JobStore::Saves saves;
  if (options.store_dir.empty()) return saves;
  if (const Status usable = check_folder(options.store_dir); !usable) return std::unexpected(usable.error());
  saves.possible = true;
  saves.every = static_cast<TimeNs>(options.store_save_seconds) * kNsPerS;
  saves.judge = [&options](const std::string& name) {
    return files::check_replaceable(store_path(options.store_dir, options.shard, name));
  };
  return saves;
}

StoreFolder::~StoreFolder() {
  while (!open_.empty()) give_up(open_.begin()->first);
}

void StoreFolder::give_up(const std::string& name) {
  const auto at = open_.find(name);
  if (at == open_.end()) return;
  const std::string path = temporary(path_of(name));
  (void)disk_.close(at->second);
  open_.erase(at);
  disk_.remove(path);
}

Status StoreFolder::write(const StoreRequest& request) {
  if (request.what == StoreRequest::What::kBegin) {
    give_up(request.name);
    // Before weights are copied and written: an obstacle to the rename would be there at the end, too.
    if (Status can = disk_.check_replaceable(path_of(request.name)); !can) return can;
    const Result<int> file = disk_.create(temporary(path_of(request.name)));
    if (!file) return std::unexpected(file.error());
    open_[request.name] = *file;
  }
  const auto at = open_.find(request.name);
  if (at == open_.end()) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("no save of job '{}' was begun", request.name));
  }
  const Status written = request.what == StoreRequest::What::kEnd ? write_and_end(request.name, at->second, request)
                                                                  : disk_.write(at->second, request.bytes.bytes);
  if (!written) give_up(request.name);
  return written;
}

Status StoreFolder::write_and_end(const std::string& name, int file, const StoreRequest& request) {
  const std::string path = path_of(name);
  if (const Status done = disk_.write(file, request.bytes.bytes); !done) return done;
  if (const Status done = disk_.sync(file); !done) return done;
  open_.erase(name);
  if (const Status done = disk_.close(file); !done) {
    disk_.remove(temporary(path));
    return done;
  }
  if (Status done = disk_.rename(temporary(path), path); !done) {
    // The save is whole: another name keeps it from the next save, which overwrites the temporary file.
    const bool kept = disk_.rename(temporary(path), kept_name(path)).has_value();
    done.error().message += fmt::format("; the save is in '{}'", kept ? kept_name(path) : temporary(path));
    return done;
  }
  return disk_.sync_folder(folder_);
}

Result<StoreFile> StoreFolder::load(const std::string& name) {
  const std::string path = path_of(name);
  const Result<Disk::Opened> opened = disk_.open(path);
  if (!opened) return std::unexpected(opened.error());
  Result<StoreFile> file =
      read_store_file(opened->bytes, [&](std::span<uint8_t> out) { return disk_.read(opened->file, out); });
  (void)disk_.close(opened->file);
  if (!file) return fail(file.error().code, fmt::format("{} ({})", file.error().message, path));
  return file;
}

}  // namespace millrace::server
