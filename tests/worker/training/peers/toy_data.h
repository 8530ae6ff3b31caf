#pragma once

#include <cstdint>
#include <numeric>
#include <vector>

#include "kernels/base/random.h"
#include "worker/training/data/dataset.h"
#include "worker/training/peers/train_over_peers.h"

namespace millrace::training::testing {

/// Rows like those of w8a: some of `dimension` features, whose weights decide the label but for a few.
inline Dataset toy_data(size_t rows, uint64_t dimension, uint64_t seed) {
  Dataset data;
  data.dimension = dimension;
  data.rows_in_file = rows;
  RandomSequence weights(RandomKey::from(7));
  std::vector<double> truth(dimension);
  for (double& weight : truth) weight = weights.next_normal();
  RandomSequence random(RandomKey::from(seed));
  for (size_t row = 0; row < rows; ++row) {
    double score = 0.1 * random.next_normal();
    for (uint32_t index = 0; index < dimension; ++index) {
      if (random.next_unit() > 0.3) continue;
      const auto value = static_cast<float>(0.25 + random.next_unit());
      data.indices.push_back(index);
      data.values.push_back(value);
      score += truth[index] * static_cast<double>(value);
    }
    data.row_begin.push_back(data.indices.size());
    data.labels.push_back(score > 0 ? int8_t{1} : int8_t{-1});
  }
  return data;
}

/// The rows `at`, in this order; rows_in_file stays.
inline Dataset rows_of(const Dataset& data, const std::vector<size_t>& at) {
  Dataset part;
  part.dimension = data.dimension;
  part.rows_in_file = data.rows_in_file;
  for (const size_t row : at) {
    const RowView view = data.row(row);
    part.indices.insert(part.indices.end(), view.indices.begin(), view.indices.end());
    part.values.insert(part.values.end(), view.values.begin(), view.values.end());
    part.row_begin.push_back(part.indices.size());
    part.labels.push_back(data.labels[row]);
  }
  return part;
}

/// Rank r of P has consecutive rows, as in a file.
inline Dataset share_of(const Dataset& data, uint32_t rank, uint32_t ranks) {
  std::vector<size_t> at(data.rows() * (rank + 1) / ranks - data.rows() * rank / ranks);
  std::iota(at.begin(), at.end(), data.rows() * rank / ranks);
  return rows_of(data, at);
}

}  // namespace millrace::training::testing
