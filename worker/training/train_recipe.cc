#include "worker/training/train_recipe.h"

#include <fmt/format.h>

#include "worker/training/model/rate_schedule.h"

namespace millrace::training {

std::string train_recipe(const TrainOptions& options, const Dataset& data) {
  return fmt::format(
      "program=train model={} gradient={} optimizer={} snapshot-every={} lr={} lr-schedule={} l2={} batch={} epochs={} "
      "steps={} rounds={} index-base={} rows={} data={:016x}",
      loss_name(options.loss), options.form == GradientForm::kDense ? "dense" : "sparse",
      train_optimizer_name(options.optimizer), options.snapshot_every, options.learning_rate,
      rate_schedule_text(options.schedule), options.l2, options.batch_rows, options.epochs, options.steps_max,
      options.rounds_max, data.index_base == IndexBase::kZero ? 0 : 1, data.rows_in_file, data.content_hash);
}

}  // namespace millrace::training
