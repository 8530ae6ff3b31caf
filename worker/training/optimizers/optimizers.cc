#include <fmt/format.h>
#include <fmt/ranges.h>

#include "kernels/base/registry.h"
#include "worker/config/selection_text.h"
#include "worker/peer/channel/stream_wire.h"
#include "worker/training/optimizers/optimizer_list.h"

namespace millrace::training {
namespace {

const auto& training_registry() {
#define MILLRACE_LISTED(word) word##_optimizer(),
  static const Registry registry = {MILLRACE_TRAINING_OPTIMIZERS(MILLRACE_LISTED)};
#undef MILLRACE_LISTED
  return registry;
}

}  // namespace

std::span<const OptimizerInfo> optimizers() { return training_registry().entries(); }

const OptimizerInfo* find_optimizer(std::string_view name) { return training_registry().with_name(name); }

OptimizerOptions default_options(const OptimizerInfo& optimizer) {
  const OptimizerDefaults& defaults = optimizer.defaults;
  OptimizerOptions options;
  options.algorithm = peer::find_algorithm(defaults.algorithm)->id;
  options.select = selection_from_text(defaults.select).value();
  if (defaults.codec != "raw") options.codec = codec_from_text(defaults.codec).value();
  options.momentum = defaults.momentum;
  options.codec_error = defaults.codec_error;
  return options;
}

std::string recipe_of(const OptimizerInfo& optimizer, const OptimizerOptions& options) {
  return fmt::format(
      "optimizer={} model={} lr={} schedule={} l2={} batch={} snapshot-every={} coordinates={} allgather={} order={} "
      "algorithm={} select={} threshold-period={} boundaries={},{} codec={} quantizer={} unbiased={} momentum={} "
      "clip={} asynchronous={} beta1={} beta2={} epsilon={} seed={}{}",
      optimizer.name, loss_name(options.loss), options.schedule.rate, rate_schedule_text(options.schedule), options.l2,
      options.batch_rows, options.snapshot_every, options.coordinates,
      options.allgather == AllgatherForm::kDense ? "dense" : "sparse",
      options.order == RowOrder::kFile ? "file" : "shuffled", peer::algorithm_info(options.algorithm).name,
      worker::selection_text(options.select), options.thresholds_period, static_cast<int>(options.boundaries),
      options.boundaries_period, peer::wire_text(options.codec), peer::wire_text(options.quantizer), options.unbiased,
      options.momentum, options.clip, options.asynchronous, options.beta1, options.beta2, options.epsilon, options.seed,
      options.reproducible ? fmt::format(" reproducible grid={} reselect={}", options.grid, options.reselect) : "");
}

std::string description_of(const OptimizerInfo& optimizer, const OptimizerOptions& options) {
  return fmt::format("train {} path={} servers={} job={}", recipe_of(optimizer, options), path_name(options.path),
                     fmt::join(options.servers, ","), options.job);
}

}  // namespace millrace::training
