#include "worker/training/model/variance_reduction.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/reduce/reduce.h"
#include "kernels/stream/drop_zeros.h"

namespace millrace::training {

void VarianceReduction::take(const LinearModel& model, const StreamView& full, double denominator) {
  MILLRACE_CHECK(denominator > 0 && full.dimension == model.tensor_dimension(), denominator, full.dimension);
  model_ = model;
  full_ = to_sparse(full);
  denominator_ = denominator;
}

Stream VarianceReduction::difference(const Stream& now, const Stream& at_snapshot) {
  Stream negated = at_snapshot;
  for (float& value : negated.values) value = -value;
  auto sum = sum_two(now.view(), negated.view());
  MILLRACE_CHECK(sum.has_value(), sum.error().message);
  if (sum->dense) return to_sparse(sum->view());
  drop_zeros(*sum);
  return std::move(*sum);
}

void VarianceReduction::add_full(std::span<float> values, double factor) const {
  MILLRACE_CHECK(has_snapshot());
  add_scaled(values, full_.view(), static_cast<float>(factor / denominator_));
}

Stream sum_of_pieces(uint64_t dimension, size_t rows,
                     const std::function<std::optional<Stream>(std::span<const uint32_t>)>& gradient_of) {
  constexpr size_t kRowsOfPiece = 65'536;
  Stream sum = Stream::empty(dimension);
  std::vector<uint32_t> piece_rows;
  for (size_t begin = 0; begin < rows; begin += kRowsOfPiece) {
    piece_rows.resize(std::min(kRowsOfPiece, rows - begin));
    std::iota(piece_rows.begin(), piece_rows.end(), static_cast<uint32_t>(begin));
    std::optional<Stream> piece = gradient_of(piece_rows);
    if (!piece) break;
    sum = begin == 0 ? std::move(*piece) : sum_two(sum.view(), piece->view()).value();
  }
  return sum;
}

}  // namespace millrace::training
