#include "worker/training/optimizers/batch_gradient.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/reduce/reduce.h"

namespace millrace::training {
namespace {

LossSums sums_of(const LinearModel& model, const Dataset& data, PartOfRange part) {
  LossSums sums;
  for (size_t at = part.begin; at < part.end; ++at) {
    const RowView row = data.row(at);
    const auto label = static_cast<double>(row.label);
    const double margin = model.margin(row);
    sums.loss += loss_at(model.loss(), label, margin);
    sums.right += (margin > 0) == (label > 0) ? 1 : 0;
  }
  sums.rows = static_cast<double>(part.end - part.begin);
  return sums;
}

}  // namespace

BatchGradient weighted_gradient(ComputeThreads& threads, const LinearModel& model, const Dataset& data,
                                std::span<const uint32_t> rows, double weight) {
  std::vector<BatchGradient> parts(threads.count());
  threads.run([&](uint32_t at) {
    const PartOfRange part = part_of_range(rows.size(), at, threads.count());
    parts[at] = batch_gradient(model, data, rows.subspan(part.begin, part.end - part.begin));
    // The kernel's is a mean.
    const double factor = weight * static_cast<double>(part.end - part.begin);
    for (float& value : parts[at].gradient.values) value = static_cast<float>(static_cast<double>(value) * factor);
  });
  BatchGradient sum = std::move(parts.front());
  if (parts.size() == 1) return sum;
  std::vector<StreamView> views = {sum.gradient.view()};
  for (size_t at = 1; at < parts.size(); ++at) {
    views.push_back(parts[at].gradient.view());
    sum.loss_sum += parts[at].loss_sum;
  }
  auto gradient = sum_many(views);
  MILLRACE_CHECK(gradient.has_value(), gradient.error().message);
  sum.gradient = std::move(*gradient);
  return sum;
}

LossSums loss_sums(ComputeThreads& threads, const LinearModel& model, const Dataset& data,
                   const std::function<void()>& between) {
  constexpr size_t kRowsAtOnce = 65'536;
  LossSums sums;
  size_t begin = 0;
  do {
    const size_t rows = std::min(kRowsAtOnce, data.rows() - begin);
    std::vector<LossSums> parts(threads.count());
    threads.run([&](uint32_t at) {
      const PartOfRange part = part_of_range(rows, at, threads.count());
      parts[at] = sums_of(model, data, {begin + part.begin, begin + part.end});
    });
    for (const LossSums& part : parts) {
      sums.rows += part.rows;
      sums.loss += part.loss;
      sums.right += part.right;
    }
    begin += rows;
    if (between) between();
  } while (begin < data.rows());
  return sums;
}

}  // namespace millrace::training
