#pragma once

#include <vector>

#include "worker/training/data/dataset.h"

namespace millrace::training {

/// Holds a rank's rows by feature, compressed by column (CSC), of the features that occur anywhere. The intercept is
/// the last one, with a 1 in every row.
class FeatureColumns {
 public:
  /// features  strictly increasing, with every index of `data` among them, and data.dimension as the last one.
  FeatureColumns(const Dataset& data, std::vector<uint32_t> features);

  size_t count() const { return features_.size(); }
  uint32_t feature(size_t at) const { return features_[at]; }
  /// Returns where a feature is; count(): nowhere.
  size_t position_of(uint32_t feature) const;

  struct Column {
    std::span<const uint32_t> rows;  ///< strictly increasing
    std::span<const float> values;
  };
  Column column(size_t at) const {
    const size_t begin = begin_[at], entries = begin_[at + 1] - begin;
    return {std::span(rows_).subspan(begin, entries), std::span(values_).subspan(begin, entries)};
  }

 private:
  std::vector<uint32_t> features_;
  std::vector<uint64_t> begin_;
  std::vector<uint32_t> rows_;
  std::vector<float> values_;
};

}  // namespace millrace::training
