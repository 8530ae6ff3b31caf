#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/random.h"
#include "kernels/base/result.h"

namespace millrace::training {

/// Describes the shape of a sparse classification set: only the properties that matter to compression.
struct SyntheticShape {
  std::string_view name;
  uint64_t dimension = 0;
  uint64_t support = 0;        ///< features that can occur; at most the dimension
  double nonzeros_mean = 0;    ///< a row
  double nonzeros_spread = 0;  ///< sigma of its logarithm
  /// The r-th most frequent feature occurs in proportion to r^-exponent, while it is in few rows.
  double popularity_exponent = 0;
};

/// Dimensions of [SparCML19, table 1], and the mean non-zeros a row of the sets themselves; frequencies skewed as in
/// text.
inline constexpr SyntheticShape kUrlShape{"url", 3'231'961, 3'231'961, 116, 0.15, 1.05};
/// The features are the 2^24 sequences of three bytes, of which few occur. worker/training/data/DESIGN.md has the
/// numbers' sources, and lists the numbers that are not established.
inline constexpr SyntheticShape kWebspamShape{"webspam", 16'609'143, 680'715, 3'730, 0.5, 1.7};

Result<SyntheticShape> synthetic_shape(std::string_view name);

/// Generates rows of a shape, one after the other; a function of (shape, seed) alone.
///
/// features  of the shape's support. A row has the r-th most frequent one with probability 1 - exp(-c r^-exponent),
///           independently of the others. c gives the row its number of features in expectation. Values positive, norm
///           1.
/// label     +1 where a sparse linear model (one feature in eight has a weight) plus noise is above its median, else
///           -1. About one row in twenty contradicts the model.
/// Cost      a row: a draw for each of the 8,192 most frequent features, and for each other feature that the row has.
/// Threads   one.
class SyntheticRows {
 public:
  SyntheticRows(const SyntheticShape& shape, uint64_t seed);

  /// Writes the next row; returns its label. indices out: strictly increasing, one at least.
  int next(IndexBuffer& indices, Buffer<float>& values);

 private:
  /// Says how many features a row has in expectation at c.
  struct Popularity {
    double log_c = 0;
    double log_count = 0;
  };
  void tabulate();
  double expected_count(double c) const;
  double c_of(double count) const;
  void draw(IndexBuffer& indices, Buffer<float>& values);
  void draw_features(double c, IndexBuffer& indices);
  double score(const IndexBuffer& indices, const Buffer<float>& values);

  SyntheticShape shape_;
  RandomKey key_;
  RandomSequence random_;
  std::vector<double> head_;              ///< r^-exponent of the most frequent features
  std::vector<Popularity> popularities_;  ///< both ascending
  double noise_ = 0;
  double median_ = 0;
};

struct SyntheticDataOptions {
  SyntheticShape shape = kUrlShape;
  uint64_t rows = 0;
  uint64_t seed = 1;
  std::string train_path;
  std::string held_out_path;
  double held_out_share = 0.1;
  std::function<void(uint64_t rows)> progress = {};
};

struct SyntheticDataSummary {
  uint64_t train_rows = 0;
  uint64_t held_out_rows = 0;
  uint64_t entries = 0;
  uint64_t features = 0;  ///< that occur in the rows of either file
};

/// Errors  io: old files stay.
Result<SyntheticDataSummary> make_synthetic_data(const SyntheticDataOptions& options);

}  // namespace millrace::training
