#include <fmt/core.h>

#include <algorithm>
#include <expected>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "kernels/methods/methods.h"
#include "kernels/stream/stream.h"
#include "monitoring/http/secure/http_security.h"
#include "monitoring/standard_streams.h"
#include "protocol/address/host_port.h"
#include "protocol/files/atomic_file.h"
#include "worker/cli/commands.h"
#include "worker/cli/method.h"
#include "worker/cli/train_flags.h"
#include "worker/config/job_config.h"
#include "worker/export/worker_port.h"
#include "worker/program/interruption.h"
#include "worker/program/json_text.h"
#include "worker/program/memory_room.h"
#include "worker/program/program.h"
#include "worker/program/progress.h"
#include "worker/training/data/libsvm.h"
#include "worker/training/model/model_file.h"
#include "worker/training/model/rate_schedule.h"
#include "worker/training/trainer.h"

namespace millrace::cli {

using program::ExitCode;
using program::fail_with;
using program::grouped;
using program::Outcome;
using training::Dataset;
using training::EpochReport;
using training::IndexBase;
using training::TrainOptions;

namespace {

/// Sets --threshold-period, or refuses a period that the job cannot have, or that is given twice; replaces a method's
/// own. A switch and reproducible jobs select in every step, by the counts of the step before.
Outcome set_threshold_period(TrainFlags& flags) {
  protocol::JobSpec& job = flags.draft.spec;
  const uint32_t asked = flags.threshold_period;
  if (asked != 0 && job.reselect.reselect == protocol::Reselect::kNone) {
    return fail_with(ExitCode::kUsage,
                     "--threshold-period belongs to --reselect: without it workers get the whole sum, and there is no "
                     "threshold");
  }
  const bool is_of_reselect = !flags.draft.period_chosen;
  if (asked != 0 && is_of_reselect) {
    return fail_with(ExitCode::kUsage, fmt::format("--threshold-period {} and --reselect {}: give one period", asked,
                                                   flags.given["reselect"]));
  }
  if (!job.reproducible && job.path == protocol::Path::kServer) {
    if (asked != 0) job.reselect.threshold_period = asked;
    return {};
  }
  if (asked > 1 || (is_of_reselect && job.reselect.threshold_period != 1)) {
    return fail_with(ExitCode::kUsage,
                     fmt::format("{}: a switch and --reproducible cut every step by the counts of the step before; "
                                 "leave the period out",
                                 asked > 1 ? "--threshold-period" : "--reselect " + flags.given["reselect"]));
  }
  job.reselect.threshold_period = 1;
  return {};
}

/// Checks flags that exclude each other.
Outcome check_flags(const TrainFlags& flags) {
  const TrainOptions& options = flags.options;
  const protocol::JobSpec& job = flags.draft.spec;
  if (std::string refusal = monitoring::refuse_http(flags.http, flags.http_security); !refusal.empty())
    return fail_with(ExitCode::kUsage, std::move(refusal));
  if (options.learning_rate * options.l2 >= 1) {
    return fail_with(ExitCode::kUsage, "--lr times --l2 must be below 1: one step would shrink the weights to nothing");
  }
  if (job.store.begin == StoreBegin::kWorker) {
    return fail_with(ExitCode::kUsage, "--store-begin worker: this command places no weights; give zeros or saved");
  }
  if (job.has_store() && (flags.rate_given || options.l2 > 0)) {
    return fail_with(ExitCode::kUsage,
                     "--lr, --lr-schedule and --l2 are applied by workers, and with --store the servers change the "
                     "weights: the rate is the store's, as sgd:0.1");
  }
  if (job.has_store() && job.initial_weights != InitialWeights::kOwn) {
    return fail_with(
        ExitCode::kUsage,
        "--initial-weights is about weights that workers hold, and with --store they pull the weights of a "
        "batch: to continue a run give --store-begin saved");
  }
  if (flags.density > 0 && flags.given.contains("select")) {
    return fail_with(
        ExitCode::kUsage,
        "--density is short for --select topk:DENSITY (with --method, of its selection); give one of them");
  }
  if (options.curve_every > 0 && flags.test_path.empty()) {
    return fail_with(ExitCode::kUsage,
                     "--curve-every is the held-out loss over rounds; --test names the held-out rows");
  }
  return {};
}

/// Sets what --method, --density and their like stand for.
Outcome set_compression(TrainFlags& flags) {
  protocol::JobSpec& job = flags.draft.spec;
  if (flags.threshold_period != 0) flags.given["threshold_period"] = fmt::format("{}", flags.threshold_period);
  if (!flags.codec_error.empty()) flags.given["codec_error"] = flags.codec_error;
  if (!flags.method.empty()) {
    if (Outcome set = apply_method(flags.method, flags.density, flags.given, flags.draft); !set) return set;
    flags.density = 0;
  }
  if (flags.dense && (flags.density > 0 || job.select.selection != SelectionId::kNone)) {
    return fail_with(ExitCode::kUsage, "--dense sends every parameter; it cannot select");
  }
  if (flags.density > 0) job.select = {.selection = SelectionId::kTopK, .density = flags.density};
  if (!flags.codec_error.empty()) {
    job.codec_error = flags.codec_error == "drop" ? CodecError::kDrop : CodecError::kRetain;
  } else if (job.unbiased) {
    job.codec_error = CodecError::kDrop;  // there is no residual to retain it in
  }
  return set_threshold_period(flags);
}

Outcome complete(TrainFlags& flags) {
  TrainOptions& options = flags.options;
  const auto schedule = training::rate_schedule_from_text(flags.schedule, options.learning_rate);
  if (!schedule) return fail_with(schedule.error());
  options.schedule = *schedule;
  if (Outcome valid = check_flags(flags); !valid) return valid;
  if (Outcome done = set_compression(flags); !done) return done;
  auto servers = protocol::parse_server_addresses(flags.servers);
  if (!servers) return fail_with(servers.error());
  options.me.shards = std::move(*servers);
  const auto loss = training::loss_by_name(flags.model);
  if (!loss) return fail_with(loss.error());
  options.loss = *loss;
  if (flags.dense) options.form = training::GradientForm::kDense;
  options.me.log = [&flags](LogLevel level, std::string_view line) {
    if (level == LogLevel::kError) {
      flags.errors.add(line);
    } else if (flags.verbose) {
      monitoring::say(fmt::format("millrace train: {}", line));
    }
  };
  auto job = worker::config_of(flags.draft);
  if (!job) return fail_with(ExitCode::kUsage, job.error().message);
  options.job = std::move(*job);
  return training::check_job(options, flags.dimension);
}

void print_head() {
  fmt::print("{:>5} {:>7} {:>9} {:>9} {:>9} {:>12} {:>12} {:>9} {:>9} {:>9}\n", "epoch", "steps", "loss", "held-out",
             "accuracy", "bytes up", "bytes down", "seconds", "waiting", "network");
}

void print_epoch(const EpochReport& epoch) {
  const auto held_out = [&](double value) { return epoch.evaluated ? fmt::format("{:.5f}", value) : std::string("-"); };
  fmt::print("{:>5} {:>7} {:>9.5f} {:>9} {:>9} {:>12} {:>12} {:>9.2f} {:>9.2f} {:>9.2f}\n", epoch.epoch, epoch.steps,
             epoch.loss, held_out(epoch.held_out.mean_loss), held_out(epoch.held_out.accuracy), grouped(epoch.bytes_up),
             grouped(epoch.bytes_down), epoch.seconds, epoch.blocked_s, epoch.communication_s);
  if (epoch.non_finite_dropped > 0) {
    fmt::print("      {} values of gradients were NaN or infinite and are left out (--non-finite drop)\n",
               grouped(epoch.non_finite_dropped));
  }
}

nlohmann::json epoch_json(const EpochReport& epoch) {
  nlohmann::json json = {{"epoch", epoch.epoch},
                         {"steps", epoch.steps},
                         {"loss", epoch.loss},
                         {"bytes_up", epoch.bytes_up},
                         {"bytes_down", epoch.bytes_down},
                         {"entries_up", epoch.entries_up},
                         {"non_finite_dropped", epoch.non_finite_dropped},
                         {"seconds", epoch.seconds},
                         {"blocked_s", epoch.blocked_s},
                         {"communication_s", epoch.communication_s}};
  if (epoch.evaluated) {
    json["held_out"] = {{"loss", epoch.held_out.mean_loss},
                        {"log_loss", epoch.held_out.log_loss},
                        {"accuracy", epoch.held_out.accuracy},
                        {"average_precision", epoch.held_out.average_precision}};
  }
  return json;
}

nlohmann::json curve_json(const std::vector<training::CurvePoint>& points) {
  nlohmann::json curve = nlohmann::json::array();
  for (const training::CurvePoint& point : points) {
    curve.push_back({{"round", point.round},
                     {"seconds", point.seconds},
                     {"bytes_up", point.bytes_up},
                     {"bytes_down", point.bytes_down},
                     {"log_loss", point.log_loss}});
  }
  return curve;
}

nlohmann::json audit_json(const AuditStats& audit) {
  return {{"entered", audit.entered},     {"residual", audit.residual}, {"in_flight", audit.in_flight},
          {"carried", audit.carried},     {"lost", audit.lost},         {"rounded_off", audit.rounded_off},
          {"imbalance", audit.imbalance}, {"checks", audit.checks}};
}

void print_audit(const AuditStats& audit) {
  fmt::print("audit: entered {:.6g} = residual {:.6g} + in flight {:.6g} + carried {:.6g} + lost {:.6g}; {}\n",
             audit.entered, audit.residual, audit.in_flight, audit.carried, audit.lost,
             audit.imbalance == 0 ? "nothing is missing"
                                  : fmt::format("mismatch of {:.6g}: please report it as a bug", audit.imbalance));
}

nlohmann::json run_json(const TrainFlags& flags, const training::TrainResult& result) {
  nlohmann::json rows = nlohmann::json::array();
  uint64_t steps = 0;
  uint64_t up = 0;
  uint64_t down = 0;
  for (const EpochReport& epoch : result.epochs) {
    rows.push_back(epoch_json(epoch));
    steps += epoch.steps;
    up += epoch.bytes_up;
    down += epoch.bytes_down;
  }
  nlohmann::json json = {{"train", flags.options.job.name},
                         {"worker", flags.options.me.worker},
                         {"workers", flags.options.job.workers},
                         {"workers_missing", result.workers_missing},
                         {"dimension", result.model.dimension()},
                         {"steps", steps},
                         {"rounds", result.rounds},
                         {"contributions", result.contributions},
                         {"rounds_per_s", result.rounds_per_s},
                         {"bytes_up", up},
                         {"bytes_down", down},
                         {"dense_bytes", result.dense_bytes},
                         {"history_bytes_saved", result.history_bytes_saved},
                         {"epochs", rows}};
  if (result.audit.audits) json["audit"] = audit_json(result.audit);
  json["path"] = std::holds_alternative<SwitchPath>(flags.options.job.path) ? "switch" : "server";
  if (result.by_switch.used) json["switch"] = worker::switch_json(result.by_switch);
  if (!result.curve.empty()) json["curve"] = curve_json(result.curve);
  return json;
}

/// Hands the run's session to the port's threads while it is there.
struct SharedSession {
  std::mutex mutex;
  Session* session = nullptr;

  Result<std::string> trace(std::string_view query) {
    const std::lock_guard lock(mutex);
    if (session == nullptr)
      return fail(ErrorCode::kUnavailable, "this worker has not joined its job yet, or has left it");
    try {
      return session->trace(query);
    } catch (const JobError& error) {
      return fail(static_cast<ErrorCode>(error.code()), error.what());
    }
  }
};

/// The status port, where --http asks for one, fed by the run.
Outcome open_port(TrainFlags& flags, std::unique_ptr<worker::WorkerPort>& port) {
  TrainOptions& options = flags.options;
  if (flags.http.empty()) return {};
  auto protection = monitoring::open_http_protection(flags.http, flags.http_security);
  if (!protection) return fail_with(protection.error());
  const auto shared = std::make_shared<SharedSession>();
  auto started = worker::WorkerPort::start(
      flags.http, "--http", {options.job.name, options.me.worker, options.job.workers},
      {.stats = {}, .unhealthy = {}, .trace = [shared](std::string_view query) { return shared->trace(query); }},
      std::move(*protection));
  if (!started) return fail_with(started.error());
  port = std::move(*started);
  options.on_session = [shared](Session* session) {
    const std::lock_guard lock(shared->mutex);
    shared->session = session;
  };
  options.on_step = [at = port.get()](double seconds) { at->step_done(seconds); };
  options.on_stats = [at = port.get()](const Stats& stats) { at->update(stats); };
  if (!flags.json) fmt::print("status: port {}\n", port->port());
  return {};
}

/// Tries to write the files that the end of training writes, and opens the status port. So errors show now, not after
/// hours of training.
Outcome prepare_outputs(TrainFlags& flags, std::unique_ptr<worker::WorkerPort>& port) {
  const bool writes_model = !flags.output.empty() && flags.options.me.worker == 0;
  for (const std::string& path : {writes_model ? flags.output : std::string(), flags.options.state_path}) {
    if (path.empty()) continue;
    if (Status can = files::try_to_write(path); !can) return fail_with(can.error());
  }
  return open_port(flags, port);
}

/// Holds the rows for training, and those for the measurement of the model.
struct TrainRows {
  Dataset train;
  std::optional<Dataset> test;
};

/// Returns what makes the model as large as it is: the option, or the line of the file.
std::string size_text(const TrainFlags& flags, const Dataset& data) {
  if (flags.dimension > 0) return fmt::format("--dimension {}", flags.dimension);
  const uint64_t feature = data.dimension - (data.index_base == IndexBase::kZero ? 1 : 0);
  return fmt::format("{}:{}: its feature {} is the largest", flags.train_path, data.largest_index_line, feature);
}

Status check_room(const TrainFlags& flags, const Dataset& data) {
  if (data.dimension >= kDimensionMax) {
    return fail(ErrorCode::kLimitExceeded,
                flags.train_path + ": features above 2^32 - 1 leave no room for the intercept");
  }
  return program::check_model_fits(size_text(flags, data), data.dimension, program::memory_available_bytes());
}

Result<TrainRows> read_training_rows(const TrainFlags& flags) {
  const auto read = [](const std::string& path, training::LibsvmOptions how) {
    program::Progress progress("reading " + path, "rows");
    how.progress = progress.callback();
    return training::read_libsvm(path, how);
  };
  auto train = read(flags.train_path, {.dimension = flags.dimension,
                                       .part = flags.options.me.worker,
                                       .parts = flags.options.job.workers,
                                       .index_base = flags.index_base == 0 ? IndexBase::kZero : IndexBase::kOne});
  if (!train) return std::unexpected(train.error());
  if (Status fits = check_room(flags, *train); !fits) return std::unexpected(fits.error());
  TrainRows rows{std::move(*train), std::nullopt};
  if (flags.test_path.empty()) return rows;
  auto test = read(flags.test_path, {.dimension = rows.train.dimension,
                                     .index_base = rows.train.index_base,
                                     .use = training::RowUse::kHeldOut,
                                     .trained_pair = rows.train.label_pair});
  if (!test) return std::unexpected(test.error());
  rows.test = std::move(*test);
  return rows;
}

void print_training_rows(const TrainFlags& flags, const TrainRows& rows) {
  const Dataset& data = rows.train;
  fmt::print("worker {} of {}: {} of {} rows, {} features; {}\n", flags.options.me.worker, flags.options.job.workers,
             grouped(data.rows()), grouped(data.rows_in_file), grouped(data.dimension),
             training::label_pair_text(data.label_pair));
  if (rows.test && rows.test->entries_left_out > 0)
    fmt::print("{}", training::left_out_text(flags.test_path, *rows.test));
  print_head();
}

/// Trains. Reports memory that runs out later than check_room() foresaw as a fault of the data's size, too.
std::expected<training::TrainResult, program::Failure> train_rows(
    const TrainFlags& flags, const TrainRows& rows, const std::function<void(const EpochReport&)>& on_epoch) {
  // Until here nothing is held that an end at once would leave behind.
  const std::atomic<bool>& stop = program::interruption_flag();
  try {
    return training::train(flags.options, rows.train, rows.test ? &*rows.test : nullptr, on_epoch, stop);
  } catch (const std::bad_alloc&) {
    return fail_with(program::out_of_memory_in_training(size_text(flags, rows.train), rows.train.dimension));
  }
}

Outcome run_train(TrainFlags& flags) {
  if (Outcome outcome = complete(flags); !outcome) return outcome;
  const TrainOptions& options = flags.options;
  std::unique_ptr<worker::WorkerPort> port;
  if (Outcome outcome = prepare_outputs(flags, port); !outcome) return outcome;
  const auto rows = read_training_rows(flags);
  if (!rows) return fail_with(rows.error());
  if (!flags.json) print_training_rows(flags, *rows);
  const auto on_epoch = [&](const EpochReport& epoch) {
    if (!flags.json) print_epoch(epoch);
  };
  flags.options.on_return = [&](const std::string& line) {
    monitoring::say(fmt::format("millrace train: worker {}: {}", options.me.worker, line));
  };
  flags.options.on_model = [&](const training::LinearModel& model) -> Outcome {
    if (flags.output.empty() || options.me.worker != 0) return {};
    if (Status status = training::write_model(flags.output, model); !status) return fail_with(status.error());
    return {};
  };
  const auto result = train_rows(flags, *rows, on_epoch);
  flags.errors.print_but(result ? "" : result.error().message);
  if (!result) return std::unexpected(result.error());
  if (!flags.output.empty() && options.me.worker == 0 && !flags.json) fmt::print("model: {}\n", flags.output);
  if (result->audit.audits && !flags.json) print_audit(result->audit);
  if (flags.json) {
    nlohmann::json json = run_json(flags, *result);
    if (rows->test) json["held_out_entries_left_out"] = rows->test->entries_left_out;
    fmt::print("{}\n", program::json_text(json));
  }
  return training::check_workers_at_end(options, result->workers_missing);
}

}  // namespace

Outcome check_train_arguments(std::vector<std::string> arguments) {
  CLI::App app;
  TrainFlags flags;
  add_train_flags(app, flags);
  std::ranges::reverse(arguments);  // the parser takes them from the end
  try {
    app.parse(std::move(arguments));
  } catch (const CLI::ParseError& error) {
    return fail_with(ExitCode::kUsage, error.what());
  }
  return complete(flags);
}

program::Command add_train_command(CLI::App& root) {
  auto flags = std::make_shared<TrainFlags>();
  CLI::App* app = program::add_command(root, "train", "trains a linear model through servers: one process a worker");
  add_train_flags(*app, *flags);
  app->footer(
      "Servers first (millrace serve), then every worker with the same flags but --worker. Columns: loss is the mean "
      "over the\n"
      "rows as they were trained on, held-out the loss on --test; waiting is the time this worker waited for updates, "
      "network\n"
      "the time from a step's first byte out to its update complete (steps in flight overlap).\n\n"
      "A worker that is killed, or that was removed from the job, rejoins: with --state by the same command. It takes\n"
      "over the others' weights where it has missed steps, and trains from the job's present step on; its residual is "
      "in its\n"
      "state. A server that is killed is started again by its command: the workers retain the updates that it "
      "needs.\n\n"
      "Examples:\n"
      "  millrace serve --shards 2 &\n"
      "  for w in 0 1 2 3; do\n"
      "    millrace train --train debian.svm.gz --test debian.test.svm.gz --servers 127.0.0.1:7600,127.0.0.1:7601 \\\n"
      "      --worker $w --workers 4 --codec-up gap+qsgd4 --select topk:0.00003 --lr 2 -o debian.model &\n"
      "  done; wait\n"
      "  # SVRG, its differences drawn by GSpar: the same in every worker, with\n"
      "  #   --optimizer svrg --unbiased --select gspar:0.1 --lr 2\n"
      "  millrace eval --model-file debian.model --test debian.test.svm.gz\n\n" +
      method_table() + '\n' + program::exit_code_table());
  return {app, [flags] { return run_train(*flags); }};
}

}  // namespace millrace::cli
