#include "worker/training/data/data_synthetic.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "worker/training/data/libsvm_writer.h"

namespace millrace::training {
namespace {

constexpr uint64_t kDataSyntheticProgressRows = 1024;
constexpr uint64_t kWeightStream = 1;       // ground truth: counter = feature
constexpr uint64_t kCalibrationStream = 2;  // rows that only set the median
constexpr uint64_t kRowStream = 3;
constexpr uint64_t kSplitStream = 4;  // counter = row
constexpr int kCalibrationRows = 301;
constexpr double kNoiseShare = 0.15;  // of the scores' spread: about one label in twenty changes sides
constexpr uint64_t kHeadFeatures = 8'192;
// Ranks are scattered over the dimension: an odd prime that divides neither dimension, so that the map is one to one.
constexpr uint64_t kScatter = 2'654'435'761;

double exponential(RandomSequence& random) { return -std::log1p(-random.next_unit()); }

/// Returns the integral of x^-exponent from `begin` to `end`. REQUIRES: begin > 0, exponent is not 1.
double power_integral(double begin, double end, double exponent) {
  const double tail = 1 - exponent;
  return (std::pow(end, tail) - std::pow(begin, tail)) / tail;
}
/// Returns the `end` that power_integral() needs for this integral.
double power_integral_end(double begin, double integral, double exponent) {
  const double tail = 1 - exponent;
  return std::pow(std::pow(begin, tail) + integral * tail, 1 / tail);
}

}  // namespace

Result<SyntheticShape> synthetic_shape(std::string_view name) {
  for (const SyntheticShape& shape : {kUrlShape, kWebspamShape}) {
    if (shape.name == name) return shape;
  }
  return fail(ErrorCode::kInvalidArgument, "--like " + std::string(name) + ": url or webspam");
}

SyntheticRows::SyntheticRows(const SyntheticShape& shape, uint64_t seed)
    : shape_(shape), key_(random_key(seed, shape.dimension)), random_(key_, kCalibrationStream) {
  MILLRACE_CHECK(shape.support > 0 && shape.support <= shape.dimension && shape.popularity_exponent != 1, shape.support,
                 shape.dimension, shape.popularity_exponent);
  tabulate();
  std::vector<double> scores;
  IndexBuffer indices;
  Buffer<float> values;
  for (int row = 0; row < kCalibrationRows; ++row) {
    draw(indices, values);
    scores.push_back(score(indices, values));
  }
  std::sort(scores.begin(), scores.end());
  median_ = scores[scores.size() / 2];
  // Half of the range between the 16th and the 84th percentile: one sigma, for any tails.
  noise_ = kNoiseShare * (scores[scores.size() * 84 / 100] - scores[scores.size() * 16 / 100]) / 2;
  random_ = RandomSequence(key_, kRowStream);
}

/// Adds the head's probabilities one by one, and those of the other ranks in pieces: within one the probability hardly
/// changes.
double SyntheticRows::expected_count(double c) const {
  double count = 0;
  for (const double weight : head_) count -= std::expm1(-c * weight);
  constexpr double kPiece = 1.02;
  const double end = static_cast<double>(shape_.support) + 0.5;
  for (double begin = static_cast<double>(head_.size()) + 0.5; begin < end;) {
    const double next = std::min(begin * kPiece, end);
    count -= (next - begin) * std::expm1(-c * std::pow((begin + next) / 2, -shape_.popularity_exponent));
    begin = next;
  }
  return count;
}

void SyntheticRows::tabulate() {
  for (uint64_t rank = 1; rank <= std::min(shape_.support, kHeadFeatures); ++rank) {
    head_.push_back(std::pow(static_cast<double>(rank), -shape_.popularity_exponent));
  }
  // From less than one feature to more than half of the support.
  constexpr double kLogStep = 0.1;
  for (double log_c = -1;
       popularities_.empty() || std::exp(popularities_.back().log_count) < 0.6 * static_cast<double>(shape_.support);
       log_c += kLogStep) {
    popularities_.push_back({log_c, std::log(expected_count(std::exp(log_c)))});
  }
}

double SyntheticRows::c_of(double count) const {
  const double log_count = std::log(count);
  const auto above = std::ranges::lower_bound(popularities_, log_count, {}, &Popularity::log_count);
  if (above == popularities_.begin()) return std::exp(above->log_c + log_count - above->log_count);
  if (above == popularities_.end()) return std::exp(popularities_.back().log_c);
  const Popularity& below = *(above - 1);
  const double share = (log_count - below.log_count) / (above->log_count - below.log_count);
  return std::exp(below.log_c + share * (above->log_c - below.log_c));
}

/// Draws each feature of the head by its probability. The other features are the arrivals of a Poisson process over the
/// ranks, of intensity c x^-exponent. A rank has at least one arrival with the same probability.
void SyntheticRows::draw_features(double c, IndexBuffer& indices) {
  indices.clear();
  const auto add = [&](uint64_t rank) { indices.push_back(static_cast<uint32_t>(rank * kScatter % shape_.dimension)); };
  for (size_t rank = 0; rank < head_.size(); ++rank) {
    if (exponential(random_) < c * head_[rank]) add(rank);
  }
  const double begin = static_cast<double>(head_.size()) + 0.5;
  const double end = static_cast<double>(shape_.support) + 0.5;
  if (begin < end) {
    const double all = c * power_integral(begin, end, shape_.popularity_exponent);
    for (double at = exponential(random_); at < all; at += exponential(random_)) {
      const double x = power_integral_end(begin, at / c, shape_.popularity_exponent);
      // Feature i, from 0, has the integral's part from i + 1/2 to i + 3/2.
      add(std::clamp(static_cast<uint64_t>(x - 0.5), uint64_t{head_.size()}, shape_.support - 1));
    }
  }
  if (indices.empty()) add(0);
  std::sort(indices.begin(), indices.end());
  indices.erase(std::unique(indices.begin(), indices.end()), indices.end());
}

void SyntheticRows::draw(IndexBuffer& indices, Buffer<float>& values) {
  const double drawn = shape_.nonzeros_mean * std::exp(shape_.nonzeros_spread * random_.next_normal() -
                                                       shape_.nonzeros_spread * shape_.nonzeros_spread / 2);
  const double most = std::max(1.0, static_cast<double>(shape_.support) / 2);
  draw_features(c_of(std::clamp(drawn, 1.0, most)), indices);
  values.resize(indices.size());
  double squares = 0;
  for (float& value : values) {
    value = static_cast<float>(exponential(random_) + 0.1);
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
  std::vector<bool> occurs(options.shape.dimension);
  for (uint64_t row = 0; row < options.rows; ++row) {
    const int label = rows.next(indices, values);
    for (const uint32_t index : indices) occurs[index] = true;
    const double drawn = static_cast<double>(random_words(split, row, kSplitStream)[0]) * 0x1p-32;
    LibsvmWriter& writer = drawn < options.held_out_share ? *held : *train;
    if (Status status = writer.row(label, indices, values); !status) return std::unexpected(status.error());
    if (options.progress && (row + 1) % kDataSyntheticProgressRows == 0) options.progress(row + 1);
  }
  if (Status status = train->commit(); !status) return std::unexpected(status.error());
  if (Status status = held->commit(); !status) return std::unexpected(status.error());
  const auto features = static_cast<uint64_t>(std::count(occurs.begin(), occurs.end(), true));
  return SyntheticDataSummary{train->rows(), held->rows(), train->entries() + held->entries(), features};
}

}  // namespace millrace::training
