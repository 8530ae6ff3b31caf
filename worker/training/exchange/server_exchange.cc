#include <fmt/format.h>
#include <poll.h>

#include <chrono>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/reduce/reduce.h"
#include "millrace/millrace.h"
#include "worker/config/option_access.h"
#include "worker/config/selection_text.h"
#include "worker/peer/channel/stream_wire.h"
#include "worker/training/exchange/exchange.h"
#include "worker/training/exchange/group_agreement.h"

/// Sums through servers: each rank is the worker of its number in a synchronous job, whose session clips, keeps
/// momentum and residual, selects and codes. The group is there all the same, for what else the ranks agree on.
namespace millrace::training {
namespace {

/// Session calls wait in slices. Between slices this rank serves the group: other ranks see that it is alive, and it
/// learns which ranks are not.
constexpr std::chrono::milliseconds kExchangeSlice(50);

/// How long an error of the session's waits for one of the group's that explains it.
constexpr int kLooksAtGroup = 20;
constexpr int kLookEveryMs = 10;

constexpr uint64_t kAnyDimension = 1 << 20;

/// Returns the error that the other ranks get. Its code tells a server that was lost, or sent malformed bytes, from one
/// that was never reached: the ranks' exit codes differ.
Error error_of_job(const JobError& error, bool joined) {
  const bool lost = error.code() == JobErrorCode::kUnavailable || error.code() == JobErrorCode::kMalformed;
  return {joined && lost ? ErrorCode::kShardLost : static_cast<ErrorCode>(error.code()), error.what()};
}

/// Ok-Topk: the threshold of a rank's own entries, exact every tau' steps, and of the sum the k largest.
SelectionSpec local_selection(const OptimizerOptions& options) {
  SelectionSpec spec = select_of(options);
  if (options.algorithm != peer::AlgorithmId::kOktopk) return spec;
  spec.selection = SelectionId::kThresholdReuse;
  spec.period = options.thresholds_period;
  return spec;
}

/// Errors  invalid_argument: oktopk with a selection that no sum has.
Result<protocol::ReselectSpec> sum_selection(const OptimizerOptions& options) {
  if (options.job.guarantees.reproducible) return reselect_of(options);
  if (options.algorithm != peer::AlgorithmId::kOktopk) return protocol::ReselectSpec{};
  const SelectionSpec select = select_of(options);
  if (select.selection != SelectionId::kTopK || select.alternate_signs || select.warm_up != WarmUp::kNone) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("oktopk keeps the largest entries of a sum: it takes --select "
                                                         "topk:DENSITY or topk:COUNT, and not {}",
                                                         worker::selection_text(select)));
  }
  return protocol::ReselectSpec{.reselect = protocol::Reselect::kTopK,
                                .density = select.k != 0 ? 0 : select.density,
                                .k = select.k,
                                .threshold_period = options.thresholds_period};
}

/// The codecs of contributions and updates.
std::pair<CodecSpec, CodecSpec> codecs_of(const OptimizerOptions& options) {
  const CodecSpec up = codec_of(options).value_or(CodecSpec{.index = IndexCodecId::kRaw});
  return {up, up.automatic ? up : peer::lossless_of(up)};
}

/// Errors  invalid_argument: a selection that no sum has.
Result<JobConfig> exchange_job(const OptimizerOptions& options, uint32_t ranks) {
  const auto reselect = sum_selection(options);
  if (!reselect) return std::unexpected(reselect.error());
  const auto [up, down] = codecs_of(options);
  JobConfig job = options.job;
  job.workers = ranks;
  job.workers_min = ranks;  // one model on all ranks: without one of them there is no job
  job.select = OptionAccess::selection_of(local_selection(options));
  job.reselect = OptionAccess::reselect_of(*reselect);
  job.codec_up = OptionAccess::codec_of(up);
  job.codec_down = OptionAccess::codec_of(down);
  job.contributions.codec_error = codec_error_of(options);
  return job;
}

WorkerConfig exchange_worker(const OptimizerOptions& options, uint32_t rank) {
  WorkerConfig me = options.me;
  me.worker = rank;
  return me;
}

TensorOptions exchange_tensor_options(uint64_t dimension) {
  TensorOptions tensor;
  tensor.name = "linear";
  tensor.dimension = dimension;
  return tensor;
}

/// The update's pieces as one stream. A piece without entries says no number of workers (its denominator is 1).
///
/// Errors  internal: parts that counted different numbers of workers, which cannot be where all of them are in every
///         step.
Result<StepSum> sum_of(const TensorUpdate& update, uint64_t dimension) {
  std::vector<StreamView> pieces;
  uint64_t covered = 0;
  std::optional<double> denominator;
  for (const UpdatePiece& piece : update.pieces) {
    if (!piece.values.empty() && !denominator) denominator = piece.denominator;
    const bool fits = piece.begin == covered && (piece.values.empty() || piece.denominator == *denominator);
    if (!fits) return fail(ErrorCode::kInternal, "the parts of step " + std::to_string(update.step) + " do not fit");
    pieces.push_back({piece.dimension, piece.dense, piece.indices, piece.values});
    covered += piece.dimension;
  }
  auto sum = concatenate(pieces);
  if (!sum) return std::unexpected(sum.error());
  if (covered != dimension) {
    return fail(ErrorCode::kInternal, "step " + std::to_string(update.step) + " covers " + std::to_string(covered) +
                                          " of " + std::to_string(dimension) + " parameters");
  }
  return StepSum{SharedStream::from(std::move(*sum)), denominator.value_or(1)};
}

class ServerExchange final : public Exchange {
 public:
  explicit ServerExchange(const ExchangeSetup& setup) : setup_(setup) {}

  Status connect(const OptimizerOptions& options) {
    const auto job = exchange_job(options, setup_.group.size());
    if (!job) return std::unexpected(job.error());
    WorkerConfig me = exchange_worker(options, setup_.group.rank());
    me.give_up = [this] { return group_has_ended(); };
    return guarded([&] { session_ = Session::connect(*job, me, {exchange_tensor_options(setup_.dimension)}); });
  }

  Status start(uint64_t step, Stream&& gradient) override {
    monitoring::SpanTimer timer(setup_.spans);
    const auto push = [&] {
      return gradient.dense ? session_->try_push(0, gradient.values, 1, kExchangeSlice)
                            : session_->try_push_sparse(0, gradient.indices, gradient.values, 1, kExchangeSlice);
    };
    const Result<uint64_t> number = in_slices<uint64_t>(push);
    if (!number) return std::unexpected(number.error());
    timer.end(setup_.span_of(step, monitoring::SpanName::kPush));
    in_flight_.push_back({*number, monotonic_now_ns(), step});
    return {};
  }

  Result<StepSum> finish_oldest() override {
    const InFlight oldest = in_flight_.front();
    in_flight_.pop_front();
    monitoring::SpanTimer timer(setup_.spans);
    const auto update = in_slices<TensorUpdate>([&] { return session_->try_await(0, oldest.push, kExchangeSlice); });
    if (!update) return std::unexpected(update.error());
    timer.end(setup_.span_of(oldest.step, monitoring::SpanName::kExchange));
    if (setup_.on_update) {
      const TimeNs took = monotonic_now_ns() - oldest.pushed_at;
      setup_.on_update(static_cast<double>(took) / static_cast<double>(kNsPerS));
    }
    Result<StepSum> sum = sum_of(*update, setup_.dimension);
    if (!sum) return end_group(setup_.group, sum.error());
    return sum;
  }

  size_t in_flight() const override { return in_flight_.size(); }

  ExchangeCounts counts() const override {
    const Stats stats = session_->stats();
    const TensorStats& tensor = stats.tensors[0];
    return {.entries = tensor.entries_sent - tensor.entries_returned,
            .sum_entries = tensor.entries_received,
            .residual_norm = tensor.residual_norm,
            .bytes_sent = stats.bytes_up,
            .bytes_received = stats.bytes_down,
            .session = stats};
  }

  Result<Stream> take_residual() override {
    Stream residual = Stream::empty(setup_.dimension);
    Status status = guarded([&] {
      const SparseEntries entries = session_->take_residual(0);
      residual.indices.assign(entries.indices.begin(), entries.indices.end());
      residual.values.assign(entries.values.begin(), entries.values.end());
    });
    if (!status) return std::unexpected(status.error());
    return residual;
  }

  Status end() override {
    const auto finish = [&] { return session_->try_finish(kExchangeSlice) ? std::optional<bool>(true) : std::nullopt; };
    const Result<bool> ended = in_slices<bool>(finish);
    return ended ? Status() : std::unexpected(ended.error());
  }

 private:
  struct InFlight {
    uint64_t push = 0;
    TimeNs pushed_at = 0;
    uint64_t step = 0;
  };

  /// An error of the session's is this rank's, and ends the group; one that follows from the group's end is the
  /// group's.
  template <typename Call>
  Status guarded(Call call) {
    try {
      call();
      return {};
    } catch (const JobError& error) {
      // A rank that gives up tells the group before its session leaves the job, which ends the others': its reason is
      // the one.
      for (int look = 0; look < kLooksAtGroup && !group_has_ended(); ++look) ::poll(nullptr, 0, kLookEveryMs);
      if (const auto failure = setup_.group.failure()) return std::unexpected(failure->error);
      return end_group(setup_.group, error_of_job(error, session_ != nullptr));
    }
  }

  bool group_has_ended() {
    setup_.group.make_progress();
    return setup_.group.failure().has_value();
  }

  /// Repeats a call that is empty where its slice of time has passed, until it has a value or the group has ended.
  template <typename T, typename Attempt>
  Result<T> in_slices(const Attempt& attempt) {
    std::optional<T> value;
    Status status = guarded([&] {
      while (!value && !group_has_ended()) value = attempt();
    });
    if (!status) return std::unexpected(status.error());
    if (!value) return std::unexpected(setup_.group.failure()->error);
    return std::move(*value);
  }

  ExchangeSetup setup_;
  std::unique_ptr<Session> session_;
  std::deque<InFlight> in_flight_;
};

}  // namespace

Status check_server_exchange(const OptimizerOptions& options) {
  const peer::AlgorithmInfo& info = peer::algorithm_info(options.algorithm);
  if (info.result == peer::ResultKind::kGlobalTopk && info.id != peer::AlgorithmId::kOktopk) {
    return fail(
        ErrorCode::kInvalidArgument,
        std::string(info.name) + " is an allreduce of --path peers; servers keep the largest of a sum for oktopk");
  }
  if (!options.job.guarantees.reproducible && reselects(options)) {
    return fail(ErrorCode::kInvalidArgument, "--reselect is of --reproducible: else take --algorithm oktopk");
  }
  if (options.job.guarantees.reproducible && info.result == peer::ResultKind::kGlobalTopk) {
    return fail(ErrorCode::kInvalidArgument,
                "reproducible: oktopk's thresholds are of some steps; take another algorithm, and --reselect topk:...");
  }
  if (options.quantizer) {
    return fail(ErrorCode::kInvalidArgument,
                "--quantizer is of dense phases among ranks, of --path peers; messages to servers have --codec-up");
  }
  try {
    const auto job = exchange_job(options, 1);
    if (!job) return fail(ErrorCode::kInvalidArgument, "--path server: " + job.error().message);
    Session::check(*job, exchange_worker(options, 0), {exchange_tensor_options(kAnyDimension)});
    return {};
  } catch (const JobError& error) {
    return fail(ErrorCode::kInvalidArgument, std::string("--path server: ") + error.what());
  }
}

Result<std::unique_ptr<Exchange>> make_server_exchange(const ExchangeSetup& setup, const OptimizerOptions& options) {
  auto exchange = std::make_unique<ServerExchange>(setup);
  if (Status status = exchange->connect(options); !status) return std::unexpected(status.error());
  return exchange;
}

}  // namespace millrace::training
