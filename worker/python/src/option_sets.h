#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <string_view>

#include "worker/config/job_config.h"
#include "worker/config/option_table.h"

/// Options by name and text, as files and flags set them: the names come from the visitors of the options alone.
namespace millrace::python {

/// Throws a Result's error as JobError, of this worker.
[[noreturn]] void raise(const Error& error);

/// Holds the options of a job. Texts may be set in any order; config() checks them against each other.
class JobOptions {
 public:
  /// Errors  KeyError: no option has the name. JobError: the text is none of the option's.
  void set(std::string_view name, std::string_view text);
  std::string text(std::string_view name);
  JobConfig config() const;

 private:
  worker::JobDraft draft_ = worker::draft_of(JobConfig{});
};

/// Holds the options of this worker, in the same way.
class WorkerOptions {
 public:
  void set(std::string_view name, std::string_view text);
  std::string text(std::string_view name);
  const WorkerConfig& config() const { return config_; }

 private:
  WorkerConfig config_;
};

/// Adds the classes and option_table() to the module.
void bind_options(pybind11::module_& module);

}  // namespace millrace::python
