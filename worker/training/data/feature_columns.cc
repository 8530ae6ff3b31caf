#include "worker/training/data/feature_columns.h"

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"

namespace millrace::training {

FeatureColumns::FeatureColumns(const Dataset& data, std::vector<uint32_t> features)
    : features_(std::move(features)), begin_(features_.size() + 1) {
  MILLRACE_CHECK(!features_.empty() && features_.back() == data.dimension, data.dimension);
  std::vector<uint32_t> at_column(data.indices.size());
  for (size_t entry = 0; entry < at_column.size(); ++entry) {
    const size_t column = position_of(data.indices[entry]);
    MILLRACE_CHECK(column < features_.size(), data.indices[entry]);
    at_column[entry] = static_cast<uint32_t>(column);
    ++begin_[column + 1];
  }
  begin_.back() += data.rows();
  for (size_t column = 0; column < features_.size(); ++column) begin_[column + 1] += begin_[column];
  rows_.resize(begin_.back());
  values_.resize(begin_.back());
  std::vector<uint64_t> next(begin_.begin(), begin_.end() - 1);
  for (size_t row = 0; row < data.rows(); ++row) {
    for (uint64_t entry = data.row_begin[row]; entry < data.row_begin[row + 1]; ++entry) {
      const uint64_t to = next[at_column[entry]]++;
      rows_[to] = static_cast<uint32_t>(row);
      values_[to] = data.values[entry];
    }
    const uint64_t to = next.back()++;
    rows_[to] = static_cast<uint32_t>(row);
    values_[to] = 1;
  }
}

size_t FeatureColumns::position_of(uint32_t feature) const {
  const auto at = std::ranges::lower_bound(features_, feature);
  return at == features_.end() || *at != feature ? features_.size() : static_cast<size_t>(at - features_.begin());
}

}  // namespace millrace::training
