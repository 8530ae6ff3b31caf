#include "worker/cli/data_synthetic.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "worker/cli/libsvm_writer.h"

namespace millrace::cli {
namespace {

constexpr uint64_t kDataSyntheticProgressRows = 1024;
constexpr uint64_t kWeightStream = 1;       // ground truth: counter = feature
constexpr uint64_t kCalibrationStream = 2;  // rows that only set the median
constexpr uint64_t kRowStream = 3;
constexpr uint64_t kSplitStream = 4;  // counter = row
constexpr int kCalibrationRows = 301;
constexpr double kNoiseShare = 0.15;  // of the scores' spread: about one label in twenty changes sides
constexpr int kDrawRounds = 64;
// Ranks are scattered over the dimension: an odd prime that divides neither dimension, so that the map is one to one.
constexpr uint64_t kScatter = 2'654'435'761;

}  // namespace

Result<SyntheticShape> synthetic_shape(std::string_view name) {
  for (const SyntheticShape& shape : {kUrlShape, kWebspamShape}) {
    if (shape.name == name) return shape;
  }
  return fail(ErrorCode::kInvalidArgument, "--like " + std::string(name) + ": url or webspam");
}

SyntheticRows::SyntheticRows(const SyntheticShape& shape, uint64_t seed)
    : shape_(shape), key_(random_key(seed, shape.dimension)), random_(key_, kCalibrationStream) {
  std::vector<double> scores;
  IndexBuffer indices;
  Buffer<float> values;
  for (int row = 0; row < kCalibrationRows; ++row) {
    draw(indices, values);
    scores.push_back(score(indices, values));
  }
  std::sort(scores.begin(), scores.end());
  median_ = scores[scores.size() / 2];
  // Half of the range between the 16th and the 84th percentile: one sigma, whatever the tails.
  noise_ = kNoiseShare * (scores[scores.size() * 84 / 100] - scores[scores.size() * 16 / 100]) / 2;
  random_ = RandomSequence(key_, kRowStream);
}

uint32_t SyntheticRows::feature() {
  // Inverse of the distribution function of a continuous power law on [1, dimension + 1).
  const double tail = 1 - shape_.popularity_exponent;
  const double range = std::pow(static_cast<double>(shape_.dimension) + 1, tail) - 1;
  const double rank = std::pow(1 + random_.next_unit() * range, 1 / tail) - 1;
  const auto bounded = std::min(static_cast<uint64_t>(std::max(rank, 0.0)), shape_.dimension - 1);
  return static_cast<uint32_t>(bounded * kScatter % shape_.dimension);
}

void SyntheticRows::draw(IndexBuffer& indices, Buffer<float>& values) {
  const double drawn = shape_.nonzeros_mean * std::exp(shape_.nonzeros_spread * random_.next_normal() -
                                                       shape_.nonzeros_spread * shape_.nonzeros_spread / 2);
  const auto count = static_cast<size_t>(std::clamp(drawn, 1.0, static_cast<double>(shape_.dimension) / 4));
  indices.clear();
  for (int round = 0; round < kDrawRounds && indices.size() < count; ++round) {
    for (size_t missing = count - indices.size(); missing > 0; --missing) indices.push_back(feature());
    std::sort(indices.begin(), indices.end());
    indices.erase(std::unique(indices.begin(), indices.end()), indices.end());
  }
  values.resize(indices.size());
  double squares = 0;
  for (float& value : values) {
    value = static_cast<float>(-std::log1p(-random_.next_unit()) + 0.1);
    squares += static_cast<double>(value) * static_cast<double>(value);
  }
  for (float& value : values) value = static_cast<float>(static_cast<double>(value) / std::sqrt(squares));
}

double SyntheticRows::score(const IndexBuffer& indices, const Buffer<float>& values) {
  double sum = 0;
  for (size_t at = 0; at < indices.size(); ++at) {
    const auto words = random_words(key_, indices[at], kWeightStream);
    if (words[0] % 8 != 0) continue;
    const double weight = words[1] % 2 == 0 ? 1 : -1;
    sum += weight * static_cast<double>(values[at]);
  }
  return sum;
}

int SyntheticRows::next(IndexBuffer& indices, Buffer<float>& values) {
  draw(indices, values);
  return score(indices, values) + noise_ * random_.next_normal() > median_ ? 1 : -1;
}

Result<SyntheticDataSummary> make_synthetic_data(const SyntheticDataOptions& options) {
  auto train = LibsvmWriter::create(options.train_path);
  if (!train) return std::unexpected(train.error());
  auto held = LibsvmWriter::create(options.held_out_path);
  if (!held) return std::unexpected(held.error());
  SyntheticRows rows(options.shape, options.seed);
  const RandomKey split = random_key(options.seed);
  IndexBuffer indices;
  Buffer<float> values;
  for (uint64_t row = 0; row < options.rows; ++row) {
    const int label = rows.next(indices, values);
    const double drawn = static_cast<double>(random_words(split, row, kSplitStream)[0]) * 0x1p-32;
    LibsvmWriter& writer = drawn < options.held_out_share ? *held : *train;
    if (Status status = writer.row(label, indices, values); !status) return std::unexpected(status.error());
    if (options.progress && (row + 1) % kDataSyntheticProgressRows == 0) options.progress(row + 1);
  }
  if (Status status = train->commit(); !status) return std::unexpected(status.error());
  if (Status status = held->commit(); !status) return std::unexpected(status.error());
  return SyntheticDataSummary{train->rows(), held->rows(), train->entries() + held->entries()};
}

}  // namespace millrace::cli
