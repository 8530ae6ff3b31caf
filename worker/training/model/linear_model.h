#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/base/result.h"
#include "kernels/stream/stream.h"
#include "worker/training/data/dataset.h"

namespace millrace::training {

/// Says which function a linear model minimises: the mean over rows of log(1 + exp(-y m)), of max(0, 1 - y m), or of
/// its square. m is the margin. The square's SVM is the L2-loss SVM: smooth, so that coordinate descent trains it,
/// which stays in the hinge's corners.
enum class Loss : uint8_t { kLogistic = 1, kHinge = 2, kSquaredHinge = 3 };

/// Returns "lr", "svm" or "l2svm": the command line's words.
std::string_view loss_name(Loss loss);
Result<Loss> loss_by_name(std::string_view name);

/// Return the loss of a row, and its derivative by the margin (the hinge's at its corner is 0, one of its
/// subgradients).
double loss_at(Loss loss, double label, double margin);
double loss_slope(Loss loss, double label, double margin);
/// Returns the most that the derivative changes by the margin. REQUIRES: not the hinge, which has a corner.
double loss_curvature_max(Loss loss);

/// Holds a linear model's parameters as they are trained: margin = scale * (values . x) + scale * values[dimension],
/// the last one being the intercept. The common factor `scale` applies L2 without touching every parameter at every
/// step: one multiplication shrinks all weights. See Bottou, "Stochastic gradient descent tricks", 5.1; descent.h has
/// the steps.
///
/// Threads  none of its own; a caller that writes `values` keeps readers away.
class LinearModel {
 public:
  LinearModel(Loss loss, uint64_t dimension);

  Loss loss() const { return loss_; }
  uint64_t dimension() const { return values_.size() - 1; }
  /// Returns the dimension of this model's tensor: its features and the intercept.
  uint64_t tensor_dimension() const { return values_.size(); }

  /// Returns the parameters over `scale()`. An update is applied by values[i] += step_scale * sum[i].
  std::span<float> values() { return values_; }
  std::span<const float> values() const { return values_; }
  float scale() const { return scale_; }
  void set_scale(float scale) { scale_ = scale; }

  /// Returns how its training rows write classes and features. Held-out rows are read the same way. Empty: a file of an
  /// earlier version does not say it.
  const std::optional<TrainedOn>& trained_on() const { return trained_on_; }
  void set_trained_on(const TrainedOn& rows) { trained_on_ = rows; }

  double margin(const RowView& row) const;
  double weight(uint64_t index) const { return static_cast<double>(scale_) * static_cast<double>(values_[index]); }

 private:
  Loss loss_;
  float scale_ = 1;
  std::optional<TrainedOn> trained_on_;
  std::vector<float> values_;
};

/// Holds a mini-batch's gradient, and the model's quality on it.
struct BatchGradient {
  Stream gradient;      ///< of the mean loss: only touched features and the intercept, L2 not in it; empty without rows
  double loss_sum = 0;  ///< over the rows
};

/// Returns the gradient over `rows` (positions into `data`) at `model`.
///
/// Cost     O(non-zeros log non-zeros).
BatchGradient batch_gradient(const LinearModel& model, const Dataset& data, std::span<const uint32_t> rows);

/// Holds a model's quality on data.
struct Evaluation {
  uint64_t rows = 0;
  double mean_loss = 0;          ///< of the model's own loss
  double log_loss = 0;           ///< mean log(1 + exp(-y m)), for any loss
  double accuracy = 0;           ///< share with sign(m) = y; a margin of 0 counts as negative
  double average_precision = 0;  ///< see average_precision()
};
Evaluation evaluate(const LinearModel& model, const Dataset& data);

/// Returns the area under precision over recall as a step function, thresholds at the distinct scores: sum of
/// (R_n - R_(n-1)) P_n.
///
/// labels  -1 or +1. Without positives: 0. With a score that is NaN, as of a model that diverged: NaN.
/// Order   equal scores are one threshold.
double average_precision(std::span<const double> scores, std::span<const int8_t> labels);

}  // namespace millrace::training
