#include "worker/training/model/linear_model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "kernels/base/check.h"

namespace millrace::training {
namespace {

/// log(1 + exp(x)) without overflow.
double softplus(double x) { return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x)); }

}  // namespace

double loss_at(Loss loss, double label, double margin) {
  const double short_by = std::max(0.0, 1 - label * margin);
  switch (loss) {
    case Loss::kLogistic: return softplus(-label * margin);
    case Loss::kHinge: return short_by;
    case Loss::kSquaredHinge: break;
  }
  return short_by * short_by;
}

double loss_slope(Loss loss, double label, double margin) {
  switch (loss) {
    case Loss::kLogistic: return -label / (1 + std::exp(label * margin));
    case Loss::kHinge: return label * margin < 1 ? -label : 0;
    case Loss::kSquaredHinge: break;
  }
  return -2 * label * std::max(0.0, 1 - label * margin);
}

double loss_curvature_max(Loss loss) {
  MILLRACE_CHECK(loss != Loss::kHinge, loss_name(loss));
  return loss == Loss::kLogistic ? 0.25 : 2;
}

std::string_view loss_name(Loss loss) {
  switch (loss) {
    case Loss::kLogistic: return "lr";
    case Loss::kHinge: return "svm";
    case Loss::kSquaredHinge: break;
  }
  return "l2svm";
}

Result<Loss> loss_by_name(std::string_view name) {
  if (name == "lr") return Loss::kLogistic;
  if (name == "svm") return Loss::kHinge;
  if (name == "l2svm") return Loss::kSquaredHinge;
  return fail(ErrorCode::kInvalidArgument, "model '" + std::string(name) +
                                               "': lr (logistic regression), svm (linear SVM) or l2svm (the same with "
                                               "the hinge squared)");
}

LinearModel::LinearModel(Loss loss, uint64_t dimension) : loss_(loss), values_(dimension + 1, 0.0F) {}

double LinearModel::margin(const RowView& row) const {
  double sum = static_cast<double>(values_.back());
  for (size_t at = 0; at < row.indices.size(); ++at) {
    sum += static_cast<double>(values_[row.indices[at]]) * static_cast<double>(row.values[at]);
  }
  return sum * static_cast<double>(scale_);
}

BatchGradient batch_gradient(const LinearModel& model, const Dataset& data, std::span<const uint32_t> rows) {
  IndexBuffer indices;
  Buffer<float> values;
  size_t count = 0;
  for (const uint32_t row : rows) count += data.row(row).indices.size() + 1;
  indices.reserve(count);
  values.reserve(count);
  double intercept = 0;
  BatchGradient result;
  for (const uint32_t at : rows) {
    const RowView row = data.row(at);
    const auto label = static_cast<double>(row.label);
    const double margin = model.margin(row);
    result.loss_sum += loss_at(model.loss(), label, margin);
    const double slope = loss_slope(model.loss(), label, margin) / static_cast<double>(rows.size());
    if (slope == 0) continue;
    intercept += slope;
    for (size_t entry = 0; entry < row.indices.size(); ++entry) {
      indices.push_back(row.indices[entry]);
      values.push_back(static_cast<float>(slope * static_cast<double>(row.values[entry])));
    }
  }
  if (!indices.empty() || intercept != 0) {
    indices.push_back(static_cast<uint32_t>(model.dimension()));
    values.push_back(static_cast<float>(intercept));
  }
  auto gradient = coalesce(model.tensor_dimension(), indices, values);
  MILLRACE_CHECK(gradient.has_value(), gradient.error().message);
  result.gradient = std::move(*gradient);
  return result;
}

Evaluation evaluate(const LinearModel& model, const Dataset& data) {
  Evaluation result{.rows = data.rows()};
  if (data.rows() == 0) return result;
  std::vector<double> scores(data.rows());
  uint64_t right = 0;
  for (size_t at = 0; at < data.rows(); ++at) {
    const RowView row = data.row(at);
    const auto label = static_cast<double>(row.label);
    scores[at] = model.margin(row);
    result.mean_loss += loss_at(model.loss(), label, scores[at]);
    result.log_loss += loss_at(Loss::kLogistic, label, scores[at]);
    right += (scores[at] > 0) == (label > 0) ? 1 : 0;
  }
  const auto rows = static_cast<double>(data.rows());
  result.mean_loss /= rows;
  result.log_loss /= rows;
  result.accuracy = static_cast<double>(right) / rows;
  result.average_precision = average_precision(scores, data.labels);
  return result;
}

double average_precision(std::span<const double> scores, std::span<const int8_t> labels) {
  MILLRACE_CHECK(scores.size() == labels.size(), scores.size(), labels.size());
  // NaN has no order: a model with infinite weights makes it of infinity - infinity.
  if (std::ranges::any_of(scores, [](double score) { return std::isnan(score); }))
    return std::numeric_limits<double>::quiet_NaN();
  std::vector<uint32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return scores[a] > scores[b]; });
  const auto positives = static_cast<double>(std::count(labels.begin(), labels.end(), int8_t{1}));
  if (positives == 0) return 0;
  double area = 0;
  double found = 0;
  double found_before = 0;
  for (size_t at = 0; at < order.size(); ++at) {
    found += labels[order[at]] > 0 ? 1 : 0;
    if (at + 1 < order.size() && scores[order[at + 1]] == scores[order[at]]) continue;
    area += (found - found_before) / positives * (found / static_cast<double>(at + 1));
    found_before = found;
  }
  return area;
}

}  // namespace millrace::training
