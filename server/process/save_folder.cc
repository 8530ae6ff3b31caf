#include "server/process/save_folder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/hash.h"
#include "protocol/files/atomic_file.h"

namespace millrace::server {
namespace {

constexpr size_t kNameBytesMax = 120;  ///< of a job's name in its file's; the hash tells long ones apart

bool is_plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';
}

constexpr std::string_view kTemporary = ".new";  ///< temporary files begin with the path of their file, and this
constexpr size_t kOwnerBytesMax = 20;            ///< digits of an incarnation

/// Returns the path of a save that could not take its place.
std::string kept_name(const std::string& path) { return path + ".kept"; }

/// Returns the path of the last trained save of another job.
std::string previous_name(const std::string& path) { return path + ".previous"; }

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

/// Two processes never write to one file: the file would have bytes of both.
std::string StoreFolder::temporary(const std::string& path) const {
  return fmt::format("{}{}-{}-{}", path, kTemporary, start_.incarnation, getpid());
}

/// Returns the path of the file with the last start. Starts of another table's shard do not count.
std::string StoreFolder::owner_path() const {
  return fmt::format("{}/shard-{}-{:016x}.owner", folder_, shard_, hash64(start_.table));
}

/// Returns the incarnation that owns the saves; 0: none is known.
Result<uint64_t> StoreFolder::read_owner() {
  const std::string path = owner_path();
  const Result<Disk::Opened> opened = disk_.open(path);
  if (!opened) {
    // No owner is known only where the folder can be read and lacks the file.
    const auto found = disk_.find(path);
    if (!found) return std::unexpected(found.error());
    if (std::ranges::find(*found, path) == found->end()) return 0;
    return std::unexpected(opened.error());
  }
  ByteBuffer bytes(std::min<uint64_t>(opened->bytes, kOwnerBytesMax));
  const Status got = disk_.read(opened->file, bytes);
  (void)disk_.close(opened->file);
  if (!got) return std::unexpected(got.error());
  const std::string digits(bytes.begin(), bytes.end());
  uint64_t owner = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), owner);
  return owner;
}

Status StoreFolder::claim() {
  if (start_.incarnation == 0) return {};
  if (const Result<uint64_t> before = read_owner(); before) owner_before_ = *before;
  return write_owner();
}

Status StoreFolder::write_owner() {
  const std::string path = owner_path();
  remove_leftovers(path);
  const Result<int> file = disk_.create(temporary(path));
  if (!file) return std::unexpected(file.error());
  const std::string digits = std::to_string(start_.incarnation);
  Status done = disk_.write(*file, ByteBuffer(digits.begin(), digits.end()));
  if (done) done = disk_.sync(*file);
  if (const Status closed = disk_.close(*file); done) done = closed;
  if (done) done = disk_.rename(temporary(path), path);
  if (done) return disk_.sync_folder(folder_);
  disk_.remove(temporary(path));
  return done;
}

Status StoreFolder::check_owner() {
  if (start_.incarnation == 0) return {};
  const Result<uint64_t> owner = read_owner();
  if (!owner) return std::unexpected(owner.error());
  if (*owner == start_.incarnation) return {};
  if (*owner < start_.incarnation || *owner == owner_before_) return write_owner();
  return fail(ErrorCode::kStale, fmt::format("start {} of shard {} saves in '{}', and this process is start {}", *owner,
                                             shard_, folder_, start_.incarnation));
}

/// Removes the temporary files that other processes left beside the path.
void StoreFolder::remove_leftovers(const std::string& path) {
  const std::string prefix = path + std::string(kTemporary);
  const auto found = disk_.find(prefix);
  if (!found) return;
  for (const std::string& left : *found) {
    // Not of a job whose name begins like this one's file.
    if (left.find_first_not_of("-0123456789", prefix.size()) == std::string::npos) disk_.remove(left);
  }
}

Status StoreFolder::begin(const std::string& name) {
  give_up(name);
  const std::string path = path_of(name);
  // Before weights are copied and written: an obstacle to the rename would be there at the end, too.
  if (Status can = disk_.check_replaceable(path); !can) return can;
  if (Status owned = check_owner(); !owned) return owned;
  remove_leftovers(path);
  const Result<int> file = disk_.create(temporary(path));
  if (!file) return std::unexpected(file.error());
  open_[name] = *file;
  return {};
}

Status StoreFolder::write(const StoreRequest& request) {
  if (request.what == StoreRequest::What::kGiveUp) {
    give_up(request.name);
    return {};
  }
  if (request.what == StoreRequest::What::kBegin) {
    if (Status begun = begin(request.name); !begun) return begun;
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

/// Keeps the save that one of `job` is about to replace, where another job trained it: a forgotten begin would lose it.
Status StoreFolder::keep_previous(const std::string& name, uint64_t job) {
  const std::string path = path_of(name);
  const Result<Disk::Opened> opened = disk_.open(path);
  if (!opened) return {};
  const Result<bool> keeps =
      is_trained_by_another(opened->bytes, [&](std::span<uint8_t> out) { return disk_.read(opened->file, out); }, job);
  (void)disk_.close(opened->file);
  if (!keeps.value_or(false)) return {};  // no job can begin with a damaged save
  const std::string previous = previous_name(path);
  std::string note =
      fmt::format("job '{}': the save that an earlier job of this name trained is now '{}'", name, previous);
  disk_.remove(previous);
  Status kept = disk_.link(path, previous);
  // Without hard links the name has no save until the next call.
  if (!kept) kept = disk_.rename(path, previous);
  if (kept) note_ = std::move(note);
  return kept;
}

Status StoreFolder::write_and_end(const std::string& name, int file, const StoreRequest& request) {
  const std::string path = path_of(name);
  if (const Status done = disk_.write(file, request.bytes.bytes); !done) return done;
  if (const Status done = disk_.sync(file); !done) return done;
  if (const Status owned = check_owner(); !owned) return owned;
  open_.erase(name);
  Status ready = disk_.close(file);
  if (ready) ready = keep_previous(name, request.job);
  if (!ready) {
    disk_.remove(temporary(path));
    return ready;
  }
  if (Status done = disk_.rename(temporary(path), path); !done) {
    // The save is whole: another name keeps it from the next save, which removes the temporary file.
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
