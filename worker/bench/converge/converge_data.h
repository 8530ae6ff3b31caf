#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "kernels/base/result.h"
#include "worker/bench/converge/converge.h"

namespace millrace::bench {

/// Names two LIBSVM files of one task.
struct TrainingData {
  std::string name;  ///< for people: "w8a.svm.gz"
  std::string train;
  std::string held_out;
  uint64_t dimension = 0;
};

/// Returns the data that options.data names, in options.folder. What takes long to make is kept there and taken again.
///
/// Errors  as the readers' and makers'; io: nothing is at that path.
Result<TrainingData> training_data(const ConvergeOptions& options, const std::function<void(const std::string&)>& say);

}  // namespace millrace::bench
