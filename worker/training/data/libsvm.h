#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/result.h"
#include "worker/training/data/dataset.h"

namespace millrace::training {

/// Says what rows are for.
enum class RowUse : uint8_t {
  kTraining = 1,  ///< they have two classes, and no feature behind the dimension
  kHeldOut =
      2,  ///< a model is measured on them: its classes are theirs, one or both; features that it lacks are left out
};

/// Says which rows of a file to keep, and what its indices may be.
struct LibsvmOptions {
  uint64_t dimension = 0;  ///< 0: the largest index of the file
  uint32_t part = 0;       ///< keep rows r with r % parts == part; all rows are checked
  uint32_t parts = 1;
  IndexBase index_base = IndexBase::kOne;
  RowUse use = RowUse::kTraining;
  /// KHeldOut: how the rows that the model was trained on write its classes.
  std::optional<LabelPair> trained_pair = {};
  std::function<void(uint64_t rows)> progress = {};  ///< every few thousand rows; empty: none
};

/// Longest line that is accepted.
inline constexpr uint64_t kLibsvmLineBytesMax = uint64_t{256} << 20;

/// Holds the rows of a file, before the classes of its labels are known. A share of a file may have rows of only one
/// class, or none.
struct LibsvmRows {
  Dataset data;                 ///< without labels, label_pair and dimension
  std::vector<double> labels;   ///< of the kept rows
  std::vector<double> classes;  ///< labels seen, ascending; at most two
  uint64_t largest_index = 0;   ///< counted from 1, regardless of the file's index base; 0: no entries
  uint64_t largest_index_line = 0;
  uint64_t entries_left_out = 0;
  uint64_t rows = 0;          ///< read, kept or not
  uint64_t content_hash = 0;  ///< of these (Dataset)
};

/// Returns the rows as a dataset, whose classes, largest index and number of rows may be those of a larger file.
///
/// whole    of the file; its data and labels are not looked at.
/// Errors   malformed: no rows in the whole. In training: not two classes written as label_pair_text() has them. Held
///          out: a label that is none of the model's, or one whose class is unknown. `name` is in front.
Result<Dataset> dataset_of(LibsvmRows rows, const LibsvmRows& whole, const std::string& name,
                           const LibsvmOptions& options);

/// Parses LIBSVM text line by line: `LABEL INDEX:VALUE INDEX:VALUE …`. Indices count from 1 (or 0: index_base) and are
/// strictly increasing. `#` starts a comment. Empty lines are skipped; entries of value 0 are not stored. A query's
/// number (`qid:N`, N whole and below 2^64) after the label, of data for ranking, is skipped.
///
/// Labels   two classes, written 0 and 1, -1 and +1, or 1 and 2 (label_pair_text()).
/// Values   a magnitude too small for f32 becomes 0.
/// Errors   malformed, the sentence starts with `NAME:LINE:`. After an error the object must not be used.
/// Threads  one.
class LibsvmParser {
 public:
  /// name  of the file, for error sentences.
  LibsvmParser(std::string name, LibsvmOptions options);

  /// Parses one line without its newline.
  Status line(std::string_view text);

  /// Errors  malformed: no rows, or rows of one class only.
  Result<Dataset> finish() &&;
  /// Returns the parsed rows, unchanged.
  LibsvmRows take_rows() &&;

 private:
  Status label(std::string_view token);
  Status query(std::string_view token) const;
  Status feature(std::string_view token);
  Result<uint64_t> index(std::string_view token, std::string_view text) const;
  Result<float> value(std::string_view token, std::string_view text) const;
  std::unexpected<Error> refuse(const std::string& sentence) const;
  bool kept() const { return (rows_ % options_.parts) == options_.part; }

  std::string name_;
  LibsvmOptions options_;
  Dataset data_;
  uint64_t lines_ = 0;
  uint64_t rows_ = 0;
  uint64_t previous_index_ = 0;
  uint64_t largest_index_ = 0;
  uint64_t largest_index_line_ = 0;
  uint64_t entries_left_out_ = 0;
  std::map<double, uint64_t> first_line_of_label_;  ///< at most three
  std::vector<double> row_labels_;                  ///< of kept rows
  std::vector<uint64_t> row_;                       ///< input of the hash from the present row
  uint64_t content_hash_ = 0;
};

/// Returns one line for people: the number of entries of held-out rows whose features the model lacks.
std::string left_out_text(const std::string& path, const Dataset& data);

/// Reads the dataset of a file, plain, gzip, bzip2 or xz (text_source.h).
///
/// Errors  io: it cannot be opened or read. malformed: as LibsvmParser; truncated or damaged compressed data, with the
///         line it got to. unsupported: a format that is not read, named.
Result<Dataset> read_libsvm(const std::string& path, const LibsvmOptions& options);

}  // namespace millrace::training
