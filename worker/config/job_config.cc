#include "worker/config/job_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/units.h"
#include "protocol/job/enum_words.h"
#include "protocol/job/job_spec_fields.h"
#include "protocol/job/job_spec_mode.h"
#include "protocol/job/job_spec_reproducible.h"
#include "worker/config/option_access.h"
#include "worker/config/option_table.h"
#include "worker/config/option_text.h"
#include "worker/config/worker_fields.h"

namespace millrace::worker {
namespace {

using protocol::Mode;

template <typename... Ts>
struct Cases : Ts... {
  using Ts::operator()...;
};

void set_decision(const StepDecision& decision, protocol::JobSpec& spec) {
  spec.quorum = decision.contributions();
  spec.deadline = decision.time();
}

void set_consistency(const Consistency& consistency, protocol::JobSpec& spec) {
  std::visit(Cases{[&](const Synchronous& how) {
                     spec.mode = Mode::kSynchronous;
                     spec.staleness = how.staleness;
                   },
                   [&](const BoundedStaleness& how) {
                     spec.mode = Mode::kBoundedStaleness;
                     spec.staleness = how.staleness;
                     set_decision(how.decision, spec);
                   },
                   [&](const Partial& how) {
                     spec.mode = Mode::kPartial;
                     spec.staleness = how.staleness;
                     set_decision(how.decision, spec);
                   },
                   [&](const Participants& how) {
                     spec.mode = Mode::kPartial;
                     spec.participants = how.drawn;
                     if (how.decision) set_decision(*how.decision, spec);
                   },
                   [&](const Asynchronous& how) {
                     spec.mode = Mode::kAsynchronous;
                     spec.staleness = how.staleness;
                   }},
             consistency);
}

OptimizerSpec spec_of_rule(const decltype(Store::rule)& rule) {
  return std::visit(
      Cases{[](const optimizer::Sgd& sgd) { return OptimizerSpec{.optimizer = Optimizer::kSgd, .rate = sgd.rate}; },
            [](const optimizer::Momentum& momentum) {
              return OptimizerSpec{
                  .optimizer = Optimizer::kMomentum, .rate = momentum.rate, .momentum = momentum.momentum};
            },
            [](const optimizer::Adagrad& adagrad) {
              return OptimizerSpec{.optimizer = Optimizer::kAdagrad, .rate = adagrad.rate, .epsilon = adagrad.epsilon};
            },
            [](const optimizer::Adam& adam) {
              return OptimizerSpec{.optimizer = Optimizer::kAdam,
                                   .rate = adam.rate,
                                   .momentum = adam.beta1,
                                   .decay = adam.beta2,
                                   .epsilon = adam.epsilon};
            },
            [](const optimizer::Numbered& other) {
              return OptimizerSpec{.optimizer = static_cast<Optimizer>(other.number.get()),
                                   .rate = other.rate,
                                   .momentum = other.momentum,
                                   .decay = other.decay,
                                   .epsilon = other.epsilon};
            }},
      rule);
}

std::optional<Store> store_of(const protocol::StoreSpec& spec) {
  const OptimizerSpec& rule = spec.optimizer;
  switch (rule.optimizer) {
    case Optimizer::kNone: return std::nullopt;
    case Optimizer::kSgd: return Store{optimizer::Sgd{rule.rate}, spec.begin};
    case Optimizer::kMomentum: return Store{optimizer::Momentum{rule.rate, rule.momentum}, spec.begin};
    case Optimizer::kAdagrad: return Store{optimizer::Adagrad{rule.rate, rule.epsilon}, spec.begin};
    case Optimizer::kAdam:
      return Store{optimizer::Adam{rule.rate, rule.momentum, rule.decay, rule.epsilon}, spec.begin};
  }
  const optimizer::Numbered other{static_cast<uint8_t>(rule.optimizer), rule.rate, rule.momentum, rule.decay,
                                  rule.epsilon};
  return Store{other, spec.begin};
}

void set_switch(const SwitchPath& path, JobDraft& draft) {
  protocol::SwitchSpec& at = draft.spec.switch_path;
  draft.spec.path = protocol::Path::kSwitch;
  at.address = path.address.get();
  at.job = path.job;
  at.slots = path.slots;
  at.lanes = path.lanes;
  at.packet_bytes_max = path.packet_bytes;
  at.return_after = path.return_after;
  draft.switch_codec_chosen = !path.codec;
  if (!path.codec) return;
  at.index = static_cast<protocol::WindowIndexCodec>(path.codec->index);
  at.value = static_cast<protocol::WindowValueCodec>(path.codec->value);
}

/// Gives the options that are "auto" their values.
protocol::JobSpec resolved(JobDraft draft) {
  protocol::JobSpec& spec = draft.spec;
  if (draft.grid_chosen) spec.grid = spec.reproducible ? protocol::kReproducibleGrid : protocol::GridSpec{};
  // Integers of a reproducible job have the bits of an f32's, and a switch sends all of them.
  if (draft.switch_codec_chosen) {
    const bool exact = spec.reproducible && spec.path == protocol::Path::kSwitch;
    static_cast<protocol::SwitchCodecs&>(spec.switch_path) = {.value = exact ? protocol::WindowValueCodec::kFixed32
                                                                             : protocol::WindowValueCodec::kFixed16};
  }
  return std::move(spec);
}

/// Refuses an option without its owner.
///
/// present  the job's own, in the owner's place.
/// change   the change that gives the job the owner.
std::unexpected<Error> not_of(std::string_view option, std::string_view owner, std::string_view present,
                              std::string_view change) {
  return fail(
      ErrorCode::kInvalidArgument,
      fmt::format("{0} belongs to {1}, and this job has {2}: {3}, or leave {0} out", option, owner, present, change));
}

Result<Consistency> consistency_of(const protocol::JobSpec& spec) {
  if (const Status fits = protocol::check_mode_options(spec); !fits) return std::unexpected(fits.error());
  const StepDecision decision = StepDecision::quorum(spec.quorum).and_deadline(spec.deadline);
  switch (spec.mode) {
    case Mode::kSynchronous: return Synchronous{spec.staleness};
    case Mode::kBoundedStaleness: return BoundedStaleness{decision, spec.staleness};
    case Mode::kPartial: {
      if (spec.participants == 0) return Partial{decision, spec.staleness};
      const bool needs_all = spec.quorum == 0 && spec.deadline == std::chrono::milliseconds::zero();
      return Participants{spec.participants, needs_all ? std::nullopt : std::optional(decision)};
    }
    case Mode::kAsynchronous: return Asynchronous{spec.staleness};
  }
  return fail(ErrorCode::kUnsupported,
              fmt::format("mode {}: this version does not know the number", static_cast<unsigned>(spec.mode)));
}

/// Returns the name of the first option of the switch that is not as by default; empty: there is none.
std::string given_switch_option(const JobDraft& draft) {
  JobDraft given = draft;
  JobDraft untouched = draft_of(JobConfig{});
  const std::vector<Option> options = options_of(given);
  const std::vector<Option> defaults = options_of(untouched);
  for (size_t at = 0; at < options.size(); ++at) {
    if (options[at].name.starts_with("switch_") && options[at].text() != defaults[at].text()) return options[at].name;
  }
  return {};
}

Result<Path> path_of(const JobDraft& draft) {
  const protocol::SwitchSpec& at = draft.spec.switch_path;
  if (draft.spec.path == protocol::Path::kServer) {
    if (const std::string given = given_switch_option(draft); !given.empty()) {
      return not_of(given, "path switch", "path server", "set path switch");
    }
    return ServerPath{};
  }
  SwitchPath path{.address = at.address,
                  .job = at.job,
                  .slots = at.slots,
                  .lanes = at.lanes,
                  .packet_bytes = at.packet_bytes_max,
                  .return_after = at.return_after};
  if (!draft.switch_codec_chosen) {
    path.codec = {static_cast<SwitchIndex>(at.index), static_cast<SwitchValue>(at.value)};
  }
  return path;
}

Status check_grid_owner(const JobDraft& draft) {
  const bool has_grid = draft.spec.reproducible || draft.spec.path == protocol::Path::kSwitch;
  if (draft.grid_chosen || has_grid) return {};
  return not_of("grid", "path switch and reproducible jobs", "neither", "choose one of them");
}

template <typename To, typename From>
std::optional<To> override_of(const std::optional<From>& given) {
  return given ? std::optional<To>(OptionAccess::spec_of(*given)) : std::nullopt;
}

protocol::TensorSpec tensor_of(const TensorOptions& options) {
  return {.name = options.name,
          .dimension = options.dimension,
          .priority = options.priority,
          .select = override_of<SelectionSpec>(options.select),
          .reselect = override_of<protocol::ReselectSpec>(options.reselect),
          .codec_up = override_of<CodecSpec>(options.codec_up),
          .codec_down = override_of<CodecSpec>(options.codec_down)};
}

/// Removes quantization from the tensor's settings: alternating signs and lossy codecs.
void keep_values(const protocol::JobSpec& spec, protocol::TensorSpec& tensor) {
  SelectionSpec select = tensor.select.value_or(spec.select);
  select.alternate_signs = false;
  tensor.select = select;
  tensor.codec_up = without_loss(tensor.codec_up.value_or(spec.codec_up));
  tensor.codec_down = without_loss(tensor.codec_down.value_or(spec.codec_down));
}

/// Looks for a duration, or a real number, out of its option's limits.
struct WorkerLimits {
  Status valid;

  void option(const protocol::OptionInfo& info, std::chrono::milliseconds value) {
    take(info, check_option_limits(info, fmt::format("{}ms", value.count()), value));
  }
  void option(const protocol::OptionInfo& info, double value) {
    take(info, check_option_limits(info, fmt::format("{}", value), value));
  }
  template <typename T>
  void option(const protocol::OptionInfo&, const T&) {}

 private:
  void take(const protocol::OptionInfo& info, const Status& check) {
    if (valid && !check) valid = fail(check.error().code, fmt::format("{}: {}", info.name, check.error().message));
  }
};

/// Checks this worker's own options, which the specification does not have.
Status check_worker(const JobConfig& job, const WorkerConfig& worker) {
  if (worker.worker >= job.workers) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("worker {} of {} workers: workers count from 0", worker.worker, job.workers));
  }
  if (const auto* draws = std::get_if<Participants>(&job.consistency); draws && draws->drawn == 0U)
    return fail(ErrorCode::kInvalidArgument, "participants 0: draw at least one worker for a step, or choose Partial");
  const bool by_server = std::holds_alternative<ServerPath>(job.path);
  if (job.guarantees.reproducible && by_server && (worker.returns || !worker.load_path.empty())) {
    return fail(
        ErrorCode::kUnsupported,
        fmt::format("{} in a reproducible job: the exponents of its grid are in no file of save() and no snapshot; "
                    "start the job again, from the weights of the last run, and where the program saved them from "
                    "residuals, velocities and retained() of all workers",
                    worker.returns ? "returns" : "load_path"));
  }
  if (by_server && !worker.rack.empty()) {
    return fail(ErrorCode::kInvalidArgument, "rack belongs to path switch: set the job's path, or leave rack out");
  }
  WorkerLimits limits;
  visit_worker(limits, worker);
  if (!limits.valid) return limits.valid;
  if (worker.shards.empty()) {
    return fail(ErrorCode::kInvalidArgument, "no shards: give at least one \"host:port\"");
  }
  return {};
}

/// Refuses a time at which the session would end before it replaces a connection that may be half open.
Status check_shard_silence(std::chrono::milliseconds silence, std::chrono::milliseconds heartbeat) {
  constexpr std::chrono::milliseconds kReplacedAfterMin{2'000};
  const std::chrono::milliseconds replaced_after = std::max(4 * heartbeat, kReplacedAfterMin);
  if (silence > replaced_after) return {};
  const auto text = [](std::chrono::milliseconds time) { return duration_text(TimeNs{time.count()} * kNsPerMs); };
  return fail(
      ErrorCode::kInvalidArgument,
      fmt::format("shard_silence {} with heartbeat {}: a silent connection is replaced after {}, and the session "
                  "would end first; raise shard_silence or lower heartbeat",
                  text(silence), text(heartbeat), text(replaced_after)));
}

}  // namespace

JobDraft draft_of(const JobConfig& job) {
  JobDraft draft;
  protocol::JobSpec& spec = draft.spec;
  static_cast<Contributions&>(spec) = job.contributions;
  static_cast<Updates&>(spec) = job.updates;
  static_cast<Guarantees&>(spec) = job.guarantees;
  static_cast<Liveness&>(spec) = job.liveness;
  static_cast<Layout&>(spec) = job.layout;
  spec.name = job.name;
  spec.workers = job.workers;
  spec.workers_min = job.workers_min;
  spec.seed = job.seed;
  spec.recipe = job.recipe;
  set_consistency(job.consistency, spec);
  spec.select = OptionAccess::spec_of(job.select);
  spec.reselect = OptionAccess::spec_of(job.reselect);
  draft.period_chosen = spec.reselect.threshold_period == 1;
  spec.codec_up = OptionAccess::spec_of(job.codec_up);
  spec.codec_down = OptionAccess::spec_of(job.codec_down);
  spec.momentum = OptionAccess::spec_of(job.momentum);
  if (const auto* path = std::get_if<SwitchPath>(&job.path)) set_switch(*path, draft);
  draft.grid_chosen = !job.grid;
  if (job.grid) spec.grid = *job.grid;
  if (job.store) spec.store = {.optimizer = spec_of_rule(job.store->rule), .begin = job.store->begin};
  return draft;
}

Result<JobConfig> config_of(const JobDraft& draft) {
  const protocol::JobSpec& spec = draft.spec;
  auto consistency = consistency_of(spec);
  if (!consistency) return std::unexpected(consistency.error());
  auto path = path_of(draft);
  if (!path) return std::unexpected(path.error());
  if (const Status fits = check_grid_owner(draft); !fits) return std::unexpected(fits.error());
  auto store = store_of(spec.store);
  if (!store && spec.store.begin != StoreBegin::kZeros) return not_of("store_begin", "a store", "none", "set store");
  return JobConfig{.name = spec.name,
                   .workers = spec.workers,
                   .workers_min = spec.workers_min,
                   .consistency = *consistency,
                   .select = OptionAccess::selection_of(spec.select),
                   .reselect = OptionAccess::reselect_of(spec.reselect),
                   .codec_up = OptionAccess::codec_of(spec.codec_up),
                   .codec_down = OptionAccess::codec_of(spec.codec_down),
                   .momentum = OptionAccess::momentum_of(spec.momentum),
                   .contributions = protocol::fields::base_of<Contributions>(spec),
                   .updates = protocol::fields::base_of<Updates>(spec),
                   .guarantees = protocol::fields::base_of<Guarantees>(spec),
                   .liveness = protocol::fields::base_of<Liveness>(spec),
                   .layout = protocol::fields::base_of<Layout>(spec),
                   .seed = spec.seed,
                   .path = std::move(*path),
                   .grid = draft.grid_chosen ? std::nullopt : std::optional<Grid>(spec.grid),
                   .store = store,
                   .recipe = spec.recipe};
}

uint32_t staleness_of(const Consistency& consistency) {
  protocol::JobSpec spec;
  set_consistency(consistency, spec);
  return spec.staleness;
}

std::string_view consistency_name(const Consistency& consistency) {
  protocol::JobSpec spec;
  set_consistency(consistency, spec);
  return protocol::enum_word(spec.mode);
}

Result<protocol::JobSpec> job_spec_of(const JobConfig& job, const WorkerConfig& worker,
                                      std::span<const TensorOptions> tensors) {
  if (auto valid = check_worker(job, worker); !valid) return std::unexpected(valid.error());
  JobDraft draft = draft_of(job);
  if (const Status fits = check_grid_owner(draft); !fits) return std::unexpected(fits.error());
  protocol::JobSpec spec = resolved(std::move(draft));
  for (const TensorOptions& options : tensors) {
    protocol::TensorSpec tensor = tensor_of(options);
    if (options.output_layer) keep_values(spec, tensor);
    spec.tensors.push_back(std::move(tensor));
  }
  if (auto valid = protocol::validate(spec); !valid) return std::unexpected(valid.error());
  if (auto valid = check_shard_silence(worker.shard_silence, spec.heartbeat); !valid)
    return std::unexpected(valid.error());
  return spec;
}

}  // namespace millrace::worker
