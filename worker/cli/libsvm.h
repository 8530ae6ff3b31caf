#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/result.h"
#include "worker/cli/dataset.h"

namespace millrace::cli {

/// Which rows of a file to keep, and what its indices may be.
struct LibsvmOptions {
  uint64_t dimension = 0;  ///< 0: the largest index of the file
  uint32_t part = 0;       ///< keep rows r with r % parts == part; all rows are checked
  uint32_t parts = 1;
  std::function<void(uint64_t rows)> progress = {};  ///< every few thousand rows; empty: none
};

/// Longest line that is accepted.
inline constexpr uint64_t kLibsvmLineBytesMax = uint64_t{256} << 20;

/// Parses LIBSVM text line by line: `LABEL INDEX:VALUE INDEX:VALUE …`, indices from 1 and strictly increasing, `#` starts
/// a comment, empty lines are skipped, entries of value 0 are not stored.
///
/// Labels   two classes, written 0 and 1, -1 and +1, or 1 and 2 (label_pair_text()).
/// Errors   malformed, the sentence starts with `NAME:LINE:`. After an error the object must not be used.
/// Threads  one.
class LibsvmParser {
 public:
  /// name  of the file, for error sentences.
  LibsvmParser(std::string name, LibsvmOptions options);

  /// One line without its newline.
  Status line(std::string_view text);

  /// Errors  malformed: no rows, or rows of one class only.
  Result<Dataset> finish() &&;

 private:
  Status label(std::string_view token);
  Status feature(std::string_view token);
  std::unexpected<Error> refuse(const std::string& sentence) const;
  bool kept() const { return (rows_ % options_.parts) == options_.part; }

  std::string name_;
  LibsvmOptions options_;
  Dataset data_;
  uint64_t lines_ = 0;
  uint64_t rows_ = 0;
  uint64_t previous_index_ = 0;
  uint64_t largest_index_ = 0;
  std::map<double, uint64_t> first_line_of_label_;  ///< at most three
  std::vector<double> row_labels_;                  ///< of kept rows
};

/// The dataset of LIBSVM text in memory. Errors as LibsvmParser.
Result<Dataset> parse_libsvm(std::string_view text, const std::string& name, const LibsvmOptions& options);

/// The dataset of a file, plain or gzip (told by its first bytes; a name that ends in .gz must be gzip).
///
/// Errors  io: it cannot be opened or read. malformed: as LibsvmParser; truncated or damaged gzip, with the line it got to.
Result<Dataset> read_libsvm(const std::string& path, const LibsvmOptions& options);

}  // namespace millrace::cli
