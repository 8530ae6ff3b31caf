#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/result.h"
#include "millrace/options.h"
#include "protocol/job/option_info.h"
#include "worker/config/job_config.h"

namespace millrace::worker {

/// Is one option of a configuration as text. It refers to the configuration that it was made of, which outlives it.
struct Option {
  std::string name;  ///< "switch_return_after"
  std::string flag;  ///< "switch-return-after": of the command line and of files
  protocol::OptionInfo info;
  std::string forms = {};                  ///< of a TEXT: its forms, "none, topk:DENSITY|COUNT, ..."
  std::string form;                        ///< "DURATION", "NUMBER", "TEXT", or the words of an enum with | in between
  bool is_switch = false;                  ///< on or off: a flag without a value
  std::function<std::string()> text = {};  ///< the value
  std::function<Status(const protocol::OptionInfo&, std::string_view)> assign = {};  ///< within the info's limits

  /// Sets the value. A command narrows an option by info.least and info.most, before it reads texts.
  ///
  /// Errors  invalid_argument, with the option's name.
  Status set(std::string_view words) const;
};

/// Return every option, in the visitor's order: the one list that flags, files, documents and tests are made of.
std::vector<Option> options_of(JobDraft& draft);
std::vector<Option> options_of(WorkerConfig& worker);

/// Ends the process where a name is no option's.
void check_option_names(std::span<const Option> options, std::span<const std::string_view> names);

/// Removes all options but the named ones. REQUIRES: each name is an option's.
void keep_options(std::vector<Option>& options, std::span<const std::string_view> names);

/// Returns the option of that name. REQUIRES: there is one.
Option& option_named(std::vector<Option>& options, std::string_view name);

/// Sets one option of a job by its name and text, as a file or a flag does.
///
/// Errors  invalid_argument, and nothing is changed. No option has the name: the sentence has the nearest one. The
///         option does not take the text, or does not belong to the job: the sentence has the option's name.
Status set_option(JobConfig& job, std::string_view name, std::string_view text);

/// Returns the heading of a group: "Compression".
std::string_view heading_of(protocol::OptionGroup group);

/// Returns worker/OPTIONS.md: every option of a job and of a worker with its default.
std::string options_markdown();

}  // namespace millrace::worker
