#include "worker/bench/kernels/measure.h"

#include <algorithm>

#include "kernels/base/check.h"

namespace millrace::bench {

namespace {

double values_pass(std::span<const float> values) {
  float sums[8] = {};
  for (size_t i = 0; i + 8 <= values.size(); i += 8) {
    for (size_t j = 0; j < 8; ++j) sums[j] += values[i + j];
  }
  float sum = 0;
  for (const float part : sums) sum += part;
  return static_cast<double>(sum);
}

}  // namespace

double median(std::vector<double> of) {
  MILLRACE_CHECK(!of.empty());
  const auto middle = of.begin() + static_cast<ptrdiff_t>(of.size() / 2);
  std::nth_element(of.begin(), middle, of.end());
  return *middle;
}

double memory_pass(std::span<const Stream> streams) {
  uint64_t indices = 0;
  double values = 0;
  for (const Stream& stream : streams) {
    if (stream.dense) {
      values += values_pass(stream.values);
      continue;
    }
    // Four sums: one would wait for itself at every addition.
    float sums[4] = {};
    size_t i = 0;
    for (; i + 4 <= stream.count(); i += 4) {
      for (size_t j = 0; j < 4; ++j) {
        indices += stream.indices[i + j];
        sums[j] += stream.values[i + j];
      }
    }
    values += static_cast<double>(sums[0] + sums[1] + sums[2] + sums[3]);
  }
  return values + static_cast<double>(indices);
}

}  // namespace millrace::bench
