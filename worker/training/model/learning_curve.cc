#include "worker/training/model/learning_curve.h"

#include <algorithm>

namespace millrace::training {

LearningCurve::LearningCurve(const Dataset& held_out)
    : features_(held_out.indices.begin(), held_out.indices.end()), rows_(held_out) {
  std::ranges::sort(features_);
  const auto repeated = std::ranges::unique(features_);
  features_.erase(repeated.begin(), repeated.end());
  features_.shrink_to_fit();
  for (uint32_t& index : rows_.indices) {
    index = static_cast<uint32_t>(std::ranges::lower_bound(features_, index) - features_.begin());
  }
  rows_.dimension = features_.size();
}

void LearningCurve::take(const LinearModel& model, const CurvePoint& point) {
  points_.push_back(point);
  std::vector<float>& weights = weights_.emplace_back();
  weights.reserve(features_.size() + 1);
  for (const uint32_t feature : features_) weights.push_back(static_cast<float>(model.weight(feature)));
  weights.push_back(static_cast<float>(model.weight(model.dimension())));
}

std::vector<CurvePoint> LearningCurve::evaluated() const {
  std::vector<CurvePoint> points = points_;
  for (size_t at = 0; at < points.size(); ++at) {
    LinearModel model(Loss::kLogistic, rows_.dimension);
    std::ranges::copy(weights_[at], model.values().begin());
    points[at].log_loss = evaluate(model, rows_).log_loss;
  }
  return points;
}

}  // namespace millrace::training
