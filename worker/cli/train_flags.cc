#include "worker/cli/train_flags.h"

#include <array>
#include <limits>
#include <string>
#include <string_view>

#include "kernels/base/clock.h"
#include "kernels/methods/methods.h"
#include "monitoring/command_line/http_flags.h"
#include "monitoring/command_line/quantity_flags.h"
#include "protocol/address/host_port.h"
#include "worker/program/flag_range.h"
#include "worker/program/option_flags.h"
#include "worker/training/model/model_flags.h"

namespace millrace::cli {

using program::in_range;
using program::not_empty;
using program::one_of;
using training::TrainOptions;

namespace {

void add_data_flags(CLI::App& app, TrainFlags& flags) {
  app.add_option("--train", flags.train_path,
                 "LIBSVM text, plain, .gz, .bz2 or .xz; this worker takes its share of the rows")
      ->required()
      ->type_name("FILE")
      ->check(not_empty());
  app.add_option(
         "--test", flags.test_path,
         "held-out rows, evaluated after every epoch: of one class or both, written as in --train; features that "
         "--train lacks are left out")
      ->type_name("FILE")
      ->check(not_empty());
  training::add_model_flags(app, flags.dimension, flags.index_base, flags.model);
  app.add_option("-o,--output", flags.output, "model file, written by worker 0 at the end")
      ->type_name("FILE")
      ->check(not_empty())
      ->group("Output");
}

/// Options that this command sets by itself, has in a form of its own, or that one tensor does not need.
constexpr std::array<std::string_view, 5> kJobLeftOut = {"workers_min", "combine", "codec_error", "fuse_below",
                                                         "recipe"};
constexpr std::array<std::string_view, 9> kWorkerLeftOut = {"shards",    "returns",           "load_path",
                                                            "save_path", "keep_freed_memory", "http",
                                                            "http_tls",  "http_token_file",   "http_insecure"};

void add_job_flags(CLI::App& app, TrainFlags& flags) {
  TrainOptions& options = flags.options;
  app.add_option("--servers", flags.servers, "host:port,host:port: one shard each, the same list at all workers")
      ->required()
      ->type_name("LIST")
      ->check(program::checked([](const std::string& text) { return protocol::parse_server_addresses(text); }))
      ->group("Job");
  app.add_option(
         "--workers-min", options.workers_min,
         "the job may end with this many of its workers: it ends early when fewer live, and is done (exit code 0) "
         "with the remaining ones (default: it continues with one, and ends with exit code 8 unless all were in "
         "it at the end)")
      ->check(in_range(1, 4096))
      ->group("Job");
  app.add_option("--http", flags.http, "this worker's /metrics, /healthz and /status; port 0 takes a free one")
      ->type_name("HOST:PORT")
      ->check(program::checked([](const std::string& text) { return protocol::parse_host_port(text); }))
      ->group("Output");
  const std::string group = app.option_defaults()->get_group();
  app.option_defaults()->group("Output");
  monitoring::add_http_port_flags(app, flags.http_security, monitoring::HelpCase::kSmall);
  app.option_defaults()->group(group);
  app.add_option("--state", options.state_path,
                 "file of this worker's state: begun with if it is there, saved while it trains and when the run ends "
                 "early, gone at the end; "
                 "with it a worker that was killed is started again by the same command")
      ->type_name("FILE")
      ->check(not_empty())
      ->group("Worker");
  app.add_option("--save-every", options.save_every,
                 "steps between two savings of --state; 0: only when the run ends early")
      ->capture_default_str()
      ->check(in_range(0, 1'000'000'000))
      ->group("Worker");
  worker::add_option_flags(app, flags.job, kJobLeftOut, flags.given);
  worker::add_option_flags(app, flags.me, kWorkerLeftOut, flags.given);
}

void add_compression_flags(CLI::App& app, TrainFlags& flags) {
  app.add_option("--method", flags.method,
                 "a paper's combination of the options that follow, which sets those that are not given: " +
                     method_names() + "; the list is below")
      ->check(not_empty())
      ->group("Compression");
  app.add_option("--density", flags.density,
                 "send this share of the parameters a step: --select topk:DENSITY, or what --method has")
      ->check(in_range(1e-9, 1.0))
      ->group("Compression");
  app.add_option("--threshold-period", flags.threshold_period,
                 "of --reselect: steps between exact global thresholds (Ok-Topk's tau'). 1: every update has the "
                 "largest entries of its own sum, "
                 "which costs shards half a round trip; more: between them a step is cut by the last one, to within "
                 "2 % of the count")
      ->default_str("1, with --method oktopk 32")
      ->check(in_range(1u, protocol::kThresholdPeriodMax))
      ->group("Compression");
  app.add_option("--codec-error", flags.codec_error, "a quantizer's error: retain it in the residual, or drop it")
      ->default_str("retain, with --unbiased drop")
      ->check(one_of({"retain", "drop"}))
      ->group("Compression");
  app.add_flag("--dense", flags.dense, "send every parameter in every step, for comparison")->group("Compression");
}

void add_descent_flags(CLI::App& app, TrainFlags& flags) {
  TrainOptions& options = flags.options;
  const auto given = [&flags](const std::string&) { flags.rate_given = true; };
  app.add_option(
         "--lr", options.learning_rate,
         "learning rate of a step of all workers; in mode asynchronous a contribution goes in with its share of it "
         "(a --store has a rate of its own, which is not divided)")
      ->capture_default_str()
      ->each(given)
      ->check(in_range(1e-12, 1e6));
  training::add_schedule_flag(app, flags.schedule, "t whole epochs on")->each(given);
  using training::TrainOptimizer;
  program::add_choice(
      app, "--optimizer", options.optimizer,
      program::choices_of({TrainOptimizer::kSgd, TrainOptimizer::kSvrg}, training::train_optimizer_name),
      "sgd; or svrg (mode synchronous): every --snapshot-every steps the workers sum the gradient of all rows "
      "exactly, in a second job JOB.snapshots; a step sends how much its rows' gradient differs from theirs at "
      "that snapshot");
  app.add_option("--snapshot-every", options.snapshot_every, "svrg: steps between two snapshots (default: an epoch's)")
      ->check(in_range(uint64_t{1}, std::numeric_limits<uint64_t>::max()));
  app.add_option("--epochs", options.epochs, "passes over the rows")
      ->capture_default_str()
      ->check(in_range(1, 1'000'000));
  app.add_option("--steps", options.steps_max, "end after this many steps (default: whole epochs)")
      ->check(in_range(uint64_t{1}, std::numeric_limits<uint64_t>::max()));
  app.add_option("--job-steps", options.rounds_max,
                 "end once this many steps of the job are in the weights, with this worker or without (default: never)")
      ->check(in_range(uint64_t{1}, std::numeric_limits<uint64_t>::max()));
  app.add_option("--curve-every", options.curve_every,
                 "steps of the job between two log-losses on --test, in --json; evaluated at the end, not by epochs")
      ->check(in_range(uint64_t{1}, std::numeric_limits<uint64_t>::max()));
  monitoring::add_duration(app, "--compute-time", monitoring::in_ms(options.compute_ms),
                           "let every gradient take at least this time: a slower machine, for measurements",
                           {.most = 60 * kNsPerS});
  app.add_option("--batch", options.batch_rows, "rows a worker and step")
      ->capture_default_str()
      ->check(in_range(1, 1 << 20));
  app.add_option("--l2", options.l2, "L2 regularisation, applied here and never sent; not on the intercept")
      ->capture_default_str()
      ->check(in_range(0.0, 1.0));
}

}  // namespace

TrainFlags::TrainFlags()
    : draft(worker::draft_of(options.job)), job(worker::options_of(draft)), me(worker::options_of(options.me)) {}

void add_train_flags(CLI::App& app, TrainFlags& flags) {
  app.option_defaults()->group("Data");
  add_data_flags(app, flags);
  add_job_flags(app, flags);
  add_compression_flags(app, flags);
  app.option_defaults()->group("Training");
  add_descent_flags(app, flags);
  app.add_flag("--json", flags.json, "one JSON object as the last line")->group("Output");
  app.add_flag("-v,--verbose", flags.verbose, "the session's log on stderr")->group("Output");
}

}  // namespace millrace::cli
