#include "worker/python/src/python_session.h"

#include <pybind11/stl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "worker/python/src/fill_update.h"
#include "worker/python/src/float_output.h"
#include "worker/python/src/interpreter.h"
#include "worker/python/src/session_records.h"
#include "worker/python/src/tensor_options.h"

namespace py = pybind11;

namespace millrace::python {
namespace {

using std::chrono::milliseconds;

[[noreturn]] void refuse(std::string sentence) {
  throw JobError(JobErrorCode::kInvalidArgument, sentence, JobErrorOrigin::kWorker);
}

/// Connects without the interpreter's lock. A signal whose handler raises ends it.
///
/// closed   ends the waits of the session that take a give_up.
std::shared_ptr<Session> connect(const JobConfig& job, WorkerConfig me, const std::vector<TensorOptions>& tensors,
                                 LogQueue& log, const std::shared_ptr<const std::atomic<bool>>& closed) {
  me.give_up = [closed] { return closed->load() || signal_has_raised(); };
  me.log = [&log](LogLevel level, std::string_view line) {
    try {
      log.add(level, line);
    } catch (const std::bad_alloc&) {
      return;  // the line is lost: a callback must not throw
    }
  };
  return or_interrupted(
      [&] { return without_lock([&] { return std::shared_ptr<Session>(Session::connect(job, me, tensors)); }); });
}

/// Copies a pair of arrays (indices, values).
py::object steps_of(const std::optional<PulledSteps>& steps) {
  if (!steps) return py::none();
  return py::make_tuple(steps->least, steps->most);
}

}  // namespace

std::optional<TensorUpdate> await_into(Session& session, size_t tensor, uint64_t step, milliseconds limit, double scale,
                                       FloatOutput& out, FilledUpdate& filled) {
  auto arrived = session.try_await(tensor, step, limit);
  if (!arrived) return arrived;
  if (arrived->pieces.empty()) {
    refuse("the update of step " + std::to_string(step) +
           " went into the attached weights on arrival: read them, or "
           "attach them with apply=\"on_await\"");
  }
  filled = fill_update(arrived->pieces, scale, out.floats());
  out.commit();
  return arrived;
}

PythonSession::PythonSession(const JobOptions& job, const WorkerOptions& me, const py::list& tensors, LogQueue& log)
    : process_(getpid()) {
  const std::vector<TensorOptions> options = tensors_of(tensors, weights_);
  for (const TensorOptions& tensor : options) dimensions_.push_back(tensor.dimension);
  session_ = std::make_unique<std::shared_ptr<Session>>(connect(job.config(), me.config(), options, log, closed_));
}

PythonSession::~PythonSession() {
  if (getpid() == process_) {
    close();
    return;
  }
  // The session's threads are the parent's: it can be neither used nor destroyed here.
  (void)session_.release();
}

void PythonSession::check(const JobOptions& job, const WorkerOptions& me, const py::list& tensors) {
  std::vector<BorrowedArray> weights;
  Session::check(job.config(), me.config(), tensors_of(tensors, weights));
}

std::shared_ptr<Session> PythonSession::alive() const {
  if (getpid() != process_) {
    refuse("the session belongs to process " + std::to_string(process_) +
           ", which forked this one: connect a session of this process before its first use");
  }
  if (!*session_) refuse("the session is closed: connect another one");
  return *session_;
}

template <typename Attempt>
auto PythonSession::wait_at_once(double timeout_s, Attempt&& attempt) const {
  auto result = or_interrupted(
      [&] { return call([&](Session& session) { return attempt(session, milliseconds_of(timeout_s)); }); });
  if (!result) (void)alive();  // where close() of another thread has ended it
  return result;
}

void PythonSession::check_size(size_t tensor, size_t count, std::string_view what) const {
  if (tensor >= dimensions_.size() || count == dimensions_[tensor]) return;  // the library refuses the number
  refuse(std::string(what) + " has " + std::to_string(count) + " elements, and the tensor has " +
         std::to_string(dimensions_[tensor]));
}

size_t PythonSession::tensor(const std::string& name) const {
  return call([&](Session& session) { return session.tensor(name); });
}

std::optional<uint64_t> PythonSession::push(size_t tensor, py::handle gradient, double weight, double timeout_s) {
  const Counted counted(calls_);
  if (const auto there = DeviceInput::of(gradient, "gradient")) {
    return wait_in_slices(timeout_s, [&](milliseconds slice) {
      return call([&](Session& session) { return session.try_push(tensor, there->span(), weight, slice); });
    });
  }
  FloatInput input(gradient, "gradient");
  return wait_in_slices(timeout_s, [&](milliseconds slice) {
    return call([&](Session& session) { return session.try_push(tensor, input.values(), weight, slice); });
  });
}

std::optional<uint64_t> PythonSession::push_sparse(size_t tensor, py::handle indices, py::handle values, double weight,
                                                   double timeout_s) {
  const Counted counted(calls_);
  IndexInput at(indices);
  FloatInput input(values, "values");
  return wait_in_slices(timeout_s, [&](milliseconds slice) {
    return call(
        [&](Session& session) { return session.try_push_sparse(tensor, at.indices(), input.values(), weight, slice); });
  });
}

std::optional<uint64_t> PythonSession::push_rows(size_t tensor, uint32_t width, py::handle rows, py::handle values,
                                                 double weight, double timeout_s) {
  const Counted counted(calls_);
  IndexInput at(rows);
  FloatInput input(values, "values");
  return wait_in_slices(timeout_s, [&](milliseconds slice) {
    return call([&](Session& session) {
      return session.try_push_rows(tensor, width, at.indices(), input.values(), weight, slice);
    });
  });
}

bool PythonSession::ready(size_t tensor, uint64_t step) {
  return call([&](Session& session) { return session.ready(tensor, step); });
}

py::object PythonSession::wait(size_t tensor, uint64_t step, double timeout_s) {
  const Counted counted(calls_);
  auto update = wait_in_slices(timeout_s, [&](milliseconds slice) {
    return call([&](Session& session) { return session.try_await(tensor, step, slice); });
  });
  if (!update) return py::none();
  return record_of(std::move(*update));
}

py::object PythonSession::wait_into(size_t tensor, uint64_t step, py::handle out, double timeout_s, double scale) {
  const Counted counted(calls_);
  FloatOutput output(out, "out");
  check_size(tensor, output.count(), "out");
  if (!std::isfinite(scale)) throw py::value_error("scale is not finite");
  FilledUpdate filled;
  const auto update = wait_in_slices(timeout_s, [&](milliseconds slice) {
    return call([&](Session& session) { return await_into(session, tensor, step, slice, scale, output, filled); });
  });
  if (!update) return py::none();
  return py::make_tuple(update->step, update->applied, update->replaced, filled.entries, filled.contributors);
}

void PythonSession::attach_weights(size_t tensor, py::handle weights, float scale, const std::string& apply) {
  const ApplyWhen when = apply_of(apply);
  BorrowedArray array = weights_of(weights, "weights");
  call([&](Session& session) { session.attach_weights(tensor, array.floats(), scale, when); });
  weights_.push_back(std::move(array));
}

void PythonSession::set_scale(size_t tensor, float scale) {
  call([&](Session& session) { session.set_scale(tensor, scale); });
}

uint64_t PythonSession::steps_applied(size_t tensor) {
  return call([&](Session& session) { return session.steps_applied(tensor); });
}

py::tuple PythonSession::take_residual(size_t tensor) {
  return record_of(call([&](Session& session) { return session.take_residual(tensor); }));
}

py::tuple PythonSession::take_velocity(size_t tensor) {
  return record_of(call([&](Session& session) { return session.take_velocity(tensor); }));
}

void PythonSession::restore(size_t tensor, const py::tuple& residual, const py::tuple& velocity) {
  SparseEntries of_residual = entries_of(residual);
  SparseEntries of_velocity = entries_of(velocity);
  call([&](Session& session) { session.restore(tensor, of_residual, of_velocity); });
}

std::vector<uint64_t> PythonSession::retained(size_t tensor) {
  return call([&](Session& session) { return session.retained(tensor); });
}

bool PythonSession::restore_retained(size_t tensor, const std::vector<uint64_t>& numbers) {
  return call([&](Session& session) { return session.restore_retained(tensor, numbers); });
}

py::object PythonSession::pull(size_t tensor, std::optional<uint64_t> begin, py::handle out, uint64_t at_least_step,
                               double timeout_s) {
  const Counted counted(calls_);
  FloatOutput output(out, "out");
  return steps_of(wait_at_once(timeout_s, [&](Session& session, milliseconds limit) {
    const PullOptions options{.at_least_step = at_least_step, .timeout = limit};
    auto steps = begin ? session.try_pull_range(tensor, *begin, output.floats(), options)
                       : session.try_pull(tensor, output.floats(), options);
    if (steps) output.commit();
    return steps;
  }));
}

py::object PythonSession::pull_indices(size_t tensor, py::handle indices, py::handle out, uint64_t at_least_step,
                                       double timeout_s) {
  const Counted counted(calls_);
  IndexInput at(indices);
  FloatOutput output(out, "out");
  return steps_of(wait_at_once(timeout_s, [&](Session& session, milliseconds limit) {
    const PullOptions options{.at_least_step = at_least_step, .timeout = limit};
    auto steps = session.try_pull_indices(tensor, at.indices(), output.floats(), options);
    if (steps) output.commit();
    return steps;
  }));
}

py::object PythonSession::pull_rows(size_t tensor, uint32_t width, py::handle rows, py::handle out,
                                    uint64_t at_least_step, double timeout_s) {
  const Counted counted(calls_);
  IndexInput at(rows);
  FloatOutput output(out, "out");
  return steps_of(wait_at_once(timeout_s, [&](Session& session, milliseconds limit) {
    const PullOptions options{.at_least_step = at_least_step, .timeout = limit};
    auto steps = session.try_pull_rows(tensor, width, at.indices(), output.floats(), options);
    if (steps) output.commit();
    return steps;
  }));
}

bool PythonSession::place_weights(const py::list& weights, double timeout_s) {
  const Counted counted(calls_);
  std::vector<FloatInput> inputs;
  for (const py::handle& array : weights) inputs.emplace_back(array, "weights");
  return wait_at_once(timeout_s, [&](Session& session, milliseconds limit) {
    std::vector<std::span<const float>> values;
    for (FloatInput& input : inputs) values.push_back(input.values());
    return session.try_place_weights(values, limit);
  });
}

py::tuple PythonSession::status() const {
  return record_of(call([](Session& session) { return session.status(); }));
}
py::tuple PythonSession::stats() const {
  return record_of(call([](Session& session) { return session.stats(); }));
}
uint16_t PythonSession::http_port() const {
  return call([](Session& session) { return session.http_port(); });
}
void PythonSession::save(const std::string& path) {
  call([&](Session& session) { session.save(path); });
}

bool PythonSession::finish(double timeout_s) {
  const Counted counted(calls_);
  return wait_in_slices(
      timeout_s, [&](milliseconds slice) { return call([&](Session& session) { return session.try_finish(slice); }); });
}

void PythonSession::close() {
  if (getpid() != process_) return;
  closed_->store(true);
  std::shared_ptr<Session> last = std::move(*session_);
  without_lock([&] { last.reset(); });
}

int PythonSession::calls() const { return getpid() == process_ ? calls_ : 0; }

void bind_session(py::module_& module) {
  using py::arg;
  py::class_<PythonSession>(module, "Session", "Membership in a running job; millrace.Session has the documentation.")
      .def(py::init<const JobOptions&, const WorkerOptions&, const py::list&, LogQueue&>(), arg("job"), arg("me"),
           arg("tensors"), arg("log"))
      .def_static("check", &PythonSession::check, arg("job"), arg("me"), arg("tensors"))
      .def("tensor", &PythonSession::tensor, arg("name"))
      .def("push", &PythonSession::push, arg("tensor"), arg("gradient"), arg("weight"), arg("timeout"))
      .def("push_sparse", &PythonSession::push_sparse, arg("tensor"), arg("indices"), arg("values"), arg("weight"),
           arg("timeout"))
      .def("push_rows", &PythonSession::push_rows, arg("tensor"), arg("width"), arg("rows"), arg("values"),
           arg("weight"), arg("timeout"))
      .def("ready", &PythonSession::ready, arg("tensor"), arg("step"))
      .def("wait", &PythonSession::wait, arg("tensor"), arg("step"), arg("timeout"))
      .def("wait_into", &PythonSession::wait_into, arg("tensor"), arg("step"), arg("out"), arg("timeout"), arg("scale"))
      .def("attach_weights", &PythonSession::attach_weights, arg("tensor"), arg("weights"), arg("scale"), arg("apply"))
      .def("set_scale", &PythonSession::set_scale, arg("tensor"), arg("scale"))
      .def("steps_applied", &PythonSession::steps_applied, arg("tensor"))
      .def("take_residual", &PythonSession::take_residual, arg("tensor"))
      .def("take_velocity", &PythonSession::take_velocity, arg("tensor"))
      .def("restore", &PythonSession::restore, arg("tensor"), arg("residual"), arg("velocity"))
      .def("retained", &PythonSession::retained, arg("tensor"))
      .def("restore_retained", &PythonSession::restore_retained, arg("tensor"), arg("numbers"))
      .def("pull", &PythonSession::pull, arg("tensor"), arg("begin"), arg("out"), arg("at_least_step"), arg("timeout"))
      .def("pull_indices", &PythonSession::pull_indices, arg("tensor"), arg("indices"), arg("out"),
           arg("at_least_step"), arg("timeout"))
      .def("pull_rows", &PythonSession::pull_rows, arg("tensor"), arg("width"), arg("rows"), arg("out"),
           arg("at_least_step"), arg("timeout"))
      .def("place_weights", &PythonSession::place_weights, arg("weights"), arg("timeout"))
      .def("status", &PythonSession::status)
      .def("stats", &PythonSession::stats)
      .def("http_port", &PythonSession::http_port)
      .def("save", &PythonSession::save, arg("path"))
      .def("finish", &PythonSession::finish, arg("timeout"))
      .def("close", &PythonSession::close)
      .def("calls", &PythonSession::calls);
}

}  // namespace millrace::python
