#include "worker/cli/peer/peer_train_flags.h"

#include <fmt/format.h>

#include <array>
#include <functional>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/registry.h"
#include "kernels/base/words.h"
#include "monitoring/command_line/http_flags.h"
#include "monitoring/command_line/quantity_flags.h"
#include "protocol/address/host_port.h"
#include "worker/peer/channel/stream_wire.h"
#include "worker/peer/collectives/boundaries_text.h"
#include "worker/program/flag_range.h"
#include "worker/training/model/model_flags.h"

namespace millrace::cli {

using program::in_range;
using program::not_empty;
using program::one_of;
using training::ExchangePath;
using training::OptimizerOptions;
using training::PeerTrainOptions;

namespace {

std::string names_of_algorithms() { return listed_texts(peer::algorithms(), std::mem_fn(&peer::AlgorithmInfo::name)); }

/// Options of a job, and of a worker, that this command has. The exchange, or another flag, sets the others.
constexpr std::array<std::string_view, 11> kPeerJobOptions = {"name",     "staleness",    "select",   "reselect",
                                                              "codec_up", "unbiased",     "momentum", "clip",
                                                              "seed",     "reproducible", "grid"};
constexpr std::array<std::string_view, 3> kPeerWorkerOptions = {"key_file", "server_key_file", "connect_timeout"};
/// Of these, the ones that an optimizer has defaults for.
constexpr std::array<std::string_view, 3> kOptimizersOwn = {"select", "codec_up", "momentum"};

Result<peer::AlgorithmId> algorithm_from_text(const std::string& text) {
  if (const peer::AlgorithmInfo* algorithm = peer::find_algorithm(text); algorithm != nullptr) return algorithm->id;
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("there is no algorithm '{}'; there are {}{}", text, names_of_algorithms(),
                          did_you_mean(text, texts_of(peer::algorithms(), std::mem_fn(&peer::AlgorithmInfo::name)))));
}

/// Returns the codec of a text; empty for "raw" and for no text: there is none.
Result<std::optional<CodecSpec>> quantizer_from_text(const std::string& text) {
  if (text.empty() || text == "raw") return std::optional<CodecSpec>();
  const Result<CodecSpec> spec = codec_from_text(text);
  if (!spec) return std::unexpected(spec.error());
  return std::optional<CodecSpec>(*spec);
}

/// Makes the job of the options that were given; the others are the optimizer's.
///
/// Errors   invalid_argument: options that do not belong together.
Status read_job(const PeerTrainFlags& flags, const OptimizerOptions& defaults, JobConfig& job) {
  worker::JobDraft draft = flags.job.draft;
  worker::JobDraft own = worker::draft_of(defaults.job);
  std::vector<worker::Option> into = worker::options_of(draft);
  std::vector<worker::Option> from = worker::options_of(own);
  for (const std::string_view name : kOptimizersOwn) {
    if (flags.job.given.contains(std::string(name))) continue;
    if (Status set = worker::option_named(into, name).set(worker::option_named(from, name).text()); !set) return set;
  }
  auto made = worker::config_of(draft);
  if (!made) return std::unexpected(made.error());
  job = std::move(*made);
  return {};
}

/// Errors  invalid_argument: an option that the path does not have.
Status read_path(const PeerTrainFlags& flags, OptimizerOptions& options) {
  const bool by_peers = flags.path == PathFlag::kPeers;
  options.path = flags.path == PathFlag::kServers ? ExchangePath::kServers : ExchangePath::kPeers;
  if (by_peers != flags.servers.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                by_peers ? "--servers is of --path server or auto: give both, or none"
                         : fmt::format("--path {} needs --servers HOST:PORT,...", path_flag_name(flags.path)));
  }
  // Peers do not authenticate each other: a key would be a false promise.
  if (flags.path != PathFlag::kServers && (!options.me.key_file.empty() || !options.me.server_key_file.empty())) {
    return fail(ErrorCode::kInvalidArgument,
                "--key and --server-key are of --path server: peers neither authenticate each other nor encrypt");
  }
  if (by_peers) return {};
  if (options.path == ExchangePath::kServers && !flags.algorithm.empty()) {
    return fail(ErrorCode::kInvalidArgument, "--algorithm is of --path peers: servers sum by themselves");
  }
  auto addresses = protocol::parse_server_addresses(flags.servers);
  if (!addresses) return std::unexpected(addresses.error());
  options.me.shards = std::move(*addresses);
  return {};
}

/// Checks the options. With --path auto: takes the path that supports them, or leaves the choice to the ranks.
///
/// Errors   invalid_argument: the path cannot, or neither can; nor can peers by the --algorithm that was given.
Status check_paths(const PeerTrainFlags& flags, PeerTrainOptions& run) {
  OptimizerOptions& options = run.options;
  // The optimizer's own check cannot tell its default from the same algorithm on the command line.
  if (run.optimizer->name == "scd" && !flags.algorithm.empty())
    return fail(ErrorCode::kInvalidArgument, "scd gathers changes and sums no gradients: it has no --algorithm");
  if (flags.path != PathFlag::kAuto) return run.optimizer->check(options);
  const auto check = [&](ExchangePath path) {
    options.path = path;
    return run.optimizer->check(options);
  };
  const Status servers = check(ExchangePath::kServers);
  const Status peers = check(ExchangePath::kPeers);
  if (!peers && (!servers || !flags.algorithm.empty())) return peers;
  run.chooses_path = peers && servers;
  if (!servers) run.path_reason = "servers cannot: " + servers.error().message;
  if (!peers) {
    run.path_reason = "peers cannot: " + peers.error().message;
    options.path = ExchangePath::kServers;
  }
  return {};
}

/// Returns the algorithm where none was given: the optimizer's. Another one replaces it where it keeps the largest
/// entries of the sum and no rank has a residual for the others. So it does where the ranks choose the path: exact sums
/// are then those of the fastest algorithm.
peer::AlgorithmId default_algorithm(const PeerTrainFlags& flags, const OptimizerOptions& defaults) {
  const bool keeps_largest = peer::algorithm_info(defaults.algorithm).result == peer::ResultKind::kGlobalTopk;
  const bool is_exact = !keeps_largest || flags.job.draft.spec.unbiased;
  if (is_exact && flags.path == PathFlag::kAuto) return peer::AlgorithmId::kAuto;
  return is_exact && keeps_largest ? peer::AlgorithmId::kSsarSplitAllgather : defaults.algorithm;
}

/// Reads how gradients are summed: the flags' values, else the optimizer's defaults.
///
/// Errors   invalid_argument: unknown words.
Status read_exchange(const PeerTrainFlags& flags, const OptimizerOptions& defaults, OptimizerOptions& options) {
  options.algorithm = default_algorithm(flags, defaults);
  options.boundaries = peer::boundaries_of(flags.boundaries);
  options.codec_error = defaults.codec_error;
  if (!flags.algorithm.empty()) {
    const Result<peer::AlgorithmId> algorithm = algorithm_from_text(flags.algorithm);
    if (!algorithm) return std::unexpected(algorithm.error());
    options.algorithm = *algorithm;
  }
  if (Status status = read_job(flags, defaults, options.job); !status) return status;
  const auto quantizer = quantizer_from_text(flags.quantizer);
  if (!quantizer) return std::unexpected(quantizer.error());
  options.quantizer = *quantizer;
  return read_path(flags, options);
}

void add_peer_data_flags(CLI::App& app, PeerTrainFlags& flags) {
  app.add_option("--train", flags.train_path,
                 "LIBSVM text that all ranks can read; each reads the lines that begin in its share of the bytes")
      ->required()
      ->type_name("FILE")
      ->check(not_empty());
  app.add_option("--test", flags.test_path, "held-out rows, read the same way, evaluated after every epoch")
      ->type_name("FILE")
      ->check(not_empty());
  training::add_model_flags(app, flags.dimension, flags.index_base, flags.model);
}

void add_peer_descent_flags(CLI::App& app, PeerTrainFlags& flags) {
  OptimizerOptions& options = flags.options.options;
  const std::vector<std::string> names = texts_of(training::optimizers(), std::mem_fn(&training::OptimizerInfo::name));
  app.add_option("--optimizer", flags.optimizer, listed_texts(names, std::identity()) + "; the list is below")
      ->capture_default_str()
      ->check(one_of(names));
  app.add_option("--lr", flags.rate,
                 "learning rate; scd: of a step that is safe at 1 (an epoch takes every feature once)")
      ->capture_default_str()
      ->check(in_range(1e-12, 1e6));
  training::add_schedule_flag(app, flags.schedule, "t epochs on");
  app.add_option("--l2", options.l2, "L2 regularisation, applied by each rank and never sent; not on the intercept")
      ->capture_default_str()
      ->check(in_range(0.0, 1.0));
  app.add_option("--batch", options.batch_rows, "rows a rank and step, at most (all but scd)")
      ->capture_default_str()
      ->check(in_range(1u, 1u << 30));
  app.add_option("--snapshot-every", options.snapshot_every,
                 "svrg: steps between two snapshots, at each of which the gradient of all rows is summed exactly "
                 "(default: an epoch's)")
      ->check(in_range(uint64_t{1}, std::numeric_limits<uint64_t>::max()));
  app.add_option("--coordinates", options.coordinates, "scd: features a rank and step, at most")
      ->capture_default_str()
      ->check(in_range(1u, 1u << 30));
  app.add_option(
         "--allgather", flags.allgather,
         "scd: how the ranks gather their changes: sparse, the changed coordinates; dense, every rank's whole slice, a "
         "baseline that trains the same model bit for bit")
      ->capture_default_str()
      ->check(one_of({"sparse", "dense"}));
  app.add_option("--beta1", options.beta1,
                 "momentum: share of the velocity that a step keeps; adam: of the first moment")
      ->capture_default_str()
      ->check(in_range(0.0, 1.0));
  app.add_option("--beta2", options.beta2, "adam: share of the second moment that a step keeps")
      ->capture_default_str()
      ->check(in_range(0.0, 1.0));
  app.add_option("--epsilon", options.epsilon, "adam: added to the root of the second moment")
      ->capture_default_str()
      ->check(in_range(1e-30, 1.0));
  app.add_option("--order", flags.order, "of a rank's rows: shuffled in every epoch, or as in the file")
      ->capture_default_str()
      ->check(one_of({"shuffled", "file"}));
  app.add_option("--epochs", flags.options.epochs, "passes over the rows")
      ->capture_default_str()
      ->check(in_range(1u, 1'000'000u));
  app.add_option("--steps", flags.options.steps_max, "end after this many steps (default: whole epochs)")
      ->check(in_range(uint64_t{1}, std::numeric_limits<uint64_t>::max()));
  app.add_option("--threads", flags.options.threads, "that compute within a rank, each a share of the batch")
      ->capture_default_str()
      ->check(in_range(1u, 1'024u));
}

void add_path_flags(CLI::App& app, PeerTrainFlags& flags) {
  app.option_defaults()->group("Job");
  program::add_choice(
      app, "--path", flags.path,
      program::choices_of({PathFlag::kPeers, PathFlag::kServers, PathFlag::kAuto}, path_flag_name),
      "what sums the gradients: peers, the ranks by an allreduce; server, sharded servers, whose workers "
      "the ranks are; auto, the one that takes less time by the cost models (below). All else is the same");
  app.add_option("--servers", flags.servers, "path server, auto: host:port,host:port, one shard each (millrace serve)")
      ->type_name("LIST")
      ->check(program::checked([](const std::string& text) { return protocol::parse_server_addresses(text); }));
}

void add_exchange_flags(CLI::App& app, PeerTrainFlags& flags) {
  OptimizerOptions& options = flags.options.options;
  app.option_defaults()->group("Collectives");
  app.add_option("--algorithm", flags.algorithm,
                 "path peers: that sums the gradients: " + names_of_algorithms() +
                     " (default: the optimizer's; with --path auto and exact sums: auto)")
      ->check(program::checked(algorithm_from_text));
  app.add_option("--threshold-period", options.thresholds_period,
                 "oktopk: steps between exact thresholds, each rank's own and the global one (Ok-Topk's tau')")
      ->capture_default_str()
      ->check(in_range(1u, 1u << 20));
  app.add_option("--boundaries", flags.boundaries,
                 "oktopk, path peers: of the ranks' regions; pooled where entries lie in other places on every rank")
      ->capture_default_str()
      ->check(one_of(peer::boundaries_names()));
  app.add_option("--boundary-period", options.boundaries_period,
                 "oktopk, path peers: steps between two searches for the regions (the paper's tau)")
      ->capture_default_str()
      ->check(in_range(1u, 1u << 20));
  app.add_option("--quantizer", flags.quantizer, "path peers: of dense phases (dsar_split_allgather): raw+qsgd4")
      ->check(program::checked(quantizer_from_text));
  app.option_defaults()->group("Timing");
  monitoring::add_duration(app, "--rank-silence", monitoring::in_ms(flags.silence_ms_max),
                           "a rank that does not answer for this time counts as dead; longer than a step computes",
                           {.least = kNsPerMs, .most = 3'600 * kNsPerS});
  app.option_defaults()->group("Collectives");
  app.add_option("--mpi-threads", flags.mpi_threads, "MPI's thread level")
      ->capture_default_str()
      ->check(one_of({"single", "funneled", "serialized", "multiple"}));
}

/// The options of a job that this command has, as millrace train has them.
void add_peer_job_flags(CLI::App& app, PeerTrainFlags& flags) {
  flags.job.add_to(app);
  worker::add_option_flags(app, flags.me, {}, flags.job.given);
  for (const char* flag : {"--select", "--codec-up", "--momentum"}) {
    app.get_option(flag)->default_str("the optimizer's");
  }
}

}  // namespace

PeerTrainFlags::PeerTrainFlags()
    : job(options.options.job, kPeerJobOptions), me(worker::options_of(options.options.me)) {
  worker::keep_options(me, kPeerWorkerOptions);
}

void add_peer_train_flags(CLI::App& app, PeerTrainFlags& flags) {
  app.option_defaults()->group("Data");
  add_peer_data_flags(app, flags);
  app.option_defaults()->group("Training");
  add_peer_descent_flags(app, flags);
  add_path_flags(app, flags);
  add_exchange_flags(app, flags);
  add_peer_job_flags(app, flags);
  app.option_defaults()->group("Output");
  app.add_option("-o,--output", flags.output, "model file, written by rank 0 at the end (millrace eval reads it)")
      ->type_name("FILE")
      ->check(not_empty());
  app.add_option("--http", flags.http,
                 "metrics (Prometheus), health and numbers: rank r listens on PORT + r; port 0 takes any, "
                 "which is printed")
      ->type_name("HOST:PORT")
      ->check(program::checked([](const std::string& text) { return protocol::parse_host_port(text); }));
  monitoring::add_http_port_flags(app, flags.http_security, monitoring::HelpCase::kSmall);
  app.add_flag("--json", flags.json, "one JSON object as the last line, of rank 0");
}

Result<PeerTrainOptions> train_options_of(const PeerTrainFlags& flags) {
  PeerTrainOptions run = flags.options;
  OptimizerOptions& options = run.options;
  run.optimizer = training::find_optimizer(flags.optimizer);
  options.loss = training::loss_by_name(flags.model).value();
  options.allgather = flags.allgather == "dense" ? training::AllgatherForm::kDense : training::AllgatherForm::kSparse;
  options.order = flags.order == "file" ? training::RowOrder::kFile : training::RowOrder::kShuffled;
  const Result<training::RateSchedule> schedule = training::rate_schedule_from_text(flags.schedule, flags.rate);
  if (!schedule) return std::unexpected(schedule.error());
  options.schedule = *schedule;
  if (Status status = read_exchange(flags, training::default_options(*run.optimizer), options); !status) {
    return std::unexpected(status.error());
  }
  options.job.recipe = fmt::format("program=peer-train {} epochs={} steps={}",
                                   training::recipe_of(*run.optimizer, options), run.epochs, run.steps_max);
  if (Status status = check_paths(flags, run); !status) return std::unexpected(status.error());
  return run;
}

std::string optimizers_table() {
  std::string table =
      "Keys in brackets are of kernels/REFERENCES.md.\n"
      "Optimizers (--optimizer), and the options that they set:\n";
  for (const training::OptimizerInfo& one : training::optimizers()) {
    const training::OptimizerDefaults& own = one.defaults;
    table += fmt::format("  {:<11} {} {}\n", one.name, one.summary, one.source);
    std::string takes;
    for (const auto& [flag, word, none] : {std::tuple{"--algorithm", own.algorithm, std::string_view()},
                                           {"--select", own.select, "none"},
                                           {"--codec-up", own.codec, "raw"},
                                           {"--momentum", own.momentum, "none"}}) {
      if (word != none) takes += fmt::format(" {} {}", flag, word);
    }
    if (one.name != "scd") table += fmt::format("  {:<11}{}\n", "", takes);
  }
  return table;
}

}  // namespace millrace::cli
