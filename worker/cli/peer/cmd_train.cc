#include <fmt/format.h>

#include <csignal>
#include <exception>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "monitoring/standard_streams.h"
#include "worker/cli/atomic_file.h"
#include "worker/cli/flag_range.h"
#include "worker/cli/interruption.h"
#include "worker/cli/model_file.h"
#include "worker/cli/peer/agree.h"
#include "worker/cli/peer/mpi_end.h"
#include "worker/cli/peer/opt/read_share.h"
#include "worker/cli/peer/opt/train_run.h"
#include "worker/cli/peer/peer_commands.h"
#include "worker/cli/progress.h"
#include "worker/peer/mpi_file.h"
#include "worker/peer/stream_wire.h"

namespace millrace::cli {
namespace {

constexpr const char* kCommand = "millrace-peer train";

struct TrainFlags {
  PeerTrainOptions options;
  std::string train_path;
  std::string test_path;
  std::string output;
  std::string model = "lr";
  std::string optimizer = "sgd";
  std::string schedule = "constant";
  std::string order = "shuffled";
  std::string algorithm = "ssar_split_allgather";
  std::string select = "none";
  std::string codec;
  std::string quantizer;
  std::string mpi_threads = "serialized";
  double rate = 1;
  uint64_t dimension = 0;
  uint32_t silence_ms_max = 30'000;
  bool json = false;
};

std::string names_of_algorithms() {
  std::string names;
  for (const peer::AlgorithmInfo& one : peer::algorithms()) names.append(names.empty() ? "" : ", ").append(one.name);
  return names;
}

Status read_codec(const std::string& flag, const std::string& text, std::optional<CodecSpec>& into) {
  if (text.empty() || text == "raw") return {};
  const Result<CodecSpec> spec = codec_from_text(text);
  if (!spec) return std::unexpected(spec.error());
  if (spec->automatic) return fail(ErrorCode::kInvalidArgument, flag + ": peers have no automatic codec: name one");
  into = *spec;
  return {};
}

/// Errors   invalid_argument: words that mean nothing, and what the optimizer or the algorithm does not take.
Result<PeerTrainOptions> options_of(const TrainFlags& flags) {
  PeerTrainOptions run = flags.options;
  OptimizerOptions& options = run.options;
  run.optimizer = find_optimizer(flags.optimizer);
  options.loss = loss_by_name(flags.model).value();
  options.order = flags.order == "file" ? RowOrder::kFile : RowOrder::kShuffled;
  const Result<RateSchedule> schedule = rate_schedule_from_text(flags.schedule, flags.rate);
  if (!schedule) return std::unexpected(schedule.error());
  options.schedule = *schedule;
  const peer::AlgorithmInfo* algorithm = peer::find_algorithm(flags.algorithm);
  if (algorithm == nullptr) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("there is no algorithm '{}'; there are {}", flags.algorithm, names_of_algorithms()));
  }
  options.algorithm = algorithm->id;
  const Result<SelectionSpec> select = selection_from_text(flags.select);
  if (!select) return std::unexpected(select.error());
  options.select = *select;
  if (Status status = read_codec("--codec", flags.codec, options.codec); !status)
    return std::unexpected(status.error());
  if (Status status = read_codec("--quantizer", flags.quantizer, options.quantizer); !status) {
    return std::unexpected(status.error());
  }
  if (Status status = run.optimizer->check(options); !status) return std::unexpected(status.error());
  return run;
}

/// What ranks are told before they read: all of it must be the same.
std::string description_of(const TrainFlags& flags, const PeerTrainOptions& run) {
  return fmt::format("{}; --select {} --train {} --test {} --dimension {} --epochs {} --steps {}",
                     description_of(*run.optimizer, run.options), flags.select, flags.train_path, flags.test_path,
                     flags.dimension, run.epochs, run.steps_max);
}

Result<Dataset> read_file(peer::PeerGroup& group, const std::string& path, uint64_t dimension) {
  const auto file = peer::MpiFile::open(path);
  if (Status status = agree(group, "open " + path, file ? Status{} : std::unexpected(file.error())); !status) {
    return std::unexpected(status.error());
  }
  const SharedFile shared{path, (*file)->bytes(),
                          [&file](uint64_t at, std::span<uint8_t> into) { return (*file)->read_at(at, into); }};
  Result<Dataset> data = read_share(group, shared, dimension);
  if (data && data->dimension >= kDimensionMax) {
    return fail(ErrorCode::kLimitExceeded, path + ": features above 2^32 - 1 leave no room for the intercept");
  }
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
                        {"bytes_sent_sum", epoch.bytes_sum}};
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
    if (!reading) return fail_with(reading.error());
    // Ranks read in a group of its own, which this thread moves along: a group's thread would call MPI while MPI reads.
    const auto training = peer::MpiCommunicator::over_world();
    if (!training) return fail_with(training.error());
    if (Outcome outcome = read(**reading); !outcome) return outcome;
    const auto progress = run_.options.asynchronous > 0 ? peer::Progress::kByThread : peer::Progress::kByCaller;
    peer::PeerGroup group(**training, {.silence_ms_max = flags_.silence_ms_max}, progress);
    return told(group, train(group));
  }

 private:
  bool speaks() const { return job_.rank() == 0; }

  /// Where the group has ended ranks may have failed for other reasons, or be stuck: each says its own, before it destroys
  /// anything.
  Outcome told(const peer::PeerGroup& group, const Outcome& outcome) {
    if (!outcome && group.failure()) end_job(job_, kCommand, outcome.error());
    return outcome;
  }

  Outcome read(peer::Communicator& communicator) {
    peer::PeerGroup group(communicator, {.silence_ms_max = flags_.silence_ms_max}, peer::Progress::kByCaller);
    // What can be known to fail at the end is said before hours of training.
    Status writable;
    if (speaks() && !flags_.output.empty()) {
      if (const auto probe = AtomicFile::create(flags_.output); !probe) writable = std::unexpected(probe.error());
    }
    Status status = agree(group, description_of(flags_, run_), writable);
    if (status) {
      Result<Dataset> train = read_file(group, flags_.train_path, flags_.dimension);
      if (!train) status = std::unexpected(train.error());
      if (train) data_ = std::move(*train);
    }
    if (status && !flags_.test_path.empty()) {
      Result<Dataset> test = read_file(group, flags_.test_path, data_.dimension);
      if (!test) status = std::unexpected(test.error());
      if (test) held_out_ = std::move(*test);
    }
    return told(group, status ? Outcome{} : fail_with(status.error()));
  }

  Outcome train(peer::PeerGroup& group) {
    const bool prints = speaks() && !flags_.json;
    if (prints) {
      fmt::print("{} ranks, {} threads each; {} rows, {} features; {}\n", job_.size(), run_.threads,
                 grouped(data_.rows_in_file), grouped(data_.dimension), label_pair_text(data_.label_pair));
      print_head(held_out_.has_value());
    }
    const auto on_epoch = [&](const PeerEpoch& epoch) {
      if (!prints) return;
      print_epoch(epoch, held_out_.has_value());
      static_cast<void>(monitoring::flush_output());
    };
    // Until here nothing is held that an end at once would leave behind.
    const std::atomic<bool>& stop = interruption_flag();
    const auto result = train_over_peers(group, data_, held_out_ ? &*held_out_ : nullptr, run_, on_epoch, stop);
    if (!result) return fail_with(result.error());
    if (result->interrupted) {
      return fail_with(ExitCode::kInterrupted,
                       fmt::format("interrupted after step {}; no model is written", result->steps));
    }
    Status written;
    if (speaks() && !flags_.output.empty()) written = write_model(flags_.output, result->model);
    if (Status status = agree(group, "written", written); !status) return fail_with(status.error());
    if (prints && !flags_.output.empty()) fmt::print("model: {}\n", flags_.output);
    if (speaks() && flags_.json) fmt::print("{}\n", json_of(*result).dump());
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
                          {"coordinates", options.coordinates},
                          {"algorithm", peer::algorithm_info(options.algorithm).name},
                          {"select", flags_.select},
                          {"codec", peer::wire_text(options.codec)},
                          {"schedule", rate_schedule_text(options.schedule)},
                          {"asynchronous", options.asynchronous},
                          {"seed", options.seed},
                          {"steps", result.steps},
                          {"models_identical", true}};  // else it is an error
    all["epochs"] = nlohmann::json::array();
    for (const PeerEpoch& epoch : result.epochs) all["epochs"].push_back(cli::json_of(epoch, held_out_.has_value()));
    return all;
  }

  const TrainFlags& flags_;
  const PeerTrainOptions& run_;
  peer::MpiJob& job_;
  Dataset data_;
  std::optional<Dataset> held_out_;
};

Outcome run_train(const TrainFlags& flags) {
  const Result<PeerTrainOptions> options = options_of(flags);
  if (!options) return fail_with(options.error());
  auto job = peer::MpiJob::begin(mpi_threads_of(flags.mpi_threads));
  if (!job) return fail_with(job.error());
  Outcome outcome;
  try {
    if (options->options.asynchronous > 0 && (*job)->threads() < peer::MpiThreads::kSerialized) {
      outcome = fail_with(ExitCode::kUsage, "--asynchronous needs --mpi-threads serialized or multiple");
    } else {
      outcome = TrainCommand(flags, *options, **job).run();
    }
  } catch (const std::exception& exception) {
    end_job(**job, kCommand, {ExitCode::kInternal, exception.what()});
  }
  if (outcome) return outcome;
  // All ranks have come to the same end: one says so, before any has ended, since mpirun then sends SIGTERM to the others.
  if ((*job)->rank() == 0) monitoring::say(fmt::format("{}: {}", kCommand, outcome.error().message));
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
  app.add_option("--dimension", flags.dimension, "largest feature index (default: that of --train)")
      ->check(in_range(uint64_t{1}, kDimensionMax - 1));
  app.add_option("-o,--output", flags.output, "model file, written by rank 0 at the end (millrace eval reads it)")
      ->check(not_empty());
  app.add_option("--model", flags.model, "lr (logistic regression) or svm (linear SVM)")
      ->capture_default_str()
      ->check(CLI::IsMember({"lr", "svm"}));
}

void add_descent_flags(CLI::App& app, TrainFlags& flags) {
  OptimizerOptions& options = flags.options.options;
  std::vector<std::string> names;
  std::string words;
  for (const OptimizerInfo& one : optimizers()) {
    names.emplace_back(one.name);
    words += fmt::format("{}{}: {}", words.empty() ? "" : "; ", one.name, one.summary);
  }
  app.add_option("--optimizer", flags.optimizer, words)->capture_default_str()->check(CLI::IsMember(names));
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
  app.add_option("--batch", options.batch_rows, "sgd: rows a rank and step, at most")
      ->capture_default_str()
      ->check(in_range(1u, 1u << 30));
  app.add_option("--coordinates", options.coordinates, "scd: features a rank and step, at most")
      ->capture_default_str()
      ->check(in_range(1u, 1u << 30));
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

void add_exchange_flags(CLI::App& app, TrainFlags& flags) {
  app.add_option("--algorithm", flags.algorithm, "sgd: that sums the gradients: " + names_of_algorithms())
      ->capture_default_str();
  app.add_option(
         "--select", flags.select,
         "what of a gradient is sent, the rest stays for later: " + selection_words() +
             "; algorithms that keep the largest entries of the sum (topk_a, gtopk, gaussian_k, oktopk) need topk")
      ->capture_default_str();
  app.add_option("--codec", flags.codec,
                 "of what ranks contribute, INDEX+VALUE; sums have its index codec, losslessly (raw: none)");
  app.add_option("--quantizer", flags.quantizer, "of dense phases (dsar_split_allgather): raw+qsgd4");
  app.add_option("--asynchronous", flags.options.options.asynchronous,
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
  CLI::App* app = root.add_subcommand("train", "trains a linear model over MPI: gradients summed among the ranks");
  add_data_flags(*app, *flags);
  add_descent_flags(*app, *flags);
  add_exchange_flags(*app, *flags);
  app->add_flag("--json", flags->json, "one JSON object as the last line, of rank 0");
  app->footer(
      "Run it under mpirun; every rank with the same flags, but --threads. A step takes up to --batch rows of every "
      "rank; "
      "all ranks\n"
      "have the same model after it, and compare it bit for bit after every epoch.\n"
      "Columns: rate of the last step; loss and accuracy on all ranks' rows with the epoch's model; entries a rank "
      "sends "
      "in a step; MB sent\n"
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
      "  mpirun -n 4 millrace-peer train --train url.svm --optimizer scd --l2 1e-6 --epochs 10\n"
      "  millrace eval --model url.model --data url.test.svm\n\n" +
      exit_code_table());
  return {app, [flags] { return run_train(*flags); }};
}

}  // namespace millrace::cli
