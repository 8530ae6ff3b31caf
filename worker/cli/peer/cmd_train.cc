#include <fmt/format.h>

#include <csignal>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "monitoring/http/secure/http_security.h"
#include "monitoring/standard_streams.h"
#include "monitoring/trace/span_recorder.h"
#include "protocol/files/atomic_file.h"
#include "worker/cli/peer/peer_commands.h"
#include "worker/cli/peer/peer_train_flags.h"
#include "worker/config/option_text.h"
#include "worker/config/selection_text.h"
#include "worker/peer/transport/mpi_file.h"
#include "worker/program/interruption.h"
#include "worker/program/json_text.h"
#include "worker/program/memory_room.h"
#include "worker/program/mpi/mpi_end.h"
#include "worker/program/program.h"
#include "worker/program/progress.h"
#include "worker/training/exchange/group_agreement.h"
#include "worker/training/exchange/path_measure.h"
#include "worker/training/model/model_file.h"
#include "worker/training/peers/peer_port.h"
#include "worker/training/peers/read_shared_file.h"
#include "worker/training/peers/train_over_peers.h"

namespace millrace::cli {

using program::ErrorPlace;
using program::ExitCode;
using program::fail_with;
using program::failure_of;
using program::Outcome;
using training::agree;
using training::Dataset;
using training::ExchangePath;
using training::IndexBase;
using training::PeerEpoch;
using training::PeerTrainOptions;

namespace {

constexpr const char* kTrainCommand = "millrace-peer train";

IndexBase index_base_of(const PeerTrainFlags& flags) {
  return flags.index_base == 0 ? IndexBase::kZero : IndexBase::kOne;
}

/// Returns the text on which ranks must agree before they read.
std::string description_of(const PeerTrainFlags& flags, const PeerTrainOptions& run) {
  return fmt::format("{}; --path {} --train {} --test {} --dimension {} --index-base {} --epochs {} --steps {}",
                     training::description_of(*run.optimizer, run.options), path_flag_name(flags.path),
                     flags.train_path, flags.test_path, flags.dimension, flags.index_base, run.epochs, run.steps_max);
}

Result<Dataset> read_file(peer::PeerGroup& group, const std::string& path, const training::LibsvmOptions& how) {
  const auto file = peer::MpiFile::open(path);
  if (Status status = agree(group, "open " + path, file ? Status{} : std::unexpected(file.error())); !status) {
    return std::unexpected(status.error());
  }
  const training::SharedFile shared{
      path, (*file)->bytes(), [&file](uint64_t at, std::span<uint8_t> into) { return (*file)->read_at(at, into); }};
  Result<Dataset> data = training::read_share(group, shared, how);
  if (data && data->dimension >= kDimensionMax) {
    return fail(ErrorCode::kLimitExceeded, path + ": features above 2^32 - 1 leave no room for the intercept");
  }
  if (!data) return data;
  // One machine may have room for the model and another not: all ranks end together.
  const std::string what = fmt::format("{}: its largest feature is {}", path, data->dimension);
  const Status fits = program::check_model_fits(what, data->dimension, program::memory_available_bytes());
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

void print_peer_head(bool held_out) {
  fmt::print("{:>5} {:>7} {:>9} {:>9} {:>8}{} {:>10} {:>9} {:>9} {:>9} {:>10}\n", "epoch", "steps", "rate", "loss",
             "accuracy", held_out ? fmt::format(" {:>9} {:>8}", "held-out", "accuracy") : "", "entries", "MB sent", "s",
             "computing", "waiting");
}

void print_peer_epoch(const PeerEpoch& epoch, bool held_out) {
  fmt::print("{:>5} {:>7} {:>9.4g} {:>9.5f} {:>8.4f}{} {:>10.1f} {:>9.3f} {:>9.3f} {:>9.3f} {:>10.3f}\n", epoch.epoch,
             epoch.steps, epoch.rate, epoch.train.loss, epoch.train.accuracy,
             held_out ? fmt::format(" {:>9.5f} {:>8.4f}", epoch.held_out.loss, epoch.held_out.accuracy) : "",
             epoch.entries_mean, static_cast<double>(epoch.bytes_max) * 1e-6, epoch.seconds, epoch.compute_s,
             epoch.waiting_s);
}

/// One rank from its data to the model.
class TrainCommand {
 public:
  TrainCommand(const PeerTrainFlags& flags, const PeerTrainOptions& run, peer::MpiJob& job)
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
    const bool by_thread = training::staleness_of(run_.options) > 0 && run_.options.path == ExchangePath::kPeers;
    const auto progress = by_thread ? peer::Progress::kByThread : peer::Progress::kByCaller;
    peer::PeerGroup group(**training, {.silence_ms_max = flags_.silence_ms_max}, progress);
    return told(group, train(group));
  }

 private:
  bool speaks() const { return job_.rank() == 0; }

  std::unexpected<program::Failure> fail_as(const peer::PeerGroup& group, const Error& error) const {
    return std::unexpected(failure_of(error, training::place_of(group, run_.options.path)));
  }

  /// Where the group has ended ranks may have failed for other reasons, or be stuck: each says its own, before it
  /// destroys anything.
  Outcome told(const peer::PeerGroup& group, const Outcome& outcome) {
    if (!outcome && group.failure()) program::end_job(job_, kTrainCommand, outcome.error());
    return outcome;
  }

  Outcome read(peer::Communicator& communicator) {
    peer::PeerGroup group(communicator, {.silence_ms_max = flags_.silence_ms_max}, peer::Progress::kByCaller);
    // A failure at the end that can be foreseen is reported before hours of training.
    Status writable;
    if (speaks() && !flags_.output.empty()) writable = files::try_to_write(flags_.output);
    if (writable && !run_.chooses_path) writable = open_port();
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
                                        .use = training::RowUse::kHeldOut,
                                        .trained_pair = data_.label_pair});
      if (!test) status = std::unexpected(test.error());
      if (test) held_out_ = std::move(*test);
    }
    if (status && run_.chooses_path) status = choose(group);
    return told(group, status ? Outcome{} : fail_as(group, status.error()));
  }

  /// Chooses the path, and opens the port, which shows it.
  Status choose(peer::PeerGroup& group) {
    auto choice = training::measure_paths(group, data_, run_.options);
    if (!choice) return std::unexpected(choice.error());
    run_.options.path = choice->path;
    run_.path_reason = training::path_choice_text(*choice);
    choice_ = *choice;
    return agree(group, "port", open_port());
  }

  /// The port of this rank, where --http asks for one, fed by the run.
  Status open_port() {
    if (flags_.http.empty()) return {};
    const auto address = training::http_address_of_rank(flags_.http, job_.rank());
    if (!address) return std::unexpected(address.error());
    auto protection = monitoring::open_http_protection(*address, flags_.http_security);
    if (!protection) return std::unexpected(protection.error());
    auto started = training::PeerPort::start({.address = *address, .protection = std::move(*protection)},
                                             {run_.options.job.name, job_.rank(), job_.size(), run_.options.path},
                                             {.progress = {}, .unhealthy = {}, .spans = &spans_});
    if (!started) return std::unexpected(started.error());
    port_ = std::move(*started);
    observer_.spans = &spans_;
    observer_.on_step = [at = port_.get()](double seconds) { at->step_done(seconds); };
    observer_.on_progress = [at = port_.get()](const training::PeerProgress& progress) { at->update(progress); };
    if (run_.options.path == ExchangePath::kServers)
      observer_.on_update = [at = port_.get()](double seconds) { at->update_done(seconds); };
    if (!flags_.json) fmt::print("rank {}: status: port {}\n", job_.rank(), port_->port());
    return monitoring::flush_output() ? Status{} : fail(ErrorCode::kIo, "standard output cannot be written");
  }

  Outcome train(peer::PeerGroup& group) {
    const bool prints = speaks() && !flags_.json;
    if (prints) {
      fmt::print("{} ranks, {} threads each; {} rows, {} features; {}\n", job_.size(), run_.threads,
                 program::grouped(data_.rows_in_file), program::grouped(data_.dimension),
                 training::label_pair_text(data_.label_pair));
      if (held_out_ && held_out_->entries_left_out > 0)
        fmt::print("{}", training::left_out_text(flags_.test_path, *held_out_));
      if (flags_.path == PathFlag::kAuto)
        fmt::print("path {}: {}\n", training::path_name(run_.options.path), run_.path_reason);
      print_peer_head(held_out_.has_value());
    }
    observer_.on_epoch = [this, prints](const PeerEpoch& epoch) {
      if (!prints) return;
      print_peer_epoch(epoch, held_out_.has_value());
      static_cast<void>(monitoring::flush_output());
    };
    // Until here nothing is held that an end at once would leave behind.
    const std::atomic<bool>& stop = program::interruption_flag();
    const auto result =
        training::train_over_peers(group, data_, held_out_ ? &*held_out_ : nullptr, run_, observer_, stop);
    if (!result) return fail_as(group, result.error());
    if (result->interrupted) {
      return fail_with(ExitCode::kInterrupted,
                       fmt::format("interrupted after step {}; no model is written", result->steps));
    }
    Status written;
    if (speaks() && !flags_.output.empty()) written = training::write_model(flags_.output, result->model);
    if (Status status = agree(group, "written", written); !status) return fail_as(group, status.error());
    if (prints && !flags_.output.empty()) fmt::print("model: {}\n", flags_.output);
    if (speaks() && flags_.json) fmt::print("{}\n", program::json_text(json_of(*result)));
    return {};
  }

  nlohmann::json json_of(const training::PeerTrainResult& result) const {
    const training::OptimizerOptions& options = run_.options;
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
                          {"path", training::path_name(options.path)},
                          {"select", worker::selection_text(training::select_of(options))},
                          {"codec", peer::wire_text(training::codec_of(options))},
                          {"schedule", training::rate_schedule_text(options.schedule)},
                          {"unbiased", options.job.contributions.unbiased},
                          {"momentum", worker::momentum_text(training::momentum_of(options))},
                          {"clip", options.job.contributions.clip},
                          {"staleness", training::staleness_of(options)},
                          {"seed", options.job.seed},
                          {"steps", result.steps},
                          {"messages_unexpected", result.messages_unexpected},
                          {"models_identical", true}};  // else it is an error
    const bool sums_by_algorithm = options.path == ExchangePath::kPeers && run_.optimizer->name != "scd";
    if (sums_by_algorithm) all["algorithm"] = peer::algorithm_info(options.algorithm).name;
    if (options.path == ExchangePath::kServers) all["servers"] = options.me.shards.size();
    if (flags_.path == PathFlag::kAuto) all["path_choice"] = choice_json();
    all["epochs"] = nlohmann::json::array();
    for (const PeerEpoch& epoch : result.epochs) all["epochs"].push_back(cli::json_of(epoch, held_out_.has_value()));
    return all;
  }

  /// Returns the reason for this path. Where the ranks chose it, it has the times, in which only the parts that differ
  /// count.
  nlohmann::json choice_json() const {
    nlohmann::json said = {{"reason", run_.path_reason}};
    if (!choice_) return said;
    const training::PathQuestion& asked = choice_->question;
    said.update({{"peers_ms", choice_->peers.total_s() * 1e3},
                 {"peers_algorithm", choice_->peers.info.name},
                 {"servers_ms", choice_->servers.total_s() * 1e3},
                 {"entries", asked.shape.k},
                 {"latency_us", asked.speeds.latency_s * 1e6},
                 {"server_latency_us", asked.server_latency_s * 1e6},
                 {"byte_ns", asked.speeds.byte_s * 1e9}});
    return said;
  }

  const PeerTrainFlags& flags_;
  PeerTrainOptions run_;
  peer::MpiJob& job_;
  Dataset data_;
  std::optional<Dataset> held_out_;
  std::optional<training::PathChoice> choice_;  ///< --path auto, where both paths can do it
  monitoring::SpanRecorder spans_;              ///< before the port, which reads it
  std::unique_ptr<training::PeerPort> port_;
  training::PeerTrainObserver observer_;
};

Outcome run_peer_train(const PeerTrainFlags& flags) {
  if (std::string refusal = monitoring::refuse_http(flags.http, flags.http_security); !refusal.empty())
    return fail_with(ExitCode::kUsage, std::move(refusal));
  const Result<PeerTrainOptions> options = train_options_of(flags);
  if (!options) return fail_with(options.error());
  auto job = peer::MpiJob::begin(peer::mpi_threads_of(flags.mpi_threads));
  if (!job) return std::unexpected(failure_of(job.error(), ErrorPlace::kRanks));
  Outcome outcome;
  try {
    const bool by_thread =
        training::staleness_of(options->options) > 0 && options->options.path == ExchangePath::kPeers;
    if (by_thread && (*job)->threads() < peer::MpiThreads::kSerialized) {
      outcome = fail_with(ExitCode::kUsage, "--staleness needs --mpi-threads serialized or multiple");
    } else {
      outcome = TrainCommand(flags, *options, **job).run();
    }
  } catch (const std::exception& exception) {
    program::end_job(**job, kTrainCommand, {ExitCode::kInternal, exception.what()});
  }
  if (outcome) return outcome;
  // All ranks have come to the same end. One reports it, before any has ended, since mpirun then sends SIGTERM to the
  // others.
  if ((*job)->rank() == 0) monitoring::say(fmt::format("{}: {}", kTrainCommand, outcome.error().message));
  std::signal(SIGTERM, SIG_IGN);
  return fail_with(outcome.error().code, "");
}

}  // namespace

program::Command add_peer_train_command(CLI::App& root) {
  auto flags = std::make_shared<PeerTrainFlags>();
  CLI::App* app = program::add_command(
      root, "train", "trains a linear model over MPI: gradients summed among the ranks, or by servers");
  add_peer_train_flags(*app, *flags);
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
      "--path auto measures the ranks' network and the time in which the servers' hosts accept a connection, how fast "
      "ranks add and code,\n"
      "asks the cost models (millrace advise) and reports its choice and the reason; it tries neither out. The rate to "
      "servers is taken to be\n"
      "that among ranks. What only one path can do is done by that one; servers that cannot be reached are an error.\n"
      "SIGTERM or SIGINT to any rank ends all of them at the same step, within half a second and a step.\n\n"
      "Examples:\n"
      "  gunzip -c w8a.svm.gz > w8a.svm\n"
      "  mpirun -n 4 millrace-peer train --train w8a.svm --epochs 5 --lr 2 --batch 500\n"
      "  mpirun -n 4 millrace-peer train --train url.svm --test url.test.svm --model svm --lr-schedule inverse_sqrt:2 "
      "--l2 1e-6 -o url.model\n"
      "  mpirun -n 4 millrace-peer train --train url.svm --algorithm oktopk --select topk:0.0001 --codec-up gap+qsgd4 "
      "--json\n"
      "  mpirun -n 4 millrace-peer train --train url.svm --staleness 1 --lr 0.5\n"
      "  mpirun -n 4 millrace-peer train --train url.svm --optimizer scd --model l2svm --l2 1e-6 --epochs 10\n"
      "  mpirun -n 4 millrace-peer train --train url.svm --optimizer oktopk_sgd --select topk:0.001\n"
      "  mpirun -n 4 millrace-peer train --train url.svm --optimizer rgc --momentum nesterov:0.9 --clip 1 --lr 0.2 "
      "--select by_size:0.001:dense=100\n"
      "  mpirun -n 4 millrace-peer train --train url.svm --unbiased --select gspar:0.01   # [GSpar18, algorithm 1]\n"
      "  mpirun -n 4 millrace-peer train --train url.svm --optimizer svrg --unbiased --select gspar:0.1   # "
      "[GSpar18, figure 2]\n"
      "  mpirun -n 4 millrace-peer train --train url.svm --optimizer adam --lr 0.02 --unbiased --select gspar:0.004\n"
      "  millrace serve --shards 2 &   # the same over servers\n"
      "  mpirun -n 4 millrace-peer train --train url.svm --optimizer rgc --path server --servers "
      "127.0.0.1:7600,127.0.0.1:7601\n"
      "  mpirun -n 4 millrace-peer train --train url.svm --path auto --servers 127.0.0.1:7600,127.0.0.1:7601   # or "
      "peers\n"
      "  mpirun -n 4 millrace-peer train --train url.svm --http 127.0.0.1:9401 &   # curl 127.0.0.1:9402/metrics: rank "
      "1\n"
      "  millrace eval --model-file url.model --test url.test.svm\n\n" +
      optimizers_table() + '\n' + program::exit_code_table());
  return {app, [flags] { return run_peer_train(*flags); }};
}

}  // namespace millrace::cli
