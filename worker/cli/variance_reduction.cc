#include "worker/cli/variance_reduction.h"

#include <utility>

#include "kernels/base/check.h"
#include "kernels/reduce/reduce.h"
#include "kernels/stream/drop_zeros.h"

namespace millrace::cli {

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

}  // namespace millrace::cli
