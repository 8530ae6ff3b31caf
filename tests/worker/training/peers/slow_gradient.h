#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

#include "worker/training/data/dataset.h"

namespace millrace::training::testing {

using Weights = std::vector<double>;  ///< the intercept last

/// The mean gradient of these rows' logistic losses, without L2; 0 where there are none.
template <typename Rows>
Weights slow_gradient(const Dataset& data, const Rows& rows, const Weights& w) {
  Weights gradient(w.size());
  for (const auto at : rows) {
    const RowView row = data.row(at);
    const auto y = static_cast<double>(row.label);
    double margin = w.back();
    for (size_t i = 0; i < row.indices.size(); ++i) margin += w[row.indices[i]] * static_cast<double>(row.values[i]);
    const double slope = -y / (1 + std::exp(y * margin)) / static_cast<double>(rows.size());
    for (size_t i = 0; i < row.indices.size(); ++i) {
      gradient[row.indices[i]] += slope * static_cast<double>(row.values[i]);
    }
    gradient.back() += slope;
  }
  return gradient;
}

}  // namespace millrace::training::testing
