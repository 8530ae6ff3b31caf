#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "kernels/base/buffer.h"
#include "kernels/base/random.h"
#include "kernels/base/result.h"

namespace millrace::cli {

/// Shape of a sparse classification set: what matters to compression and nothing else.
struct SyntheticShape {
  std::string_view name;
  uint64_t dimension = 0;
  double nonzeros_mean = 0;        ///< a row
  double nonzeros_spread = 0;      ///< sigma of its logarithm
  double popularity_exponent = 0;  ///< the r-th most frequent feature occurs in proportion to r^-exponent
};

/// Dimensions of sparcml.txt, table 1, and the mean non-zeros a row of the sets themselves; frequencies skewed as in text.
inline constexpr SyntheticShape kUrlShape{"url", 3'231'961, 116, 0.15, 1.05};
inline constexpr SyntheticShape kWebspamShape{"webspam", 16'609'143, 3'730, 0.5, 0.9};

Result<SyntheticShape> synthetic_shape(std::string_view name);

/// Rows of a shape, one after the other; a function of (shape, seed) alone.
///
/// features  distinct, drawn by popularity; values positive, rows of norm 1.
/// label     +1 where a sparse linear model (one feature in eight has a weight) plus noise is above its median, else -1: a row in
///           twenty or so contradicts the model.
/// Threads   one.
class SyntheticRows {
 public:
  SyntheticRows(const SyntheticShape& shape, uint64_t seed);

  /// Writes the next row; returns its label. indices out: strictly increasing.
  int next(IndexBuffer& indices, Buffer<float>& values);

 private:
  void draw(IndexBuffer& indices, Buffer<float>& values);
  double score(const IndexBuffer& indices, const Buffer<float>& values);
  uint32_t feature();

  SyntheticShape shape_;
  RandomKey key_;
  RandomSequence random_;
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
};

/// Errors  io: old files stay.
Result<SyntheticDataSummary> make_synthetic_data(const SyntheticDataOptions& options);

}  // namespace millrace::cli
