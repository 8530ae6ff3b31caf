#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/registry.h"
#include "worker/config/option_table.h"
#include "worker/config/option_text.h"
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

std::string reproducible_recipe(const OptimizerOptions& options) {
  if (!options.job.guarantees.reproducible) return {};
  const std::string grid = options.job.grid ? worker::grid_text(*options.job.grid) : "auto";
  return fmt::format(" reproducible grid={} reselect={}", grid, worker::reselect_text(reselect_of(options)));
}

}  // namespace

std::span<const OptimizerInfo> optimizers() { return training_registry().entries(); }

const OptimizerInfo* find_optimizer(std::string_view name) { return training_registry().with_name(name); }

OptimizerOptions default_options(const OptimizerInfo& optimizer) {
  const OptimizerDefaults& defaults = optimizer.defaults;
  OptimizerOptions options;
  options.algorithm = peer::find_algorithm(defaults.algorithm)->id;
  for (const auto& [name, text] : {std::pair("select", defaults.select), std::pair("codec_up", defaults.codec),
                                   std::pair("momentum", defaults.momentum)}) {
    const Status set = worker::set_option(options.job, name, text);
    MILLRACE_CHECK(set.has_value(), name, text);
  }
  options.codec_error = defaults.codec_error;
  return options;
}

std::string recipe_of(const OptimizerInfo& optimizer, const OptimizerOptions& options) {
  return fmt::format(
      "optimizer={} model={} lr={} schedule={} l2={} batch={} snapshot-every={} coordinates={} allgather={} order={} "
      "algorithm={} select={} threshold-period={} boundaries={},{} codec-up={} quantizer={} unbiased={} momentum={} "
      "clip={} staleness={} beta1={} beta2={} epsilon={} seed={}{}",
      optimizer.name, loss_name(options.loss), options.schedule.rate, rate_schedule_text(options.schedule), options.l2,
      options.batch_rows, options.snapshot_every, options.coordinates,
      options.allgather == AllgatherForm::kDense ? "dense" : "sparse",
      options.order == RowOrder::kFile ? "file" : "shuffled", peer::algorithm_info(options.algorithm).name,
      worker::selection_text(select_of(options)), options.thresholds_period, static_cast<int>(options.boundaries),
      options.boundaries_period, peer::wire_text(codec_of(options)), peer::wire_text(options.quantizer),
      options.job.contributions.unbiased, worker::momentum_text(momentum_of(options)), options.job.contributions.clip,
      staleness_of(options), options.beta1, options.beta2, options.epsilon, options.job.seed,
      reproducible_recipe(options));
}

std::string description_of(const OptimizerInfo& optimizer, const OptimizerOptions& options) {
  return fmt::format("train {} path={} servers={} job={}", recipe_of(optimizer, options), path_name(options.path),
                     fmt::join(options.me.shards, ","), options.job.name);
}

}  // namespace millrace::training
