#pragma once

#include <string>

#include "worker/training/data/dataset.h"
#include "worker/training/trainer.h"

namespace millrace::cli {

/// Returns JobOptions::recipe of a training job: every option that changes what a worker does to its weights or which
/// rows it reads, and a hash of the rows, except the options that the job's specification has. Each value has one
/// form.
///
/// data  of the whole file come rows_in_file and content_hash; the worker's own share is not looked at.
std::string train_recipe(const TrainOptions& options, const Dataset& data);

}  // namespace millrace::cli
