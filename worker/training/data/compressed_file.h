#pragma once

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

#include "kernels/base/buffer.h"
#include "kernels/base/result.h"

namespace millrace::training {

/// Reads a file in blocks, for decompressors that take their input themselves.
class CompressedFile {
 public:
  static Result<CompressedFile> open(const std::string& path) {
    errno = 0;
    FILE* file = std::fopen(path.c_str(), "rbe");
    if (file == nullptr) return fail(ErrorCode::kIo, path + ": " + std::strerror(errno));
    return CompressedFile(file);
  }

  /// Returns the next block; empty at the end. Errors  io.
  Result<std::span<uint8_t>> next() {
    errno = 0;
    const size_t got = std::fread(block_->data(), 1, block_->size(), file_.get());
    if (got == 0 && std::ferror(file_.get()) != 0) return fail(ErrorCode::kIo, std::strerror(errno));
    return std::span(*block_).first(got);
  }

 private:
  static constexpr size_t kBlockBytes = size_t{1} << 18;
  struct Close {
    void operator()(FILE* file) const { std::fclose(file); }
  };
  explicit CompressedFile(FILE* file) : file_(file), block_(std::make_unique<std::array<uint8_t, kBlockBytes>>()) {}

  std::unique_ptr<FILE, Close> file_;
  std::unique_ptr<std::array<uint8_t, kBlockBytes>> block_;
};

}  // namespace millrace::training
