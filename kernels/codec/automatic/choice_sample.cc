#include "kernels/codec/automatic/choice_sample.h"

#include <algorithm>
#include <cmath>

namespace millrace {
namespace {

constexpr size_t kRuns = 8;

/// Appends an entry `gap` indices behind the last one.
void append_choice_sample(StreamSample& sample, uint64_t gap, float value) {
  const uint64_t index = sample.indices.empty() ? gap : uint64_t{sample.indices.back()} + 1 + gap;
  if (index >= kDimensionMax) return;
  sample.indices.push_back(static_cast<uint32_t>(index));
  sample.values.push_back(value);
}

void sample_sparse(const StreamView& stream, StreamSample& sample) {
  const size_t count = stream.indices.size();
  const size_t runs = count <= kSampleEntries ? 1 : kRuns;
  const size_t length = std::min(count, kSampleEntries) / runs;
  for (size_t run = 0; run < runs; ++run) {
    const size_t begin = runs == 1 ? 0 : (count - length) * run / (runs - 1);
    for (size_t at = begin; at < begin + length; ++at) {
      const uint64_t before = at == 0 ? 0 : uint64_t{stream.indices[at - 1]} + 1;
      append_choice_sample(sample, stream.indices[at] - before, stream.values[at]);
    }
  }
}

void sample_dense(const StreamView& stream, StreamSample& sample) {
  const size_t size = stream.values.size();
  const size_t runs = sample.count <= kSampleEntries ? 1 : kRuns;
  for (size_t run = 0; run < runs; ++run) {
    const size_t most = (run + 1) * kSampleEntries / runs;
    uint64_t before = size * run / runs;
    for (size_t at = before; at < size && sample.indices.size() < most; ++at) {
      if (stream.values[at] == 0.0F) continue;
      append_choice_sample(sample, at - before, stream.values[at]);
      before = at + 1;
    }
  }
}

}  // namespace

StreamSample sample_stream(const StreamView& stream) {
  StreamSample sample;
  sample.count = stream.dense ? count_nonzero(stream.values) : stream.count();
  sample.indices.reserve(std::min<uint64_t>(sample.count, kSampleEntries));
  sample.values.reserve(sample.indices.capacity());
  if (stream.dense) {
    sample_dense(stream, sample);
  } else {
    sample_sparse(stream, sample);
  }
  // A stream without entries, or of zeros only, has a sample of one zero.
  if (sample.indices.empty()) append_choice_sample(sample, 0, 0.0F);
  sample.count = std::max<uint64_t>(sample.count, 1);
  // As far behind the last entry as the stream's own end is on average.
  const bool whole = sample.indices.size() == sample.count;
  const uint64_t gap = stream.dimension / sample.count;
  const uint64_t end = uint64_t{sample.indices.back()} + 1;
  sample.dimension = whole ? std::max(stream.dimension, end) : std::min(end + gap / 2, kDimensionMax);
  return sample;
}

// Runs from all over it: where entries lie close together, its beginning says little.
Buffer<float> StreamSample::dense_values() const {
  const uint64_t size = std::min<uint64_t>(dimension, 4 * kSampleEntries);
  const uint64_t runs = size == dimension ? 1 : kRuns;
  const uint64_t length = size / runs;
  Buffer<float> dense(length * runs, 0.0F);
  for (uint64_t run = 0; run < runs; ++run) {
    const uint64_t begin = runs == 1 ? 0 : (dimension - length) * run / (runs - 1);
    auto at = static_cast<size_t>(std::ranges::lower_bound(indices, begin) - indices.begin());
    for (; at < indices.size() && indices[at] < begin + length; ++at) {
      dense[run * length + indices[at] - begin] = values[at];
    }
  }
  return dense;
}

/// Standard deviation of log2(gap - 1/2) of uniform indices, a geometric variable, at these densities. At density 0 it
/// is that of an exponential one, pi / sqrt(6) / ln 2.
constexpr std::array kSpreadDensities = {0.0, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9};
constexpr std::array kUniformSpreads = {1.8503, 1.6820, 1.5500, 1.3629, 1.1726, 0.9656, 0.7201, 0.5051};

double uniform_spread(double density) {
  size_t upper = 1;
  while (upper + 1 < kSpreadDensities.size() && density > kSpreadDensities[upper]) ++upper;
  const double low = kSpreadDensities[upper - 1];
  const double share = (density - low) / (kSpreadDensities[upper] - low);
  return std::lerp(kUniformSpreads[upper - 1], kUniformSpreads[upper], share);
}

double StreamSample::gap_spread() const {
  if (indices.size() < 3) return 1;
  double sum = 0;
  double squares = 0;
  for (size_t at = 1; at < indices.size(); ++at) {
    const double level = std::log2(static_cast<double>(indices[at] - indices[at - 1]) - 0.5);
    sum += level;
    squares += level * level;
  }
  const double gaps = static_cast<double>(indices.size() - 1);
  const double mean = sum / gaps;
  const double density = gaps / static_cast<double>(indices.back() - indices.front());
  if (density > kSpreadDensities.back()) return 1;
  return std::sqrt(std::max(squares / gaps - mean * mean, 0.0)) / uniform_spread(density);
}

}  // namespace millrace
