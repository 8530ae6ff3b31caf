#include "worker/python/src/python_peers.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <mutex>
#include <span>
#include <string>
#include <utility>

#include "kernels/codec/codec.h"
#include "kernels/stream/stream.h"
#include "worker/config/option_access.h"
#include "worker/core/residual/local_clip.h"
#include "worker/peer/library/group_impl.h"
#include "worker/python/src/algorithm_text.h"
#include "worker/python/src/fill_update.h"
#include "worker/python/src/float_output.h"
#include "worker/python/src/interpreter.h"

namespace py = pybind11;

namespace millrace::python {
namespace {

using std::chrono::milliseconds;

[[noreturn]] void refuse_call(const std::string& sentence) { raise({ErrorCode::kInvalidArgument, sentence}); }

template <typename T>
T value_of_result(Result<T>&& result, JobErrorOrigin origin) {
  if (!result) throw JobError(static_cast<JobErrorCode>(result.error().code), result.error().message, origin);
  return std::move(*result);
}

void must(const Status& status) {
  if (!status)
    throw JobError(static_cast<JobErrorCode>(status.error().code), status.error().message, JobErrorOrigin::kWorker);
}

milliseconds milliseconds_of_seconds(double seconds) {
  constexpr double kLongest = 1e9;
  if (!(seconds >= 0)) throw py::value_error("a time limit is a number of seconds, 0 or more");
  return std::chrono::ceil<milliseconds>(std::chrono::duration<double>(std::min(seconds, kLongest)));
}

/// Calls the callable of Python from a thread that has given its lock away. Where it raises, `raised` is set and the
/// exception stays with the thread.
std::vector<std::string> exchanged(const py::object& exchange, const std::string& own, bool& raised) {
  const PyGILState_STATE state = PyGILState_Ensure();
  std::vector<std::string> addresses;
  try {
    addresses = exchange(own).cast<std::vector<std::string>>();
  } catch (py::error_already_set& error) {
    error.restore();
    raised = true;
  } catch (const py::cast_error&) {
    PyErr_SetString(PyExc_TypeError, "exchange returns a list of addresses, one text for each rank");
    raised = true;
  }
  PyGILState_Release(state);
  return addresses;
}

/// Returns the codec of sums that codec_down asks for. Empty: it is without loss, as sums are by default.
std::optional<CodecSpec> quantizer_of(const training::OptimizerOptions& options) {
  const CodecSpec down = OptionAccess::spec_of(options.job.codec_down);
  if (down.automatic) refuse_call("codec_down=auto: peers have no automatic codec: name one");
  if (!is_lossy(down)) return std::nullopt;
  const bool codes_sums = options.algorithm == peer::AlgorithmId::kSsarSplitAllgather ||
                          options.algorithm == peer::AlgorithmId::kDsarSplitAllgather;
  if (!codes_sums) {
    refuse_call("codec_down: in " + std::string(peer::algorithm_info(options.algorithm).name) +
                " no rank codes a sum for the others: take ssar_split_allgather or dsar_split_allgather");
  }
  if (options.quantizer) refuse_call("codec_down is the quantizer of the allreduce: give one of both");
  return down;
}

/// Copies the finite values, and zeros in the place of others. Returns the number of the others.
uint64_t zero_non_finite(std::span<const float> values, std::span<float> out) {
  std::ranges::replace_copy_if(values, out.begin(), [](float value) { return !std::isfinite(value); }, 0.0F);
  return static_cast<uint64_t>(std::ranges::count_if(values, [](float value) { return !std::isfinite(value); }));
}

/// Returns entries as a stream; values of equal indices are added up.
Stream finite_stream_of(const SparseEntries& entries, uint64_t dimension) {
  if (!all_finite(entries.values)) {
    throw JobError(JobErrorCode::kNonFinite, "NaN or infinity among entries to restore", JobErrorOrigin::kWorker);
  }
  return value_of_result(coalesce(dimension, entries.indices, entries.values), JobErrorOrigin::kWorker);
}

Array array_in(std::span<const float> values, const std::shared_ptr<const void>& owner) {
  return {.data = values.data(), .count = values.size(), .type = ElementType::kF32, .owner = owner};
}
Array array_in(std::span<const uint32_t> indices, const std::shared_ptr<const void>& owner) {
  return {.data = indices.data(), .count = indices.size(), .type = ElementType::kU32, .owner = owner};
}

py::tuple entries_record(const EntriesView& entries, const std::shared_ptr<const void>& owner) {
  py::object indices = py::none();
  if (!entries.dense) indices = py::cast(array_in(entries.indices, owner));
  return py::make_tuple(indices, array_in(entries.values, owner));
}

/// Returns (indices, values), which own the entries.
py::tuple record_of(Stream&& entries) {
  const auto owner = std::make_shared<const Stream>(std::move(entries));
  return py::make_tuple(array_in(owner->indices, owner), array_in(owner->values, owner));
}

/// Returns the sum as one piece of an update.
UpdatePiece piece_of(const EntriesView& sum, double denominator) {
  UpdatePiece piece;
  piece.dimension = sum.dimension;
  piece.dense = sum.dense;
  piece.indices = sum.indices;
  piece.values = sum.values;
  piece.denominator = denominator;
  return piece;
}

void check_output(size_t found, uint64_t dimension, double scale) {
  if (found != dimension) {
    refuse_call("out has " + std::to_string(found) + " elements, and the tensor has " + std::to_string(dimension));
  }
  if (!std::isfinite(scale)) throw py::value_error("scale is not finite");
}

py::list algorithm_records() {
  py::list rows;
  for (const peers::AlgorithmInfo& info : peers::algorithms()) {
    rows.append(py::make_tuple(std::string(info.name), std::string(info.source), info.takes_k, info.selects));
  }
  return rows;
}

}  // namespace

std::unique_ptr<PythonGroup> PythonGroup::over_tcp(peers::TcpOptions options, const py::object& exchange,
                                                   const std::vector<double>& seconds) {
  bool raised = false;
  options.connect_max = milliseconds_of_seconds(seconds.at(0));
  const peers::GroupOptions limits{.silence_max = milliseconds_of_seconds(seconds.at(1)),
                                   .start_max = milliseconds_of_seconds(seconds.at(2))};
  if (!exchange.is_none()) {
    options.exchange = [&](const std::string& own) { return exchanged(exchange, own, raised); };
  }
  options.give_up = [&raised] {
    raised = raised || signal_has_raised();
    return raised;
  };
  try {
    return std::make_unique<PythonGroup>(
        without_lock([&] { return std::make_shared<peers::Group>(peers::Communicator::over_tcp(options), limits); }));
  } catch (const JobError&) {
    if (raised) throw py::error_already_set();
    throw;
  }
}

std::vector<std::unique_ptr<PythonGroup>> PythonGroup::in_process(uint32_t size) {
  std::vector<std::unique_ptr<PythonGroup>> groups;
  for (peers::Communicator& one : peers::Communicator::in_process(size)) {
    groups.push_back(std::make_unique<PythonGroup>(std::make_shared<peers::Group>(std::move(one))));
  }
  return groups;
}

bool PythonGroup::barrier(double timeout_s) {
  const std::shared_ptr<peers::Group> group = held();
  return wait_in_slices(timeout_s,
                        [&](milliseconds slice) { return without_lock([&] { return group->try_barrier(slice); }); });
}

std::unique_ptr<PythonPendingGather> PythonGroup::start_gather(const std::string& own) {
  const std::shared_ptr<peers::Group> group = held();
  auto pending = without_lock([&] { return std::optional(group->start_gather(std::as_bytes(std::span(own)))); });
  return std::make_unique<PythonPendingGather>(std::move(*pending));
}

bool PythonPendingGather::ready() { return pending_.held("the gather")->ready(); }

py::object PythonPendingGather::wait(double timeout_s) {
  const std::shared_ptr<peers::PendingGather> pending = pending_.held("the gather");
  const std::optional<peers::Gathered> all = wait_in_slices(
      timeout_s, [&](milliseconds slice) { return without_lock([&] { return pending->try_wait(slice); }); });
  if (!all) return py::none();
  py::list by_rank;
  for (const std::span<const std::byte> one : all->of_rank) {
    std::string bytes(one.size(), '\0');
    std::ranges::transform(one, bytes.begin(), [](std::byte byte) { return static_cast<char>(byte); });
    by_rank.append(py::bytes(bytes));
  }
  return by_rank;
}

py::object PythonGroup::failure() const {
  const auto failure = held()->failure();
  if (!failure) return py::none();
  py::object rank = py::none();
  if (failure->rank) rank = py::int_(*failure->rank);
  return py::make_tuple(std::string(job_error_name(failure->code)), failure->sentence, rank);
}

py::tuple PythonGroup::traffic() const {
  const peers::Traffic traffic = held()->traffic();
  return py::make_tuple(traffic.messages_sent, traffic.bytes_sent, traffic.bytes_received, traffic.messages_unexpected);
}

bool PythonPending::ready() {
  const std::shared_ptr<peers::Pending> pending = pending_.held("the sum");
  return pending->ready();
}

std::optional<peers::Reduced> PythonPending::try_wait(double timeout_s) {
  const std::shared_ptr<peers::Pending> pending = pending_.held("the sum");
  return wait_in_slices(timeout_s,
                        [&](milliseconds slice) { return without_lock([&] { return pending->try_wait(slice); }); });
}

py::object PythonPending::wait(double timeout_s) {
  const std::optional<peers::Reduced> reduced = try_wait(timeout_s);
  if (!reduced) return py::none();
  return py::make_tuple(entries_record(reduced->sum, reduced->owner), entries_record(reduced->returned, reduced->owner),
                        array_in(reduced->contributed, reduced->owner), entries_record(reduced->added, reduced->owner));
}

std::optional<uint64_t> PythonPending::wait_into(py::handle out, double timeout_s, double scale) {
  FloatOutput output(out, "out");
  check_output(output.count(), dimension_, scale);
  const std::optional<peers::Reduced> reduced = try_wait(timeout_s);
  if (!reduced) return std::nullopt;
  return without_lock([&] {
    const UpdatePiece piece = piece_of(reduced->sum, 1);
    const uint64_t entries = fill_update({&piece, 1}, scale, output.floats()).entries;
    output.commit();
    return entries;
  });
}

PythonAllreduce::PythonAllreduce(const PythonGroup& group, uint64_t dimension, const std::string& algorithm,
                                 const std::optional<std::string>& codec, uint64_t seed)
    : allreduce_([&] {
        peers::AllreduceOptions options{
            .dimension = dimension, .algorithm = algorithm_of(algorithm_from_text(algorithm)), .seed = seed};
        if (codec) {
          auto spec = codec_from_text(*codec);
          if (!spec) raise(spec.error());
          options.codec = OptionAccess::codec_of(*spec);
        }
        return std::make_shared<peers::Allreduce>(*group.held(), options);
      }()),
      dimension_(dimension) {}

std::unique_ptr<PythonPending> PythonAllreduce::start(py::handle dense) {
  FloatInput input(dense, "the vector");
  const std::shared_ptr<peers::Allreduce> allreduce = allreduce_.held("the allreduce");
  auto pending = without_lock([&] {
    count_copied_in(input.values());  // start() copies them
    return std::optional(allreduce->start(input.values()));
  });
  return std::make_unique<PythonPending>(std::move(*pending), dimension_);
}

std::unique_ptr<PythonPending> PythonAllreduce::start_sparse(py::handle indices, py::handle values) {
  IndexInput at(indices);
  FloatInput input(values, "values");
  const std::shared_ptr<peers::Allreduce> allreduce = allreduce_.held("the allreduce");
  auto pending = without_lock([&] {
    SparseEntries entries;
    entries.indices.assign(at.indices().begin(), at.indices().end());
    entries.values.assign(input.values().begin(), input.values().end());
    count_copied_in(std::span(entries.indices));
    count_copied_in(std::span(entries.values));
    if (entries.indices.size() != entries.values.size()) {
      refuse_call(std::to_string(entries.indices.size()) + " indices for " + std::to_string(entries.values.size()) +
                  " values");
    }
    return std::optional(allreduce->start(std::move(entries)));
  });
  return std::make_unique<PythonPending>(std::move(*pending), dimension_);
}

std::string PythonAllreduce::chosen() { return allreduce_.held("the allreduce")->chosen(); }

/// The exchange is destroyed first: it ends the group where a step is under way.
struct PythonGradientSum::State {
  explicit State(std::shared_ptr<peer::PeerGroup> of) : group(std::move(of)) {}

  std::shared_ptr<peer::PeerGroup> group;
  std::shared_ptr<GroupTimeline> timeline = {};
  training::ExchangeSetup setup{.group = *group};
  bool mean = true;
  std::mutex mutex;
  std::unique_ptr<training::TimedExchange> exchange = {};
  bool drops_non_finite = false;
  Buffer<float> filled = {};  ///< the gradient of the next step; empty: none
  uint64_t non_finite_dropped = 0;
  uint64_t pushed = 0;
  uint64_t finished = 0;
  std::optional<JobError> failure = {};  ///< of a step; later calls have it too

  void check_size(size_t entries) const {
    if (entries == setup.dimension) return;
    refuse_call("the gradient has " + std::to_string(entries) + " elements, and the tensor has " +
                std::to_string(setup.dimension));
  }
  void check_idle() const {
    if (exchange->in_flight() > 0) refuse_call("the tensor's step before is under way: wait for it");
  }
  /// Copies the finite values of a gradient that has others, and returns the number of the others.
  /// Throws   JobError: the job refuses such a gradient.
  uint64_t copy_finite_values(std::span<const float> values, std::span<float> out) const {
    if (drops_non_finite) return zero_non_finite(values, out);
    throw JobError(JobErrorCode::kNonFinite, "the gradient has NaN or infinity: nothing of it is sent",
                   JobErrorOrigin::kWorker);
  }
  /// Starts the sum of the gradient that was taken, times `factor`. Returns the step's number.
  uint64_t start_filled(float factor) {
    Stream dense{setup.dimension, true, {}, std::exchange(filled, {})};
    worker::scale(dense, factor);
    return started(exchange->start(pushed, std::move(dense)));
  }
  uint64_t started(const Status& status) {
    if (!status) {
      throw JobError(static_cast<JobErrorCode>(status.error().code), status.error().message, JobErrorOrigin::kJob);
    }
    return pushed++;
  }
  void check_failure() const {
    if (failure) throw *failure;
  }
  /// Returns call(state, values) of a gradient whose size is right, without the interpreter's lock.
  template <typename Call>
  static auto with_gradient(std::shared_ptr<State> state, py::handle gradient, const Call& call) {
    FloatInput input(gradient, "gradient");
    return without_lock([&] {
      const std::shared_ptr<State> kept = std::move(state);
      kept->check_size(input.values().size());
      return call(*kept, input.values());
    });
  }
};

PythonGradientSum::PythonGradientSum(const PythonGroup& group, uint64_t dimension, const JobOptions& job,
                                     const std::string& algorithm)
    : state_([&] {
        training::OptimizerOptions options;
        options.job = job.config();
        set_algorithm(options, algorithm_from_text(algorithm));
        if (auto codec = quantizer_of(options)) options.quantizer = *codec;
        // Retained, the error of some codecs grows: by default the exchange decides by the codec.
        if (options.job.contributions.codec_error == CodecError::kDrop) options.codec_error = CodecError::kDrop;
        const auto valid = training::check_peer_exchange(options);
        if (!valid) raise(valid.error());
        auto state = std::make_shared<State>(peers::GroupAccess::inner_of(*group.held()));
        state->mean = options.job.updates.combine != Combine::kSum;  // ranks have equal weights
        state->drops_non_finite = options.job.contributions.non_finite == NonFinite::kDropAndCount;
        state->timeline = group.timeline();
        state->setup.dimension = dimension;
        state->setup.spans = &state->timeline->spans;
        state->setup.tensor = state->timeline->sums++;
        state->exchange = value_of_result(training::make_peer_exchange(state->setup, options), JobErrorOrigin::kWorker);
        return state;
      }()),
      dimension_(dimension) {}

void PythonGradientSum::fill(py::handle gradient) {
  State::with_gradient(state_.held("the sum"), gradient, [](State& state, std::span<const float> values) {
    Buffer<float> copied(values.size());
    const bool is_finite = copy_finite(values.data(), copied);
    count_copied_in(std::span(copied));
    const uint64_t dropped = is_finite ? 0 : state.copy_finite_values(values, copied);
    const std::lock_guard lock(state.mutex);
    state.check_idle();
    state.non_finite_dropped += dropped;
    state.filled = std::move(copied);
  });
}

uint64_t PythonGradientSum::push(py::handle gradient) {
  return State::with_gradient(state_.held("the sum"), gradient, [](State& state, std::span<const float> values) {
    const std::lock_guard lock(state.mutex);
    state.check_idle();
    state.filled = {};
    const Result<uint64_t> copied = state.exchange->start_from(state.pushed, values);
    const bool is_refused = !copied && copied.error().code == ErrorCode::kNonFinite;
    if (is_refused) {
      // The gradient is looked at first: a group that has ended is the reason to give.
      if (const auto ended = state.group->failure()) return state.started(std::unexpected(ended->error));
      Buffer<float> finite(values.size());
      state.non_finite_dropped += state.copy_finite_values(values, finite);
      count_copied_in(std::span(finite));
      state.filled = std::move(finite);
      return state.start_filled(1);
    }
    if (copied) copy_counters().bytes_in += *copied;
    return state.started(copied ? Status{} : std::unexpected(copied.error()));
  });
}

double PythonGradientSum::squared_norm() const {
  std::shared_ptr<State> state = state_.held("the sum");
  return without_lock([&] {
    const std::shared_ptr<State> kept = std::move(state);
    const std::lock_guard lock(kept->mutex);
    return worker::squared_norm_of(kept->filled);
  });
}

uint64_t PythonGradientSum::start(float factor) {
  std::shared_ptr<State> state = state_.held("the sum");
  return without_lock([&] {
    const std::shared_ptr<State> kept = std::move(state);
    const std::lock_guard lock(kept->mutex);
    if (kept->filled.size() != dimension_) refuse_call("no gradient is filled in");
    return kept->start_filled(factor);
  });
}

std::optional<uint64_t> PythonGradientSum::wait_into(uint64_t step, py::handle out, double timeout_s, double scale) {
  FloatOutput output(out, "out");
  check_output(output.count(), dimension_, scale);
  return wait_in_slices(timeout_s, [&](milliseconds slice) {
    std::shared_ptr<State> state = state_.held("the sum");
    return without_lock([&]() -> std::optional<uint64_t> {
      const std::shared_ptr<State> kept = std::move(state);
      const std::lock_guard lock(kept->mutex);
      kept->check_failure();
      if (step != kept->finished || kept->exchange->in_flight() == 0) {
        refuse_call("step " + std::to_string(step) + " was not pushed, or was handed out before");
      }
      if (!kept->exchange->wait_for_oldest(std::chrono::nanoseconds(slice).count())) return std::nullopt;
      auto finished = kept->exchange->finish_oldest();
      if (!finished) {
        const Error& error = finished.error();
        kept->failure.emplace(static_cast<JobErrorCode>(error.code), error.message, JobErrorOrigin::kJob);
      }
      kept->check_failure();
      auto& sum = *finished;
      ++kept->finished;
      const StreamView& view = sum.sum.view;
      const EntriesView entries{
          .dimension = dimension_, .dense = view.dense, .indices = view.indices, .values = view.values};
      const UpdatePiece piece = piece_of(entries, kept->mean ? sum.denominator : 1);
      monitoring::SpanTimer timer(kept->setup.spans);
      const uint64_t count = fill_update({&piece, 1}, scale, output.floats()).entries;
      output.commit();
      timer.end(kept->setup.span_of(sum.step, monitoring::SpanName::kApply));
      return count;
    });
  });
}

/// Returns call(exchange), without the interpreter's lock.
template <typename Call>
auto PythonGradientSum::while_idle(Call call) const {
  std::shared_ptr<State> state = state_.held("the sum");
  return without_lock([&] {
    const std::shared_ptr<State> kept = std::move(state);
    const std::lock_guard lock(kept->mutex);
    kept->check_failure();
    if (kept->exchange->in_flight() > 0) refuse_call("a step is under way: wait for it first");
    return call(*kept->exchange);
  });
}

py::tuple PythonGradientSum::take_residual() {
  return record_of(while_idle([](training::TimedExchange& exchange) {
    return value_of_result(exchange.take_residual(), JobErrorOrigin::kWorker);
  }));
}

py::tuple PythonGradientSum::take_velocity() {
  return record_of(while_idle([](training::TimedExchange& exchange) { return exchange.take_velocity(); }));
}

void PythonGradientSum::restore(const py::tuple& residual, const py::tuple& velocity) {
  const SparseEntries of_residual = entries_of(residual);
  const SparseEntries of_velocity = entries_of(velocity);
  while_idle([&](training::TimedExchange& exchange) {
    const Stream entering = finite_stream_of(of_residual, dimension_);
    const Stream moving = finite_stream_of(of_velocity, dimension_);
    must(exchange.restore(entering.view(), moving.view()));
  });
}

std::vector<uint64_t> PythonGradientSum::retained() const {
  return while_idle([](training::TimedExchange& exchange) { return exchange.retained(); });
}

bool PythonGradientSum::restore_retained(const std::vector<uint64_t>& numbers) {
  return while_idle([&](training::TimedExchange& exchange) {
    return value_of_result(exchange.restore_retained(numbers), JobErrorOrigin::kWorker);
  });
}

std::function<std::optional<SumFigures>()> PythonGradientSum::figures() const {
  return [of = std::weak_ptr<State>(state_.held("the sum")), dimension = dimension_]() -> std::optional<SumFigures> {
    const std::shared_ptr<State> kept = of.lock();
    if (!kept) return std::nullopt;
    const std::unique_lock lock(kept->mutex, std::try_to_lock);
    if (!lock) return std::nullopt;  // a caller waits for a step, maybe for long
    return SumFigures{dimension, kept->finished, kept->exchange->counts()};
  };
}

py::tuple PythonGradientSum::counts() const {
  std::shared_ptr<State> state = state_.held("the sum");
  const auto [counts, dropped] = without_lock([&] {
    const std::shared_ptr<State> kept = std::move(state);
    const std::lock_guard lock(kept->mutex);
    return std::pair(kept->exchange->counts(), kept->non_finite_dropped);
  });
  return py::make_tuple(counts.entries, counts.sum_entries, counts.residual_norm, dropped);
}

void bind_peers(py::module_& module) {
  using py::arg;
  module.def("algorithms", &algorithm_records, "Returns (name, source, takes a k, selects) of every allreduce.");
  module.def("local_clip_norm", [](const JobOptions& options) {
    const JobConfig job = options.config();
    return worker::local_clip_norm(job.contributions.clip, job.updates.combine, job.workers);
  });
  py::class_<PythonGroup>(module, "PeerGroup", "This rank's part in a group; millrace.peers.Group documents it.")
      .def_static(
          "over_tcp",
          [](uint32_t rank, const std::vector<std::string>& addresses, const std::string& listen,
             const py::object& exchange, const std::string& name, const std::string& key_file, bool insecure,
             const std::vector<double>& seconds) {
            return PythonGroup::over_tcp({.rank = rank,
                                          .addresses = addresses,
                                          .listen = listen,
                                          .group = name,
                                          .key_file = key_file,
                                          .insecure = insecure},
                                         exchange, seconds);
          },
          arg("rank"), arg("addresses"), arg("listen"), arg("exchange"), arg("name"), arg("key_file"), arg("insecure"),
          arg("seconds"))
      .def_static("in_process", &PythonGroup::in_process, arg("size"))
      .def("rank", &PythonGroup::rank)
      .def("size", &PythonGroup::size)
      .def("barrier", &PythonGroup::barrier, arg("timeout"))
      .def("start_gather", &PythonGroup::start_gather, arg("own"))
      .def("failure", &PythonGroup::failure)
      .def("traffic", &PythonGroup::traffic)
      .def("close", &PythonGroup::close);
  py::class_<PythonPendingGather>(module, "PeerPendingGather",
                                  "A gather under way; millrace.peers.PendingGather documents it.")
      .def("ready", &PythonPendingGather::ready)
      .def("wait", &PythonPendingGather::wait, arg("timeout"));
  py::class_<PythonPending>(module, "PeerPending", "A sum under way; millrace.peers.Pending documents it.")
      .def("ready", &PythonPending::ready)
      .def("wait", &PythonPending::wait, arg("timeout"))
      .def("wait_into", &PythonPending::wait_into, arg("out"), arg("timeout"), arg("scale"));
  py::class_<PythonAllreduce>(module, "PeerAllreduce", "Sums one tensor; millrace.peers.Allreduce documents it.")
      .def(py::init<const PythonGroup&, uint64_t, const std::string&, const std::optional<std::string>&, uint64_t>(),
           arg("group"), arg("dimension"), arg("algorithm"), arg("codec"), arg("seed"))
      .def("start", &PythonAllreduce::start, arg("dense"))
      .def("start_sparse", &PythonAllreduce::start_sparse, arg("indices"), arg("values"))
      .def("chosen", &PythonAllreduce::chosen);
  py::class_<PythonGradientSum>(module, "PeerGradientSum",
                                "Sums one tensor's gradients; millrace.peers.GradientSum documents it.")
      .def(py::init<const PythonGroup&, uint64_t, const JobOptions&, const std::string&>(), arg("group"),
           arg("dimension"), arg("job"), arg("algorithm"))
      .def("push", &PythonGradientSum::push, arg("gradient"))
      .def("fill", &PythonGradientSum::fill, arg("gradient"))
      .def("squared_norm", &PythonGradientSum::squared_norm)
      .def("start", &PythonGradientSum::start, arg("factor"))
      .def("wait_into", &PythonGradientSum::wait_into, arg("step"), arg("out"), arg("timeout"), arg("scale"))
      .def("take_residual", &PythonGradientSum::take_residual)
      .def("take_velocity", &PythonGradientSum::take_velocity)
      .def("restore", &PythonGradientSum::restore, arg("residual"), arg("velocity"))
      .def("retained", &PythonGradientSum::retained)
      .def("restore_retained", &PythonGradientSum::restore_retained, arg("numbers"))
      .def("counts", &PythonGradientSum::counts)
      .def("close", &PythonGradientSum::close);
  py::class_<PythonPeerPort>(module, "PeerPort", "The HTTP port of a rank; millrace.peers.Port documents it.")
      .def(py::init<const PythonGroup&, const py::list&, const std::string&, const WorkerOptions&>(), arg("group"),
           arg("sums"), arg("name"), arg("me"))
      .def("port", &PythonPeerPort::port)
      .def("count_step", &PythonPeerPort::count_step, arg("compute"), arg("wait"))
      .def("close", &PythonPeerPort::close);
}

}  // namespace millrace::python
