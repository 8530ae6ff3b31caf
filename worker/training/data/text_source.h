#pragma once

#include <memory>
#include <span>
#include <string>

#include "kernels/base/buffer.h"
#include "kernels/base/result.h"

namespace millrace::training {

/// Reads the bytes of a text file, decompressed where it is compressed.
///
/// Threads  one.
class TextSource {
 public:
  virtual ~TextSource() = default;

  /// Fills `into` from its front, and returns how many bytes it has put there; 0 at the end.
  ///
  /// Errors  io: the system's reason. malformed: compressed data that is damaged or ends too early. The sentence does
  ///         not name the file: the caller knows how far it got in it.
  virtual Result<size_t> read(std::span<char> into) = 0;
};

/// Opens a file that is plain text, gzip, bzip2 or xz, by its first bytes. A file that is not regular (a pipe) is plain
/// or gzip.
///
/// Errors  io: it cannot be opened. malformed: its name says that it is compressed, and it is not. unsupported: it is
///         in a format that cannot be read, named, with what to do. The sentence begins with the path.
Result<std::unique_ptr<TextSource>> open_text(const std::string& path);

/// Refuses the first bytes of a file, or of its decompressed content, that are not text of single bytes: UTF-16,
/// archives, binary formats.
///
/// Errors  unsupported: the format's name, and what to do.
Status refuse_foreign(ByteSpan head);
/// Describes a compressed format that open_text() reads. Empty: the bytes begin none of them.
struct Compression {
  std::string name;        ///< "gzip"
  std::string decompress;  ///< "gunzip -k"
};
/// Returns the compressed format that the first bytes of a file begin.
Compression compression_of(ByteSpan head);

// One a file.
Result<std::unique_ptr<TextSource>> open_gzip_or_plain(const std::string& path);
Result<std::unique_ptr<TextSource>> open_bzip2(const std::string& path);
Result<std::unique_ptr<TextSource>> open_xz(const std::string& path);

}  // namespace millrace::training
