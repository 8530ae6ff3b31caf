#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "server/process/disk.h"

namespace millrace::testing {

/// A disk in memory that fails at a call of the caller's choice. Either that call returns an error, or the power goes.
/// In the second case some or all bytes that were not flushed are lost.
class FakeDisk : public server::Disk {
 public:
  enum class At : uint8_t { kNever, kFails, kPowerGoes };

  /// The k-th call from now, from 0.
  void go_wrong(At at, uint64_t k) {
    at_ = at;
    left_ = k;
    wrong_ = false;
  }
  bool went_wrong() const { return wrong_; }
  /// Restarts after a power failure and sets the state that a new process finds. kept: the outcome of bytes and renames
  /// that were not flushed.
  enum class Unflushed : uint8_t { kLost, kHalf, kThere };
  void come_back(Unflushed kept) {
    at_ = At::kNever;
    open_.clear();
    // Names that were not flushed with their folder are the old ones, or the new ones.
    if (kept == Unflushed::kLost) names_ = flushed_names_;
    for (auto& [number, file] : files_) {
      if (kept == Unflushed::kLost) file.bytes.resize(std::min(file.flushed, file.bytes.size()));
      if (kept == Unflushed::kHalf && file.bytes.size() > file.flushed) {
        file.bytes.resize(file.flushed + (file.bytes.size() - file.flushed) / 2);
      }
    }
    flushed_names_ = names_;
  }

  Result<int> create(const std::string& path) override {
    if (const Status done = call(path); !done) return std::unexpected(done.error());
    const int number = next_++;
    names_[path] = number;
    files_[number] = {};
    open_[number] = 0;
    return number;
  }
  Status write(int file, ByteSpan bytes) override {
    // A write that fails, or is cut off, has written some.
    const Status done = call("write");
    const size_t count = done ? bytes.size() : gone_ ? 0 : bytes.size() / 2;
    ByteBuffer& to = files_[file].bytes;
    to.insert(to.end(), bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(count));
    return done;
  }
  Status sync(int file) override {
    const Status done = call("sync");
    if (done) files_[file].flushed = files_[file].bytes.size();
    return done;
  }
  Status close(int file) override {
    open_.erase(file);
    return call("close");
  }
  Status rename(const std::string& from, const std::string& to) override {
    if (const Status done = call("rename"); !done) return done;
    if (!names_.contains(from)) return fail(ErrorCode::kIo, "cannot rename '" + from + "': not there");
    names_[to] = names_.at(from);
    names_.erase(from);
    return {};
  }
  bool no_links = false;  ///< as on a file system without hard links
  Status link(const std::string& path, const std::string& as) override {
    if (const Status done = call("link"); !done) return done;
    if (no_links || names_.contains(as)) return fail(ErrorCode::kIo, "cannot link to '" + as + "'");
    names_[as] = names_.at(path);
    return {};
  }
  Status check_replaceable(const std::string&) override { return call("check_replaceable"); }
  Status sync_folder(const std::string&) override {
    const Status done = call("sync_folder");
    if (done) flushed_names_ = names_;
    return done;
  }
  void remove(const std::string& path) override {
    if (call("remove")) names_.erase(path);
  }
  bool unreadable = false;  ///< no file is opened to be read, and no folder is listed
  Result<std::vector<std::string>> find(const std::string& prefix) override {
    if (unreadable) return fail(ErrorCode::kIo, "cannot read the folder of '" + prefix + "'");
    std::vector<std::string> found;
    for (const auto& [path, number] : names_) {
      if (path.starts_with(prefix)) found.push_back(path);
    }
    return found;
  }
  Result<Opened> open(const std::string& path) override {
    const auto at = names_.find(path);
    if (unreadable || at == names_.end()) return fail(ErrorCode::kIo, "cannot open '" + path + "': not there");
    open_[at->second] = 0;
    return Opened{at->second, files_.at(at->second).bytes.size()};
  }
  Status read(int file, std::span<uint8_t> out) override {
    const ByteBuffer& from = files_.at(file).bytes;
    size_t& at = open_.at(file);
    if (at + out.size() > from.size()) return fail(ErrorCode::kIo, "behind the end");
    std::copy_n(from.begin() + static_cast<ptrdiff_t>(at), out.size(), out.begin());
    at += out.size();
    return {};
  }

  size_t open_files() const { return open_.size(); }
  size_t names() const { return names_.size(); }

 private:
  struct File {
    ByteBuffer bytes;
    size_t flushed = 0;
  };
  /// Counts a call. After the power went nothing does anything.
  Status call(const std::string& what) {
    gone_ = at_ == At::kPowerGoes && wrong_;
    if (!gone_ && at_ != At::kNever && !wrong_ && left_-- == 0) {
      wrong_ = true;
      gone_ = at_ == At::kPowerGoes;
      return fail(ErrorCode::kIo, what + ": No space left on device");
    }
    if (gone_) return fail(ErrorCode::kIo, "there is no power");
    return {};
  }

  At at_ = At::kNever;
  uint64_t left_ = 0;
  bool wrong_ = false;
  bool gone_ = false;
  int next_ = 3;
  std::map<std::string, int> names_;
  std::map<std::string, int> flushed_names_;
  std::map<int, File> files_;
  std::map<int, size_t> open_;  ///< where they are read from
};

}  // namespace millrace::testing
