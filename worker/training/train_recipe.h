#pragma once

#include <string>

#include "worker/training/data/dataset.h"
#include "worker/training/trainer.h"

namespace millrace::training {

/// Returns JobConfig::recipe of a training job. It has every option that affects a worker's weights or the rows that
/// it reads, and a hash of the rows. The options in the job's specification are not in it. Each value has one form.
///
/// data  of the whole file come rows_in_file and content_hash; the worker's own share is ignored.
std::string train_recipe(const TrainOptions& options, const Dataset& data);

}  // namespace millrace::training
