#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "kernels/base/buffer.h"
#include "kernels/base/result.h"
#include "protocol/files/atomic_file.h"

namespace millrace::training {

/// Writes LIBSVM text, gzip where the path ends in .gz, as a files::AtomicFile: the file appears whole at commit() or
/// not at all.
///
/// Threads  one.
class LibsvmWriter {
 public:
  /// Errors  io.
  static Result<LibsvmWriter> create(const std::string& path);
  LibsvmWriter(LibsvmWriter&& other) noexcept;
  LibsvmWriter& operator=(LibsvmWriter&&) = delete;
  ~LibsvmWriter();

  /// Writes one row. `indices` count from 0 and increase strictly (the file counts from 1); values are finite. Errors
  /// io.
  Status row(int label, IndexSpan indices, std::span<const float> values);

  /// Errors  io: the old file stays.
  Status commit();

  uint64_t rows() const { return rows_; }
  uint64_t entries() const { return entries_; }

 private:
  struct Deflater;
  LibsvmWriter(files::AtomicFile file, std::unique_ptr<Deflater> deflater);
  Status flush();

  files::AtomicFile file_;
  std::unique_ptr<Deflater> deflater_;  ///< empty: plain text
  ByteBuffer text_;
  uint64_t rows_ = 0;
  uint64_t entries_ = 0;
};

}  // namespace millrace::training
