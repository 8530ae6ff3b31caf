#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/buffer.h"

namespace millrace::training {

/// Says how a file writes its two classes. The first of each pair is the negative class.
enum class LabelPair : uint8_t {
  kZeroOne = 1,       ///< 0 and 1
  kMinusPlusOne = 2,  ///< -1 and +1
  kOneTwo = 3,        ///< 1 and 2
};

/// Returns "-1 is negative, +1 is positive", for example.
std::string label_pair_text(LabelPair pair);

/// Says the number by which a file calls its first feature.
enum class IndexBase : uint8_t {
  kOne = 0,   ///< LIBSVM's
  kZero = 1,  ///< of writers that count from 0
};

/// Says how a file writes its rows.
struct TrainedOn {
  LabelPair label_pair = LabelPair::kMinusPlusOne;
  IndexBase index_base = IndexBase::kOne;
  bool operator==(const TrainedOn&) const = default;
};

/// Views one example: features with strictly increasing indices, and its class.
struct RowView {
  IndexSpan indices;
  std::span<const float> values;
  float label = 0;  ///< -1 or +1
};

/// Holds labelled rows in memory, compressed by row (CSR).
struct Dataset {
  uint64_t dimension = 0;              ///< every index is below it
  std::vector<uint64_t> row_begin{0};  ///< [rows + 1] positions into indices and values
  IndexBuffer indices;
  Buffer<float> values;
  std::vector<int8_t> labels;  ///< [rows] -1 or +1
  LabelPair label_pair = LabelPair::kMinusPlusOne;
  IndexBase index_base = IndexBase::kOne;  ///< of the file
  uint64_t largest_index_line = 0;         ///< of the file, the first with its largest index; 0: it has no entries
  uint64_t entries_left_out = 0;           ///< of held-out rows: of features that training lacked
  uint64_t rows_in_file = 0;               ///< of which this holds a part when a part was asked for
  uint64_t content_hash = 0;  ///< of all rows of the file, in their order: labels, indices, values. 0: not worked out

  size_t rows() const { return labels.size(); }
  TrainedOn written_as() const { return {label_pair, index_base}; }
  RowView row(size_t at) const {
    const uint64_t begin = row_begin[at];
    const uint64_t count = row_begin[at + 1] - begin;
    return {IndexSpan(indices).subspan(begin, count), std::span<const float>(values).subspan(begin, count),
            static_cast<float>(labels[at])};
  }
};

}  // namespace millrace::training
