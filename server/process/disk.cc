#include "server/process/disk.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

#include "protocol/files/atomic_file.h"

namespace millrace::server {
namespace {

std::unexpected<Error> system_error(std::string_view what, std::string_view path) {
  const int reason = errno;
  return fail(ErrorCode::kIo, fmt::format("{} '{}': {}", what, path, std::generic_category().message(reason)));
}

class SystemDisk : public Disk {
 public:
  SystemDisk() = default;
  ~SystemDisk() override {
    for (const auto& [file, path] : paths_) ::close(file);
  }
  SystemDisk(const SystemDisk&) = delete;
  SystemDisk& operator=(const SystemDisk&) = delete;

  Result<int> create(const std::string& path) override {
    ::unlink(path.c_str());
    return opened(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, files::kOwnerOnly), path,
                  "cannot create");
  }
  Status write(int file, ByteSpan bytes) override {
    while (!bytes.empty()) {
      const ssize_t written = ::write(file, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return system_error("cannot write to", paths_[file]);
      bytes = bytes.subspan(static_cast<size_t>(written));
    }
    return {};
  }
  Status sync(int file) override {
    if (::fsync(file) != 0) return system_error("cannot flush to the disk", paths_[file]);
    return {};
  }
  Status close(int file) override {
    const std::string path = paths_[file];
    paths_.erase(file);
    if (::close(file) != 0) return system_error("cannot close", path);
    return {};
  }
  Status rename(const std::string& from, const std::string& to) override {
    if (std::rename(from.c_str(), to.c_str()) != 0) return system_error("cannot rename to", to);
    return {};
  }
  Status link(const std::string& path, const std::string& as) override {
    if (::link(path.c_str(), as.c_str()) != 0) return system_error("cannot link to", as);
    return {};
  }
  Status check_replaceable(const std::string& path) override { return files::check_replaceable(path); }
  Status sync_folder(const std::string& path) override {
    const Result<int> folder =
        opened(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC), path, "cannot open the folder");
    if (!folder) return std::unexpected(folder.error());
    const Status synced = sync(*folder);
    const Status closed = close(*folder);
    return synced ? closed : synced;
  }
  void remove(const std::string& path) override { ::unlink(path.c_str()); }
  Result<std::vector<std::string>> find(const std::string& prefix) override {
    const std::string folder = prefix.substr(0, prefix.rfind('/') + 1);
    std::vector<std::string> found;
    std::error_code failed;
    std::filesystem::directory_iterator at(folder, failed);
    for (; !failed && at != std::filesystem::directory_iterator(); at.increment(failed)) {
      std::string path = folder + at->path().filename().native();
      if (path.starts_with(prefix)) found.push_back(std::move(path));
    }
    if (failed) return fail(ErrorCode::kIo, "cannot read the folder '" + folder + "': " + failed.message());
    return found;
  }

  Result<Opened> open(const std::string& path) override {
    const Result<int> file = opened(::open(path.c_str(), O_RDONLY | O_CLOEXEC), path, "cannot open");
    if (!file) return std::unexpected(file.error());
    struct stat info{};
    if (::fstat(*file, &info) == 0) return Opened{*file, static_cast<uint64_t>(info.st_size)};
    const auto failure = system_error("cannot look at", path);
    (void)close(*file);
    return failure;
  }
  Status read(int file, std::span<uint8_t> out) override {
    while (!out.empty()) {
      const ssize_t got = ::read(file, out.data(), out.size());
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return system_error("cannot read", paths_[file]);
      if (got == 0) return fail(ErrorCode::kIo, fmt::format("'{}' became shorter while it was read", paths_[file]));
      out = out.subspan(static_cast<size_t>(got));
    }
    return {};
  }

 private:
  Result<int> opened(int file, const std::string& path, std::string_view what) {
    if (file < 0) return system_error(what, path);
    paths_[file] = path;
    return file;
  }

  std::map<int, std::string> paths_;  ///< of the open ones: for sentences
};

}  // namespace

std::unique_ptr<Disk> system_disk() { return std::make_unique<SystemDisk>(); }

Status check_folder(const std::string& path) {
  struct stat info{};
  if (::stat(path.c_str(), &info) != 0) return system_error("cannot use the folder", path);
  if (!S_ISDIR(info.st_mode)) return fail(ErrorCode::kIo, fmt::format("'{}' is not a folder", path));
  if (::access(path.c_str(), W_OK | X_OK) != 0) return system_error("cannot make files in the folder", path);
  return {};
}

}  // namespace millrace::server
