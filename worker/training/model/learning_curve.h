#pragma once

#include <cstdint>
#include <vector>

#include "worker/training/data/dataset.h"
#include "worker/training/model/linear_model.h"

namespace millrace::training {

/// Holds a worker's model after a number of rounds, and its costs until then.
struct CurvePoint {
  uint64_t round = 0;  ///< rounds of the job in this worker's weights
  double seconds = 0;  ///< of training
  uint64_t bytes_up = 0;
  uint64_t bytes_down = 0;
  double log_loss = 0;  ///< held out
};

/// Measures the held-out loss of a model while it is trained. An evaluation takes as long as many steps, and the job
/// would make those without a worker that paused for it. So it saves the weights that the held-out rows use, and
/// evaluates them when training is over.
///
/// Cost     a copy of the held-out data; for each point 4 bytes a feature that occurs in it.
/// Threads  one.
class LearningCurve {
 public:
  explicit LearningCurve(const Dataset& held_out);

  /// Puts the model aside as the next point, with its log-loss open.
  void take(const LinearModel& model, const CurvePoint& point);

  const std::vector<CurvePoint>& points() const { return points_; }

  /// Works out the log-loss of every point that was taken.
  std::vector<CurvePoint> evaluated() const;

 private:
  std::vector<uint32_t> features_;  ///< of the held-out rows, ascending
  Dataset rows_;                    ///< the held-out rows over features_
  std::vector<CurvePoint> points_;
  std::vector<std::vector<float>> weights_;  ///< [points][features_ and the intercept]
};

}  // namespace millrace::training
