#include "protocol/keys/allowed_keys.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "protocol/keys/key_files.h"
#include "protocol/keys/rights_file.h"

namespace millrace::protocol {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPublicSuffix = ".pub";
/// Of a list: kMax lines, and comments.
constexpr size_t kListBytesMax = 16u << 20;

std::unexpected<Error> in_key_list(const std::string& what, const Error& error) {
  return fail(error.code, what + ": " + error.message);
}

/// Closes a folder that is read at the end of its scope.
struct OpenFolder {
  DIR* entries;
  explicit OpenFolder(const std::string& path) : entries(::opendir(path.c_str())) {}
  OpenFolder(const OpenFolder&) = delete;
  OpenFolder& operator=(const OpenFolder&) = delete;
  ~OpenFolder() {
    if (entries != nullptr) ::closedir(entries);
  }
};

/// Returns the names of the folder's public keys, sorted, so that the same one is skipped each time.
/// Errors  io: some names may be missing.
Result<std::vector<std::string>> key_names_in(const OpenFolder& folder, const std::string& what) {
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = ::readdir(folder.entries)) {  // NOLINT(concurrency-mt-unsafe): this thread's own folder
    const std::string file = entry->d_name;
    errno = 0;
    if (!file.ends_with(kPublicSuffix) || file.starts_with('.')) continue;
    names.push_back(file.substr(0, file.size() - kPublicSuffix.size()));
  }
  if (errno != 0) return fail(ErrorCode::kIo, what + ": " + std::strerror(errno));
  std::ranges::sort(names);
  return names;
}

}  // namespace

namespace {

/// Returns whether a file is gone, or not for this process to read: a state, where other errors pass by themselves.
bool is_gone(int folder, const std::string& file) {
  return ::faccessat(folder, file.c_str(), R_OK, AT_EACCESS) != 0 && (errno == ENOENT || errno == EACCES);
}

}  // namespace

/// Judges and reads one folder: the path may lead to another one meanwhile.
Result<AllowedKeys> AllowedKeys::read_folder(const std::string& path, const PublicKey& own) {
  const std::string what = "folder of keys " + path;
  const OpenFolder folder(path);
  if (folder.entries == nullptr) return fail(ErrorCode::kIo, what + ": " + std::strerror(errno));
  const int fd = ::dirfd(folder.entries);
  if (const Status owner = judge_rights_owner(fd, what, path); !owner) return std::unexpected(owner.error());
  AllowedKeys keys;
  const auto names = key_names_in(folder, what);
  if (!names) return std::unexpected(names.error());
  for (const std::string& name : *names) {
    const std::string file = name + std::string(kPublicSuffix);
    const Result<DatedKey> key = read_public_key_in(fd, file, fmt::format("{}/{}", path, file));
    if (key && key->key == own) {
      keys.own_end_ = key->end;
      continue;
    }
    // A passing error of the disk must take no key away.
    if (!key && key.error().code == ErrorCode::kIo && !is_gone(fd, file)) return std::unexpected(key.error());
    const Status added = key ? keys.add(name, key->key, key->end) : std::unexpected(key.error());
    if (added) continue;
    if (added.error().code == ErrorCode::kLimitExceeded) return in_key_list(what, added.error());
    keys.problems_.push_back(key ? fmt::format("key file {}/{}: {}", path, file, added.error().message)
                                 : added.error().message);
  }
  return keys;
}

void AllowedKeys::remove(const std::string& name) {
  const auto at = keys_.find(name);
  if (at == keys_.end()) return;
  names_.erase(at->second);
  keys_.erase(at);
  ends_.erase(name);
}

void AllowedKeys::skip(const std::string& name, std::string problem) {
  remove(name);
  problems_.push_back(std::move(problem));
}

std::vector<EndedKey> AllowedKeys::end_keys(std::chrono::sys_days today) {
  std::vector<EndedKey> ended;  // whole before the first key goes: memory may run out
  for (const auto& [name, end] : ends_) {
    if (end > today) continue;
    ended.push_back({name, keys_.at(name), fmt::format("key '{}' was allowed until {}", name, key_end_text(end))});
  }
  for (const EndedKey& one : ended) remove(one.name);
  return ended;
}

KeyEnd AllowedKeys::first_end() const {
  KeyEnd first = own_end_;
  for (const auto& [name, end] : ends_) first = first ? std::min(*first, end) : end;
  return first;
}

Status AllowedKeys::add(const std::string& name, const PublicKey& key, KeyEnd end) {
  if (const std::string refusal = refuse_key_name(name); !refusal.empty())
    return fail(ErrorCode::kInvalidArgument, "'" + name + "': " + refusal);
  if (names_.size() >= kMax)
    return fail(ErrorCode::kLimitExceeded, "more than " + std::to_string(kMax) + " keys are allowed");
  if (const std::string* earlier = name_of(key))
    return fail(ErrorCode::kInvalidArgument, "the key of " + name + " is also that of " + *earlier);
  if (!keys_.try_emplace(name, key).second)
    return fail(ErrorCode::kInvalidArgument, "the name " + name + " has two keys");
  names_.emplace(key, name);
  if (end) ends_.emplace(name, *end);
  return {};
}

const std::string* AllowedKeys::name_of(const PublicKey& key) const {
  const auto at = names_.find(key);
  return at == names_.end() ? nullptr : &at->second;
}

const PublicKey* AllowedKeys::key_of(const std::string& name) const {
  const auto at = keys_.find(name);
  return at == keys_.end() ? nullptr : &at->second;
}

Result<AllowedKeys> AllowedKeys::of_list(std::string_view text, const std::string& what) {
  AllowedKeys keys;
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line.starts_with('#')) continue;
    const std::string where = what + ", line " + std::to_string(number);
    const size_t space = line.find(' ');
    const auto key = space == std::string_view::npos ? std::nullopt : dated_key_of_digits(line.substr(space + 1));
    if (!key) {
      return fail(ErrorCode::kInvalidArgument,
                  where +
                      ": give a name, a space, and the 64 hexadecimal digits of its public key; after them "
                      "\" until YYYY-MM-DD\" where the key has an end");
    }
    if (const Status added = keys.add(std::string(line.substr(0, space)), key->key, key->end); !added)
      return in_key_list(where, added.error());
  }
  return keys;
}

Result<AllowedKeys> AllowedKeys::read(const std::string& path, const PublicKey& own) {
  std::error_code problem;
  if (fs::is_directory(path, problem)) return read_folder(path, own);
  const std::string what = "list of keys " + path;
  const Result<std::string> text = read_rights_file(what, path, kListBytesMax + 1);
  if (!text) return std::unexpected(text.error());
  if (text->size() > kListBytesMax) return fail(ErrorCode::kLimitExceeded, what + ": it is longer than 16 MiB");
  Result<AllowedKeys> keys = of_list(*text, what);
  if (!keys) return keys;
  if (const std::string* name = keys->name_of(own)) {
    if (const auto end = keys->ends_.find(*name); end != keys->ends_.end()) keys->own_end_ = end->second;
  }
  return keys;
}

}  // namespace millrace::protocol
