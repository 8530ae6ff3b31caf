#include <pybind11/pybind11.h>

#include <exception>
#include <memory>
#include <string>

#include "millrace/millrace.h"
#include "worker/python/src/advice.h"
#include "worker/python/src/arrays.h"
#include "worker/python/src/interpreter.h"
#include "worker/python/src/log_queue.h"
#include "worker/python/src/option_sets.h"
#include "worker/python/src/python_peers.h"
#include "worker/python/src/python_session.h"
#include "worker/python/src/wait_list.h"

/// The module millrace._millrace: the calls of the library, of which the package's Python files make its classes.
namespace py = pybind11;

namespace millrace::python {
namespace {

/// Raises a JobError of C++ as millrace.JobError.
void translate(std::exception_ptr thrown) {
  try {
    if (thrown) std::rethrow_exception(thrown);
  } catch (const JobError& error) {
    const py::object type = py::module_::import("millrace.errors").attr("JobError");
    const std::string code(job_error_name(error.code()));
    const py::object raised = type(error.what(), code, error.origin() == JobErrorOrigin::kWorker ? "worker" : "job");
    PyErr_SetObject(type.ptr(), raised.ptr());
  }
}

py::list lines_of(LogQueue& queue, double timeout_s) {
  const auto timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout_s * 1'000));
  py::list lines;
  for (const LoggedLine& line : without_lock([&] { return queue.take(timeout); })) {
    lines.append(py::make_tuple(static_cast<int>(line.level), line.text));
  }
  return lines;
}

void bind_log(py::module_& module) {
  // Never destroyed: in a forked child its locks may be held by threads that the child does not have.
  py::class_<LogQueue, std::unique_ptr<LogQueue, py::nodelete>>(module, "LogQueue", "Lines of Millrace's log.")
      .def(py::init<>())
      .def("take", &lines_of, py::arg("timeout"), "Waits for lines and returns them: (level, text).")
      .def("close", &LogQueue::close);
}

}  // namespace

void fill_module(py::module_& module) {
  module.doc() = "The worker library of Millrace. The package millrace has the documented interface.";
  py::register_exception_translator(&translate);
  bind_arrays(module);
  bind_options(module);
  bind_log(module);
  bind_session(module);
  bind_wait_list(module);
  bind_advice(module);
  bind_peers(module);
  module.def("version", [] { return std::string(version()); });
  module.def(
      "copies",
      [] {
        const CopyCounters& counters = copy_counters();
        return py::make_tuple(counters.bytes_in.load(), counters.bytes_out.load());
      },
      "Returns the bytes that were copied or converted on the way to the library, and on the way out.");
  module.def(
      "count_copied_in", [](uint64_t bytes) { copy_counters().bytes_in += bytes; }, py::arg("bytes"),
      "Counts bytes of a gradient that the caller, a part of the package, has copied before its push.");
}

}  // namespace millrace::python

PYBIND11_MODULE(_millrace, module) { millrace::python::fill_module(module); }
