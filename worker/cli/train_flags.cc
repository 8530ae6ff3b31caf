#include "worker/cli/train_flags.h"

#include <limits>
#include <string>

#include "kernels/codec/codec.h"
#include "kernels/methods/methods.h"
#include "kernels/select/select.h"
#include "kernels/stream/stream.h"
#include "worker/cli/path_flags.h"
#include "worker/program/flag_range.h"
#include "worker/training/model/model_flags.h"

namespace millrace::cli {

using program::in_range;
using program::not_empty;
using training::TrainOptions;

namespace {

/// Notes that an option was given.
auto mark_of(bool& given) {
  return [&given](const std::string&) { given = true; };
}

void add_data_flags(CLI::App& app, TrainFlags& flags) {
  app.add_option("--train", flags.train_path,
                 "LIBSVM text, plain, .gz, .bz2 or .xz; this worker takes its share of the rows")
      ->required()
      ->check(not_empty());
  app.add_option(
         "--test", flags.test_path,
         "held-out rows, evaluated after every epoch: of one class or both, written as in --train; features that "
         "--train lacks are left out")
      ->check(not_empty());
  training::add_model_flags(app, flags.dimension, flags.index_base, flags.model);
  app.add_option("-o,--output", flags.output, "model file, written by worker 0 at the end")->check(not_empty());
}

void add_job_flags(CLI::App& app, TrainFlags& flags) {
  TrainOptions& options = flags.options;
  app.add_option("--servers", flags.servers, "host:port,host:port: one shard each, the same list at all workers")
      ->required();
  app.add_option("--job", options.job, "name of the job at the servers")->capture_default_str();
  app.add_option("--worker", options.worker, "this worker, from 0")->capture_default_str()->check(in_range(0, 4095));
  app.add_option("--workers", options.workers, "workers of the job")->capture_default_str()->check(in_range(1, 4096));
  app.add_option(
         "--workers-min", options.workers_min,
         "the job may end with this many of its workers: it ends early when fewer live, and is done (exit code 0) "
         "with the remaining ones (default: it continues with one, and ends with exit code 8 unless all were in "
         "it at the end)")
      ->check(in_range(1, 4096));
  app.add_option("--mode", options.mode,
                 "synchronous (or sync): every step waits for all workers; bounded_staleness: a slow worker is left "
                 "out of up to "
                 "--staleness steps in a row; partial: a step waits for --quorum workers, or --deadline-ms, or both; "
                 "asynchronous: each contribution is a step, and blocks on no worker (no --reselect)")
      ->capture_default_str()
      ->check(CLI::IsMember({"sync", "synchronous", "bounded_staleness", "asynchronous", "partial"}));
  app.add_option("--staleness", options.staleness, "steps that may be in flight beyond the last update")
      ->capture_default_str()
      ->check(in_range(0, 63));
  app.add_option("--quorum", options.quorum, "contributions that a step needs before it is decided without the others")
      ->check(in_range(0, 4096));
  app.add_option("--deadline-ms", options.deadline_ms, "how long a step with its quorum waits for the others")
      ->check(in_range(0, 86'400'000));
  app.add_option("--participants", options.participants,
                 "mode partial: workers drawn for each step, the others sit it out (federated training)")
      ->check(in_range(0, 4096));
  app.add_option("--apply-after-acks", options.apply_after_acks,
                 "an update is applied once this many workers have it, so that nothing rests on one that fewer deaths "
                 "could lose; the job ends when fewer live (0: applied at once)")
      ->check(in_range(0, 4096));
  app.add_option("--store", options.store,
                 "the servers hold the weights and change them: sgd:RATE, momentum:RATE[:M], adagrad:RATE[:E], "
                 "adam:RATE[:B1[:B2[:E]]]; workers pull the weights of a batch")
      ->capture_default_str();
  app.add_option("--store-begin", options.store_begin,
                 "zeros, or saved: the servers' last save of a job of this name (their --store-dir)")
      ->capture_default_str()
      ->check(CLI::IsMember({"zeros", "saved"}));
  app.add_option("--connect-timeout-ms", options.connect_timeout_ms,
                 "for reaching every shard; where an earlier run of the job is in the way, 10 s more")
      ->capture_default_str()
      ->check(in_range(1, 86'400'000));
  app.add_option("--start-timeout-ms", options.start_timeout_ms, "for all workers to join")
      ->capture_default_str()
      ->check(in_range(1, 86'400'000));
  app.add_option("--http", flags.http,
                 "host:port of this worker's /metrics, /healthz and /status; port 0 takes a free one")
      ->check(not_empty());
  app.add_option("--state", options.state_path,
                 "file of this worker's state: begun with if it is there, saved while it trains and when the run ends "
                 "early, gone at the end; "
                 "with it a worker that was killed is started again by the same command")
      ->check(not_empty());
  app.add_option("--save-every", options.save_every,
                 "steps between two savings of --state; 0: only when the run ends early")
      ->capture_default_str()
      ->check(in_range(0, 1'000'000'000));
  app.add_option("--initial-weights", options.initial_weights,
                 "own: every worker's (zeros, or of --state); first: those of the lowest-numbered worker, for all")
      ->capture_default_str()
      ->check(CLI::IsMember({"own", "first"}));
}

void add_compression_flags(CLI::App& app, TrainFlags& flags) {
  TrainOptions& options = flags.options;
  app.add_option("--method", flags.method,
                 "a paper's combination of the options that follow, which sets those that are not given: " +
                     method_names() + "; the list is below")
      ->check(not_empty());
  app.add_option("--density", flags.density,
                 "send this share of the parameters a step: --select topk:DENSITY, or what --method has")
      ->check(in_range(1e-9, 1.0));
  app.add_option("--select", options.select,
                 "the entries of a gradient that are sent: " + selection_names() +
                     "; then :signs (one sign a step), :dense=STEPS (the first steps send everything, and no codec "
                     "changes their values) or :warm_up=STEPS")
      ->capture_default_str()
      ->each(mark_of(flags.given.select));
  app.add_option("--reselect", options.reselect, "truncation of the sum before workers get it: none or topk:D")
      ->capture_default_str()
      ->each(mark_of(flags.given.reselect));
  app.add_option("--threshold-period", options.threshold_period,
                 "of --reselect: steps between exact global thresholds (Ok-Topk's tau'). 1: every update has the "
                 "largest entries of its own sum, "
                 "which costs shards half a round trip; more: between them a step is cut by the last one, to within "
                 "2 % of the count")
      ->default_str("1, with --method oktopk 32")
      ->each(mark_of(flags.given.threshold_period))
      ->check(in_range(1u, 1u << 20));
  app.add_option("--codec-up", options.codec_up,
                 "auto[+VALUE] (the fastest lossless ones, by measured speed and --link-rate), or INDEX+VALUE: " +
                     index_codec_names() + " + " + value_codec_names() +
                     ". RATE (0.001) is of a Bloom filter's false positives, from 1e-9 to below 1. qsgd scales by the "
                     "largest of BUCKET values (512, as DeepReduce); SparCML's form is qsgd4:l2:1024. sketchml_mean, "
                     "skcompress_mean and quantile (7 bits) are the sketches as published")
      ->capture_default_str()
      ->each(mark_of(flags.given.codec_up));
  app.add_option("--codec-down", options.codec_down, "the same, for updates")->capture_default_str();
  app.add_option("--link-rate", options.link_rate,
                 "bits per second to the servers, for --codec-up auto; 0: measured by the traffic with them")
      ->capture_default_str()
      ->check(in_range(0.0, 1e15));
  app.add_option("--codec-error", flags.codec_error, "a quantizer's error: retain it in the residual, or drop it")
      ->default_str("retain, with --unbiased drop")
      ->each(mark_of(flags.given.codec_error))
      ->check(CLI::IsMember({"retain", "drop"}));
}

void add_feedback_flags(CLI::App& app, TrainFlags& flags) {
  TrainOptions& options = flags.options;
  app.add_option(
         "--momentum", options.momentum,
         "none, correction:FACTOR, nesterov:FACTOR or nesterov_printed:FACTOR ([RedSync19, algorithm 4] to the "
         "letter): momentum of this worker, in its contributions; ends for entries that an update has applied, unless "
         ":unmasked follows; steps that send everything end none")
      ->capture_default_str()
      ->each(mark_of(flags.given.momentum));
  app.add_option("--clip", options.clip,
                 "scale a step's gradients down to this L2 norm over the square root of the workers; 0 does not")
      ->capture_default_str()
      ->each(mark_of(flags.given.clip))
      ->check(in_range(0.0, 1e30));
  app.add_flag("--unbiased", options.unbiased,
               "keep no residual: the sent values are the gradient in expectation (--select none, random, gspar, "
               "gspar_closed or uniform)");
  app.add_flag("--audit", options.audit,
               "check at run time that nothing is lost or counted twice, and say at the end where it went");
  app.add_flag(
      "--history", options.history,
      "code indices against the updates that workers and shards have both seen: fewer bytes, more processor; for "
      "slow links (needs --staleness 0)");
  app.add_flag("--reproducible", options.reproducible,
               "the same bits for any order of arrival, number of servers, and path: values are rounded to a grid, the "
               "rounding errors are sent later (mode synchronous, codecs without loss)");
  app.add_option("--non-finite", options.non_finite, "NaN in a gradient: refuse (ends the run) or drop (counted)")
      ->capture_default_str()
      ->check(CLI::IsMember({"refuse", "drop"}));
  app.add_flag("--dense", flags.dense, "send every parameter in every step, for comparison");
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
  app.add_option("--lr-decay", options.learning_rate_decay, "the rate of epoch e is lr / (1 + e * decay)")
      ->capture_default_str()
      ->each(given)
      ->check(in_range(0.0, 1e6));
  app.add_option(
         "--optimizer", options.optimizer,
         "sgd; or svrg (mode synchronous): every --snapshot-every steps the workers sum the gradient of all rows "
         "exactly, in a second job JOB.snapshots; a step sends how much its rows' gradient differs from theirs at "
         "that snapshot")
      ->capture_default_str()
      ->check(CLI::IsMember({"sgd", "svrg"}));
  app.add_option("--snapshot-every", options.snapshot_every, "svrg: steps between two snapshots (default: an epoch's)")
      ->check(in_range(uint64_t{1}, std::numeric_limits<uint64_t>::max()));
  app.add_option("--epochs", options.epochs, "passes over the rows")
      ->capture_default_str()
      ->check(in_range(1, 1'000'000));
  app.add_option("--steps", options.steps_max, "end after this many steps (default: whole epochs)")
      ->check(in_range(uint64_t{1}, std::numeric_limits<uint64_t>::max()));
  app.add_option("--rounds", options.rounds_max,
                 "end once this many steps of the job are in the weights, with this worker or without (default: never)")
      ->check(in_range(uint64_t{1}, std::numeric_limits<uint64_t>::max()));
  app.add_option("--curve-every", options.curve_every,
                 "steps of the job between two log-losses on --test, in --json; evaluated at the end, not by epochs")
      ->check(in_range(uint64_t{1}, std::numeric_limits<uint64_t>::max()));
  app.add_option("--compute-ms", options.compute_ms,
                 "let every gradient take at least this time: a slower machine, for measurements")
      ->check(in_range(0, 60'000));
  app.add_option("--batch", options.batch_rows, "rows a worker and step")
      ->capture_default_str()
      ->check(in_range(1, 1 << 20));
  app.add_option("--l2", options.l2, "L2 regularisation, applied here and never sent; not on the intercept")
      ->capture_default_str()
      ->check(in_range(0.0, 1.0));
  app.add_option("--seed", options.seed, "of the order of rows and of every random choice in the job")
      ->capture_default_str()
      ->check(in_range(uint64_t{0}, std::numeric_limits<uint64_t>::max()));
}

}  // namespace

void add_train_flags(CLI::App& app, TrainFlags& flags) {
  add_data_flags(app, flags);
  add_job_flags(app, flags);
  add_path_flags(app, flags.options.path);
  add_compression_flags(app, flags);
  add_feedback_flags(app, flags);
  add_descent_flags(app, flags);
  app.add_flag("--json", flags.json, "one JSON object as the last line");
  app.add_flag("-v,--verbose", flags.verbose, "the session's log on stderr");
}

}  // namespace millrace::cli
