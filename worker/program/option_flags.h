#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "worker/config/option_table.h"

namespace CLI {
class App;
}

namespace millrace::worker {

/// Holds the options that a command line or a file sets: their names, and their texts as they were given.
using GivenTexts = std::map<std::string, std::string>;

/// Adds a flag for each option, in the groups of help. The parser's configuration file reads the same names. `given`
/// gets the options that the command line or a file sets.
///
/// left_out  names of options that the command sets by itself or does not have.
/// REQUIRES  `options` and `given` outlive the parsing; each name of `left_out` is an option's.
void add_option_flags(CLI::App& app, std::vector<Option>& options, std::span<const std::string_view> left_out,
                      GivenTexts& given);

/// Holds some options of a job, as flags set them one by one.
struct JobFlags {
  /// job    has the defaults.
  /// names  of the options that the command has. REQUIRES: each is an option's.
  JobFlags(const JobConfig& job, std::span<const std::string_view> names);
  JobFlags(const JobFlags&) = delete;  // the table refers to the draft
  JobFlags& operator=(const JobFlags&) = delete;

  /// Narrows the limits of a number, or of a duration in milliseconds. REQUIRES: the command has the option.
  void limit(std::string_view name, double least, double most);
  void add_to(CLI::App& app) { add_option_flags(app, options, {}, given); }

  JobDraft draft;
  std::vector<Option> options;
  GivenTexts given;
};

}  // namespace millrace::worker
