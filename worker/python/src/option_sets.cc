#include "worker/python/src/option_sets.h"

#include <algorithm>
#include <set>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/base/units.h"
#include "millrace/millrace.h"
#include "protocol/job/job_spec_fields.h"
#include "worker/config/worker_fields.h"

namespace py = pybind11;

namespace millrace::python {
namespace {

using worker::Option;
using worker::options_of;

const Option& option_of(const std::vector<Option>& options, std::string_view name) {
  const auto at = std::ranges::find(options, name, &Option::name);
  if (at == options.end()) throw py::key_error(std::string(name));
  return *at;
}

void set_text(const std::vector<Option>& options, std::string_view name, std::string_view text) {
  if (const Status set = option_of(options, name).set(text); !set) raise(set.error());
}

/// Visits options and collects the names of whole numbers: the texts of defaults do not tell 0 from 0.0.
class WholeNumbers {
 public:
  template <typename T>
  void option(const protocol::OptionInfo& info, const T&) {
    if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) names_.insert(prefix_ + std::string(info.name));
  }
  void words(const protocol::OptionInfo&, const std::string&) {}
  template <typename T, typename Visit>
  void text(const protocol::OptionInfo&, const T&, Visit) {}
  template <typename T, typename Visit>
  void group(std::string_view name, T& part, Visit visit) {
    prefix_ = std::string(name) + "_";
    visit(*this, part);
    prefix_.clear();
  }
  bool has(const std::string& name) const { return names_.contains(name); }

 private:
  std::string prefix_;
  std::set<std::string> names_;
};

py::list table_of(const std::vector<Option>& options, const WholeNumbers& whole) {
  py::list rows;
  for (const Option& option : options) {
    rows.append(py::make_tuple(option.name, option.flag, std::string(worker::heading_of(option.info.group)),
                               option.form, option.forms, option.text(), std::string(option.info.help),
                               option.info.least, option.info.most, whole.has(option.name)));
  }
  return rows;
}

/// of  "job" or "worker".
py::list option_table(const std::string& of) {
  WholeNumbers whole;
  if (of == "worker") {
    WorkerConfig me;
    worker::visit_worker(whole, me);
    return table_of(options_of(me), whole);
  }
  worker::JobDraft draft = worker::draft_of(JobConfig{});
  protocol::fields::visit_job(whole, draft.spec);
  return table_of(options_of(draft), whole);
}

template <typename T>
T value_or_raise(const Result<T>& result) {
  if (!result) raise(result.error());
  return *result;
}

template <typename Options>
void bind_set(py::module_& module, const char* name, const char* help) {
  py::class_<Options>(module, name, help)
      .def(py::init<>())
      .def("set", &Options::set, py::arg("name"), py::arg("text"))
      .def("text", &Options::text, py::arg("name"));
}

}  // namespace

void raise(const Error& error) {
  throw JobError(static_cast<JobErrorCode>(error.code), error.message, JobErrorOrigin::kWorker);
}

void JobOptions::set(std::string_view name, std::string_view text) { set_text(options_of(draft_), name, text); }
std::string JobOptions::text(std::string_view name) { return option_of(options_of(draft_), name).text(); }
JobConfig JobOptions::config() const {
  auto config = worker::config_of(draft_);
  if (!config) raise(config.error());
  return std::move(*config);
}

void WorkerOptions::set(std::string_view name, std::string_view text) { set_text(options_of(config_), name, text); }
std::string WorkerOptions::text(std::string_view name) { return option_of(options_of(config_), name).text(); }

void bind_options(py::module_& module) {
  bind_set<JobOptions>(module, "JobOptions", "Holds the options of a job by name and text.");
  bind_set<WorkerOptions>(module, "WorkerOptions", "Holds the options of a worker by name and text.");
  module.def("option_table", &option_table, py::arg("of"),
             "Returns a row for each option of a 'job' or a 'worker': name, flag, group, form, forms, default, help, "
             "least, most, whether it is a whole number.");
  module.def("seconds_of_text", [](const std::string& text) {
    return static_cast<double>(value_or_raise(duration_from_text(text))) / static_cast<double>(kNsPerS);
  });
  module.def("rate_of_text", [](const std::string& text) { return value_or_raise(rate_from_text(text)); });
}

}  // namespace millrace::python
