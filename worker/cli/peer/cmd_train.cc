#include <fmt/format.h>

#include <csignal>
#include <exception>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "monitoring/standard_streams.h"
#include "protocol/files/atomic_file.h"
#include "worker/cli/flag_range.h"
#include "worker/cli/interruption.h"
#include "worker/cli/json_text.h"
#include "worker/cli/memory_room.h"
#include "worker/cli/model_file.h"
#include "worker/cli/peer/agree.h"
#include "worker/cli/peer/mpi_end.h"
#include "worker/cli/peer/opt/read_share.h"
#include "worker/cli/peer/opt/selection_text.h"
#include "worker/cli/peer/opt/train_run.h"
#include "worker/cli/peer/peer_commands.h"
#include "worker/cli/peer/peer_port.h"
#include "worker/cli/progress.h"
#include "worker/cli/trainer.h"
#include "worker/peer/mpi_file.h"
#include "worker/peer/stream_wire.h"

namespace millrace::cli {
namespace {

constexpr const char* kTrainCommand = "millrace-peer train";

struct TrainFlags {
  PeerTrainOptions options;
  uint32_t index_base = 1;
  std::string train_path;
  std::string test_path;
  std::string output;
  std::string model = "lr";
  std::string optimizer = "sgd";
  std::string schedule = "constant";
  std::string order = "shuffled";
  std::string allgather = "sparse";
  std::string path = "peers";
  std::string servers;
  // Empty: the optimizer's own.
  std::string algorithm;
  std::string select;
  std::string codec;
  std::string momentum;
  std::string quantizer;
  std::string http;
  std::string mpi_threads = "serialized";
  std::string boundaries = "averaged";
  double rate = 1;
  uint64_t dimension = 0;
  uint32_t silence_ms_max = 30'000;
  bool json = false;
};

/// For --help: what each is, and what it takes where nothing else is said.
std::string table_of_optimizers() {
  std::string table = "Optimizers (--optimizer), and what they take by themselves:\n";
  for (const OptimizerInfo& one : optimizers()) {
    const OptimizerDefaults& own = one.defaults;
    table += fmt::format("  {:<11} {} [{}]\n", one.name, one.summary, one.source);
    std::string takes;
    for (const auto& [flag, word, none] : {std::tuple{"--algorithm", own.algorithm, std::string_view()},
                                           {"--select", own.select, "none"},
                                           {"--codec", own.codec, "raw"},
                                           {"--momentum", own.momentum, "none"}}) {
      if (word != none) takes += fmt::format(" {} {}", flag, word);
    }
    if (one.name != "scd") table += fmt::format("  {:<11}{}\n", "", takes);
  }
  return table;
}

std::string names_of_algorithms() {
  std::string names;
  for (const peer::AlgorithmInfo& one : peer::algorithms()) names.append(names.empty() ? "" : ", ").append(one.name);
  return names;
}

Status read_codec(const std::string& text, std::optional<CodecSpec>& into) {
  if (text.empty()) return {};
  into.reset();
  if (text == "raw") return {};
  const Result<CodecSpec> spec = codec_from_text(text);
  if (!spec) return std::unexpected(spec.error());
  into = *spec;
  return {};
}

/// Errors   invalid_argument: what the path does not have.
Status read_path(const TrainFlags& flags, OptimizerOptions& options) {
  const bool over_servers = flags.path == "servers";
  options.path = over_servers ? ExchangePath::kServers : ExchangePath::kPeers;
  if (over_servers != !flags.servers.empty()) {
    return fail(ErrorCode::kInvalidArgument, over_servers ? "--path servers needs --servers HOST:PORT,..."
                                                          : "--servers is of --path servers: give both, or none");
  }
  if (!over_servers) return {};
  if (!flags.algorithm.empty()) {
    return fail(ErrorCode::kInvalidArgument, "--algorithm is of --path peers: servers sum by themselves");
  }
  auto addresses = server_addresses(flags.servers);
  if (!addresses) return std::unexpected(addresses.error());
  options.servers = std::move(*addresses);
  return {};
}

/// How gradients are summed: what the flags say, else what the optimizer takes by itself.
///
/// Errors   invalid_argument: words that mean nothing.
Status read_exchange(const TrainFlags& flags, const OptimizerOptions& defaults, OptimizerOptions& options) {
  options.algorithm = defaults.algorithm;
  options.boundaries = boundaries_of(flags.boundaries);
  options.select = defaults.select;
  options.codec = defaults.codec;
  options.codec_error = defaults.codec_error;
  options.momentum = flags.momentum.empty() ? defaults.momentum : flags.momentum;
  // An optimizer's own algorithm gives way where it keeps the largest entries of the sum: those need a residual.
  const bool needs_residual = peer::algorithm_info(defaults.algorithm).result == peer::ResultKind::kGlobalTopk;
  if (options.unbiased && needs_residual) options.algorithm = peer::AlgorithmId::kSsarSplitAllgather;
  if (!flags.algorithm.empty()) {
    const peer::AlgorithmInfo* algorithm = peer::find_algorithm(flags.algorithm);
    if (algorithm == nullptr) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("there is no algorithm '{}'; there are {}", flags.algorithm, names_of_algorithms()));
    }
    options.algorithm = algorithm->id;
  }
  if (!flags.select.empty()) {
    const Result<SelectionSpec> select = selection_from_text(flags.select);
    if (!select) return std::unexpected(select.error());
    options.select = *select;
  }
  if (Status status = read_codec(flags.codec, options.codec); !status) return status;
  if (Status status = read_codec(flags.quantizer, options.quantizer); !status) return status;
  return read_path(flags, options);
}

/// Errors   invalid_argument: words that mean nothing, and what the optimizer, the path or the algorithm does not take.
Result<PeerTrainOptions> train_options_of(const TrainFlags& flags) {
  PeerTrainOptions run = flags.options;
  OptimizerOptions& options = run.options;
  run.optimizer = find_optimizer(flags.optimizer);
  options.loss = loss_by_name(flags.model).value();
  options.allgather = flags.allgather == "dense" ? AllgatherForm::kDense : AllgatherForm::kSparse;
  options.order = flags.order == "file" ? RowOrder::kFile : RowOrder::kShuffled;
  const Result<RateSchedule> schedule = rate_schedule_from_text(flags.schedule, flags.rate);
  if (!schedule) return std::unexpected(schedule.error());
  options.schedule = *schedule;
  if (Status status = read_exchange(flags, default_options(*run.optimizer), options); !status) {
    return std::unexpected(status.error());
  }
  options.recipe = fmt::format("program=peer-train {} epochs={} steps={}", recipe_of(*run.optimizer, options),
                               run.epochs, run.steps_max);
  if (Status status = run.optimizer->check(options); !status) return std::unexpected(status.error());
  return run;
}

IndexBase index_base_of(const TrainFlags& flags) { return flags.index_base == 0 ? IndexBase::kZero : IndexBase::kOne; }

/// What ranks are told before they read: all of it must be the same.
std::string description_of(const TrainFlags& flags, const PeerTrainOptions& run) {
  return fmt::format("{}; --train {} --test {} --dimension {} --index-base {} --epochs {} --steps {}",
                     description_of(*run.optimizer, run.options), flags.train_path, flags.test_path, flags.dimension,
                     flags.index_base, run.epochs, run.steps_max);
}

Result<Dataset> read_file(peer::PeerGroup& group, const std::string& path, const LibsvmOptions& how) {
  const auto file = peer::MpiFile::open(path);
  if (Status status = agree(group, "open " + path, file ? Status{} : std::unexpected(file.error())); !status) {
    return std::unexpected(status.error());
  }
  const SharedFile shared{path, (*file)->bytes(),
                          [&file](uint64_t at, std::span<uint8_t> into) { return (*file)->read_at(at, into); }};
  Result<Dataset> data = read_share(group, shared, how);
  if (data && data->dimension >= kDimensionMax) {
    return fail(ErrorCode::kLimitExceeded, path + ": features above 2^32 - 1 leave no room for the intercept");
  }
  if (!data) return data;
  // What one machine has room for, another may not: all ranks end together.
  const std::string what = fmt::format("{}: its largest feature is {}", path, data->dimension);
  const Status fits = check_model_fits(what, data->dimension, memory_available_bytes());
  if (Status all = agree(group, "room for " + path, fits); !all) return std::unexpected(all.error());
  return data;
}

nlohmann::json json_of(const PeerEpoch& epoch, bool held_out) {
  nlohmann::json row = {{"epoch", epoch.epoch},
                        {"steps", epoch.steps},
                        {"learning_rate", epoch.rate},
                        {"loss", epoch.train.loss},
                        {"objective", epoch.objective},
                        {"accuracy", epoch.train.accuracy},
                        {"seconds", epoch.seconds},
                        {"compute_s", epoch.compute_s},
                        {"waiting_s", epoch.waiting_s},
                        {"entries_mean", epoch.entries_mean},
                        {"bytes_sent_max", epoch.bytes_max},
                        {"bytes_sent_sum", epoch.bytes_sum},
                        {"bytes_received_max", epoch.received_max},
                        {"bytes_received_sum", epoch.received_sum}};
  if (held_out) {
    row["held_out_loss"] = epoch.held_out.loss;
    row["held_out_accuracy"] = epoch.held_out.accuracy;
  }
  return row;
}

void print_head(bool held_out) {
  fmt::print("{:>5} {:>7} {:>9} {:>9} {:>8}{} {:>10} {:>9} {:>9} {:>9} {:>10}\n", "epoch", "steps", "rate", "loss",
             "accuracy", held_out ? fmt::format(" {:>9} {:>8}", "held-out", "accuracy") : "", "entries", "MB sent", "s",
             "computing", "waiting");
}

void print_epoch(const PeerEpoch& epoch, bool held_out) {
  fmt::print("{:>5} {:>7} {:>9.4g} {:>9.5f} {:>8.4f}{} {:>10.1f} {:>9.3f} {:>9.3f} {:>9.3f} {:>10.3f}\n", epoch.epoch,
             epoch.steps, epoch.rate, epoch.train.loss, epoch.train.accuracy,
             held_out ? fmt::format(" {:>9.5f} {:>8.4f}", epoch.held_out.loss, epoch.held_out.accuracy) : "",
             epoch.entries_mean, static_cast<double>(epoch.bytes_max) * 1e-6, epoch.seconds, epoch.compute_s,
             epoch.waiting_s);
}

/// One rank from its data to the model.
class TrainCommand {
 public:
  TrainCommand(const TrainFlags& flags, const PeerTrainOptions& run, peer::MpiJob& job)
      : flags_(flags), run_(run), job_(job) {}

  /// Errors   the same on all ranks.
  Outcome run() {
    const auto reading = peer::MpiCommunicator::over_world();
    if (!reading) return std::unexpected(failure_of(reading.error(), ErrorPlace::kRanks));
    // Ranks read in a group of its own, which this thread moves along: a group's thread would call MPI while MPI reads.
    const auto training = peer::MpiCommunicator::over_world();
    if (!training) return std::unexpected(failure_of(training.error(), ErrorPlace::kRanks));
    if (Outcome outcome = read(**reading); !outcome) return outcome;
    // Over servers a session has the thread that sums while the next gradient is computed.
    const bool by_thread = run_.options.asynchronous > 0 && run_.options.path == ExchangePath::kPeers;
    const auto progress = by_thread ? peer::Progress::kByThread : peer::Progress::kByCaller;
    peer::PeerGroup group(**training, {.silence_ms_max = flags_.silence_ms_max}, progress);
    return told(group, train(group));
  }

 private:
  bool speaks() const { return job_.rank() == 0; }

  std::unexpected<Failure> fail_as(const peer::PeerGroup& group, const Error& error) const {
    return std::unexpected(failure_of(error, place_of(group, run_.options.path)));
  }

  /// Where the group has ended ranks may have failed for other reasons, or be stuck: each says its own, before it destroys
  /// anything.
  Outcome told(const peer::PeerGroup& group, const Outcome& outcome) {
    if (!outcome && group.failure()) end_job(job_, kTrainCommand, outcome.error());
    return outcome;
  }

  Outcome read(peer::Communicator& communicator) {
    peer::PeerGroup group(communicator, {.silence_ms_max = flags_.silence_ms_max}, peer::Progress::kByCaller);
    // What can be known to fail at the end is said before hours of training.
    Status writable;
    if (speaks() && !flags_.output.empty()) writable = files::try_to_write(flags_.output);
    if (writable) writable = open_port();
    Status status = agree(group, description_of(flags_, run_), writable);
    if (status) {
      Result<Dataset> train =
          read_file(group, flags_.train_path, {.dimension = flags_.dimension, .index_base = index_base_of(flags_)});
      if (!train) status = std::unexpected(train.error());
      if (train) data_ = std::move(*train);
    }
    if (status && !flags_.test_path.empty()) {
      Result<Dataset> test = read_file(group, flags_.test_path,
                                       {.dimension = data_.dimension,
                                        .index_base = data_.index_base,
                                        .use = RowUse::kHeldOut,
                                        .trained_pair = data_.label_pair});
      if (!test) status = std::unexpected(test.error());
      if (test) held_out_ = std::move(*test);
    }
    return told(group, status ? Outcome{} : fail_as(group, status.error()));
  }

  /// The port of this rank, where --http asks for one, fed by the run.
  Status open_port() {
    if (flags_.http.empty()) return {};
    const auto address = http_address_of_rank(flags_.http, job_.rank());
    if (!address) return std::unexpected(address.error());
    auto started = PeerPort::start(*address, {run_.options.job, job_.rank(), job_.size(), run_.options.path});
    if (!started) return std::unexpected(started.error());
    port_ = std::move(*started);
    observer_.on_step = [at = port_.get()](double seconds) { at->step_done(seconds); };
    observer_.on_progress = [at = port_.get()](const PeerProgress& progress) { at->update(progress); };
    if (run_.options.path == ExchangePath::kServers)
      observer_.on_update = [at = port_.get()](double seconds) { at->update_done(seconds); };
    if (!flags_.json) fmt::print("rank {}: status: port {}\n", job_.rank(), port_->port());
    return monitoring::flush_output() ? Status{} : fail(ErrorCode::kIo, "standard output cannot be written");
  }

  Outcome train(peer::PeerGroup& group) {
    const bool prints = speaks() && !flags_.json;
    if (prints) {
      fmt::print("{} ranks, {} threads each; {} rows, {} features; {}\n", job_.size(), run_.threads,
                 grouped(data_.rows_in_file), grouped(data_.dimension), label_pair_text(data_.label_pair));
      if (held_out_ && held_out_->entries_left_out > 0) fmt::print("{}", left_out_text(flags_.test_path, *held_out_));
      print_head(held_out_.has_value());
    }
    observer_.on_epoch = [this, prints](const PeerEpoch& epoch) {
      if (!prints) return;
      print_epoch(epoch, held_out_.has_value());
      static_cast<void>(monitoring::flush_output());
    };
    // Until here nothing is held that an end at once would leave behind.
    const std::atomic<bool>& stop = interruption_flag();
    const auto result = train_over_peers(group, data_, held_out_ ? &*held_out_ : nullptr, run_, observer_, stop);
    if (!result) return fail_as(group, result.error());
    if (result->interrupted) {
      return fail_with(ExitCode::kInterrupted,
                       fmt::format("interrupted after step {}; no model is written", result->steps));
    }
    Status written;
    if (speaks() && !flags_.output.empty()) written = write_model(flags_.output, result->model);
    if (Status status = agree(group, "written", written); !status) return fail_as(group, status.error());
    if (prints && !flags_.output.empty()) fmt::print("model: {}\n", flags_.output);
    if (speaks() && flags_.json) fmt::print("{}\n", json_text(json_of(*result)));
    return {};
  }

  nlohmann::json json_of(const PeerTrainResult& result) const {
    const OptimizerOptions& options = run_.options;
    nlohmann::json all = {{"command", "train"},
                          {"optimizer", run_.optimizer->name},
                          {"model", flags_.model},
                          {"ranks", job_.size()},
                          {"threads", run_.threads},
                          {"rows", data_.rows_in_file},
                          {"features", data_.dimension},
                          {"batch_rows", options.batch_rows},
                          {"snapshot_every", options.snapshot_every},
                          {"coordinates", options.coordinates},
                          {"allgather", flags_.allgather},
                          {"path", path_name(options.path)},
                          {"select", selection_text(options.select)},
                          {"codec", peer::wire_text(options.codec)},
                          {"schedule", rate_schedule_text(options.schedule)},
                          {"unbiased", options.unbiased},
                          {"momentum", options.momentum},
                          {"clip", options.clip},
                          {"asynchronous", options.asynchronous},
                          {"seed", options.seed},
                          {"steps", result.steps},
                          {"messages_unexpected", result.messages_unexpected},
                          {"models_identical", true}};  // else it is an error
    if (options.path == ExchangePath::kPeers) all["algorithm"] = peer::algorithm_info(options.algorithm).name;
    if (options.path == ExchangePath::kServers) all["servers"] = options.servers.size();
    all["epochs"] = nlohmann::json::array();
    for (const PeerEpoch& epoch : result.epochs) all["epochs"].push_back(cli::json_of(epoch, held_out_.has_value()));
    return all;
  }

  const TrainFlags& flags_;
  const PeerTrainOptions& run_;
  peer::MpiJob& job_;
  Dataset data_;
  std::optional<Dataset> held_out_;
  std::unique_ptr<PeerPort> port_;
  PeerTrainObserver observer_;
};

Outcome run_train(const TrainFlags& flags) {
  const Result<PeerTrainOptions> options = train_options_of(flags);
  if (!options) return fail_with(options.error());
  auto job = peer::MpiJob::begin(mpi_threads_of(flags.mpi_threads));
  if (!job) return std::unexpected(failure_of(job.error(), ErrorPlace::kRanks));
  Outcome outcome;
  try {
    const bool by_thread = options->options.asynchronous > 0 && options->options.path == ExchangePath::kPeers;
    if (by_thread && (*job)->threads() < peer::MpiThreads::kSerialized) {
      outcome = fail_with(ExitCode::kUsage, "--asynchronous needs --mpi-threads serialized or multiple");
    } else {
      outcome = TrainCommand(flags, *options, **job).run();
    }
  } catch (const std::exception& exception) {
    end_job(**job, kTrainCommand, {ExitCode::kInternal, exception.what()});
  }
  if (outcome) return outcome;
  // All ranks have come to the same end: one says so, before any has ended, since mpirun then sends SIGTERM to the others.
  if ((*job)->rank() == 0) monitoring::say(fmt::format("{}: {}", kTrainCommand, outcome.error().message));
  std::signal(SIGTERM, SIG_IGN);
  return fail_with(outcome.error().code, "");
}

void add_data_flags(CLI::App& app, TrainFlags& flags) {
  app.add_option("--train", flags.train_path,
                 "LIBSVM text that all ranks can read; each reads the lines that begin in its share of the bytes")
      ->required()
      ->check(not_empty());
  app.add_option("--test", flags.test_path, "held-out rows, read the same way, evaluated after every epoch")
      ->check(not_empty());
  app.add_option(
         "--dimension", flags.dimension,
         "features of the model: the largest index, or with --index-base 0 one more (default: what --train needs)")
      ->check(in_range(uint64_t{1}, kDimensionMax - 1));
  app.add_option("--index-base", flags.index_base, "number of the first feature in the files: 1 (LIBSVM's), or 0")
      ->capture_default_str()
      ->check(in_range(0, 1));
  app.add_option("-o,--output", flags.output, "model file, written by rank 0 at the end (millrace eval reads it)")
      ->check(not_empty());
  app.add_option("--model", flags.model, "lr (logistic regression), svm (linear SVM) or l2svm (its hinge squared)")
      ->capture_default_str()
      ->check(CLI::IsMember({"lr", "svm", "l2svm"}));
}

void add_descent_flags(CLI::App& app, TrainFlags& flags) {
  OptimizerOptions& options = flags.options.options;
  std::vector<std::string> names;
  std::string words;
  for (const OptimizerInfo& one : optimizers()) {
    names.emplace_back(one.name);
    words += fmt::format("{}{}", words.empty() ? "" : ", ", one.name);
  }
  app.add_option("--optimizer", flags.optimizer, words + "; below is what each is")
      ->capture_default_str()
      ->check(CLI::IsMember(names));
  app.add_option("--lr", flags.rate,
                 "learning rate; scd: of a step that is safe at 1 (an epoch takes every feature once)")
      ->capture_default_str()
      ->check(in_range(1e-12, 1e6));
  app.add_option("--schedule", flags.schedule,
                 "of the rate, t epochs on: constant; inverse[:E], rate / (1 + t/E); inverse_sqrt[:E], "
                 "rate / sqrt(1 + t/E); step[:FACTOR[:E]], times FACTOR (0.5) every E (1) epochs")
      ->capture_default_str();
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
      ->check(CLI::IsMember({"sparse", "dense"}));
  app.add_option("--beta1", options.beta1, "momentum: what a step leaves of the velocity; adam: of the first moment")
      ->capture_default_str()
      ->check(in_range(0.0, 1.0));
  app.add_option("--beta2", options.beta2, "adam: what a step leaves of the second moment")
      ->capture_default_str()
      ->check(in_range(0.0, 1.0));
  app.add_option("--epsilon", options.epsilon, "adam: added to the root of the second moment")
      ->capture_default_str()
      ->check(in_range(1e-30, 1.0));
  app.add_option("--order", flags.order, "of a rank's rows: shuffled in every epoch, or as in the file")
      ->capture_default_str()
      ->check(CLI::IsMember({"shuffled", "file"}));
  app.add_option("--epochs", flags.options.epochs, "passes over the rows")
      ->capture_default_str()
      ->check(in_range(1u, 1'000'000u));
  app.add_option("--steps", flags.options.steps_max, "end after so many steps (default: whole epochs)")
      ->check(in_range(uint64_t{1}, std::numeric_limits<uint64_t>::max()));
  app.add_option("--threads", flags.options.threads, "that compute within a rank, each a share of the batch")
      ->capture_default_str()
      ->check(in_range(1u, 1'024u));
  app.add_option("--seed", options.seed, "of the order of rows, and every random choice")
      ->capture_default_str()
      ->check(in_range(uint64_t{0}, std::numeric_limits<uint64_t>::max()));
}

void add_path_flags(CLI::App& app, TrainFlags& flags) {
  app.add_option(
         "--path", flags.path,
         "what sums the gradients: peers, the ranks by an allreduce; servers, sharded servers, whose workers the ranks "
         "are. All else is the same")
      ->capture_default_str()
      ->check(CLI::IsMember({"peers", "servers"}));
  app.add_option("--servers", flags.servers, "path servers: host:port,host:port, one shard each (millrace serve)")
      ->check(not_empty());
  app.add_option("--job", flags.options.options.job,
                 "name of the job: at the servers (path servers), and the label `job` of metrics (--http)")
      ->capture_default_str()
      ->check(not_empty());
  app.add_option("--connect-timeout-ms", flags.options.options.connect_timeout_ms,
                 "path servers: for reaching every shard")
      ->capture_default_str()
      ->check(in_range(1u, 86'400'000u));
}

void add_exchange_flags(CLI::App& app, TrainFlags& flags) {
  OptimizerOptions& options = flags.options.options;
  app.add_option("--algorithm", flags.algorithm,
                 "path peers: that sums the gradients: " + names_of_algorithms() + " (default: the optimizer's)");
  app.add_option(
      "--select", flags.select,
      "what of a gradient is sent, the rest stays for later (with --unbiased, it does not): " + selection_words() +
          ", then :signs (one sign a step), :dense=STEPS (the first steps send everything, and no codec "
          "changes their values) or :warm_up=STEPS; algorithms that keep the largest entries of the sum "
          "(topk_a, gtopk, "
          "gaussian_k, oktopk) need topk (default: the optimizer's)");
  app.add_option("--threshold-period", options.thresholds_period,
                 "oktopk: steps between exact thresholds, each rank's own and the global one (Ok-Topk's tau')")
      ->capture_default_str()
      ->check(in_range(1u, 1u << 20));
  app.add_option("--boundaries", flags.boundaries,
                 "oktopk, path peers: of the ranks' regions; pooled where entries lie in other places on every rank")
      ->capture_default_str()
      ->check(CLI::IsMember(boundaries_names()));
  app.add_option("--boundary-period", options.boundaries_period,
                 "oktopk, path peers: steps between two that find the regions anew (the paper's tau)")
      ->capture_default_str()
      ->check(in_range(1u, 1u << 20));
  app.add_option(
      "--codec", flags.codec,
      "of what ranks contribute, INDEX+VALUE; sums have its index codec, losslessly (raw: none; path servers has "
      "auto as well) (default: the optimizer's)");
  app.add_option("--quantizer", flags.quantizer, "path peers: of dense phases (dsar_split_allgather): raw+qsgd4");
  app.add_option("--momentum", flags.momentum,
                 "rgc: none, correction:FACTOR, nesterov:FACTOR or nesterov_printed:FACTOR (RedSync's algorithm 4 to "
                 "the letter), of each rank before the sum; ends for entries that were applied, unless :unmasked "
                 "follows; steps that send everything end none (default: correction:0.9)");
  app.add_option(
         "--clip", options.clip,
         "rgc, momentum, adam: scale a rank's mean gradient down to this L2 norm over the square root of the ranks; 0 "
         "does not")
      ->capture_default_str()
      ->check(in_range(0.0, 1e30));
  app.add_flag("--unbiased", options.unbiased,
               "keep nothing back: the sent entries are the gradient in expectation (--select none, random, gspar, "
               "gspar_closed or uniform; algorithms with exact sums; no masked momentum)");
  app.add_flag(
      "--reproducible", options.reproducible,
      "the same bits by every algorithm with exact sums, and over servers: values are rounded to a grid, what that "
      "leaves is sent later");
  app.add_option(
         "--grid", options.grid,
         "of --reproducible, BLOCK:EXPONENT: indices that share a power of 2, and the first one; auto: 4096:-20, "
         "as millrace train has it over servers and switches")
      ->capture_default_str();
  app.add_option("--reselect", options.reselect,
                 "of --reproducible: what the sum is cut to, none or topk:D, by the counts of the step before")
      ->capture_default_str();
  app.add_option("--asynchronous", options.asynchronous,
                 "steps whose sums may be under way while the next is computed: a gradient is of a model so many steps "
                 "old (0: none)")
      ->capture_default_str()
      ->check(in_range(0u, 64u));
  app.add_option("--silence-ms", flags.silence_ms_max,
                 "a rank that does not answer for so long is taken for dead; longer than a step computes")
      ->capture_default_str()
      ->check(in_range(1u, 3'600'000u));
  app.add_option("--mpi-threads", flags.mpi_threads, "MPI's thread level")
      ->capture_default_str()
      ->check(CLI::IsMember({"single", "funneled", "serialized", "multiple"}));
}

}  // namespace

Command add_peer_train_command(CLI::App& root) {
  auto flags = std::make_shared<TrainFlags>();
  CLI::App* app =
      root.add_subcommand("train", "trains a linear model over MPI: gradients summed among the ranks, or by servers");
  add_data_flags(*app, *flags);
  add_descent_flags(*app, *flags);
  add_path_flags(*app, *flags);
  add_exchange_flags(*app, *flags);
  app->add_option(
         "--http", flags->http,
         "HOST:PORT of metrics (Prometheus), health and numbers: rank r listens on PORT + r; port 0 takes any, "
         "which is printed")
      ->check(not_empty());
  app->add_flag("--json", flags->json, "one JSON object as the last line, of rank 0");
  app->footer(
      "Run it under mpirun; every rank with the same flags, but --threads. A step takes up to --batch rows of every "
      "rank; "
      "all ranks\n"
      "have the same model after it, and compare it bit for bit after every epoch.\n"
      "Columns: rate of the last step; loss and accuracy on all ranks' rows with the epoch's model; entries of a "
      "rank "
      "in a step's sum; MB sent\n"
      "in the epoch by the rank that sends most; seconds of the slowest rank, and of these, on average, computing and "
      "waiting for sums.\n"
      "SIGTERM or SIGINT to any rank ends all of them at the same step, within half a second and a step.\n\n"
      "Examples:\n"
      "  gunzip -c w8a.svm.gz > w8a.svm\n"
      "  mpirun -n 4 millrace-peer train --train w8a.svm --epochs 5 --lr 2 --batch 500\n"
      "  mpirun -n 4 millrace-peer train --train url.svm --test url.test.svm --model svm --schedule inverse_sqrt:2 "
      "--l2 1e-6 -o url.model\n"
      "  mpirun -n 4 millrace-peer train --train url.svm --algorithm oktopk --select topk:0.0001 --codec gap+qsgd4 "
      "--json\n"
      "  mpirun -n 4 millrace-peer train --train url.svm --asynchronous 1 --lr 0.5\n"
      "  mpirun -n 4 millrace-peer train --train url.svm --optimizer scd --model l2svm --l2 1e-6 --epochs 10\n"
      "  mpirun -n 4 millrace-peer train --train url.svm --optimizer oktopk_sgd --select topk:0.001\n"
      "  mpirun -n 4 millrace-peer train --train url.svm --optimizer rgc --momentum nesterov:0.9 --clip 1 --lr 0.2 "
      "--select by_size:0.001:dense=100\n"
      "  mpirun -n 4 millrace-peer train --train url.svm --unbiased --select gspar:0.01   # GSpar's algorithm 1\n"
      "  mpirun -n 4 millrace-peer train --train url.svm --optimizer svrg --unbiased --select gspar:0.1   # its figure "
      "2\n"
      "  mpirun -n 4 millrace-peer train --train url.svm --optimizer adam --lr 0.02 --unbiased --select gspar:0.004\n"
      "  millrace serve --shards 2 &   # the same over servers\n"
      "  mpirun -n 4 millrace-peer train --train url.svm --optimizer rgc --path servers --servers "
      "127.0.0.1:7600,127.0.0.1:7601\n"
      "  mpirun -n 4 millrace-peer train --train url.svm --http 127.0.0.1:9401 &   # curl 127.0.0.1:9402/metrics: rank "
      "1\n"
      "  millrace eval --model url.model --data url.test.svm\n\n" +
      table_of_optimizers() + '\n' + exit_code_table());
  return {app, [flags] { return run_train(*flags); }};
}

}  // namespace millrace::cli
