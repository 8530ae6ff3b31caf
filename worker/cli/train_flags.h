#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "monitoring/http/secure/http_security.h"
#include "monitoring/standard_streams.h"
#include "worker/cli/commands.h"
#include "worker/cli/method.h"
#include "worker/config/option_table.h"
#include "worker/program/option_flags.h"
#include "worker/training/trainer.h"

namespace millrace::cli {

/// Keeps the error lines of the session's log until the command ends: its own failure often repeats one of them.
///
/// Threads  safe: the session logs from its own.
class ErrorLines {
 public:
  void add(std::string_view line) {
    const std::lock_guard lock(mutex_);
    lines_.emplace_back(line);
  }
  /// Prints the lines that `failure`, the command's own sentence, does not begin with, and forgets all of them.
  void print_but(std::string_view failure) {
    const std::lock_guard lock(mutex_);
    for (const std::string& line : lines_) {
      if (!failure.starts_with(line)) monitoring::say(fmt::format("millrace train: {}", line));
    }
    lines_.clear();
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

/// Holds the command line of `millrace train`.
struct TrainFlags {
  TrainFlags();
  TrainFlags(const TrainFlags&) = delete;  // the tables refer to it
  TrainFlags& operator=(const TrainFlags&) = delete;

  training::TrainOptions options;   ///< options.job follows from `draft` when all flags are read
  worker::JobDraft draft;           ///< the job's options, as flags set them one by one
  std::vector<worker::Option> job;  ///< of `draft`
  std::vector<worker::Option> me;   ///< of options.me
  worker::GivenTexts given;         ///< options of both
  uint32_t threshold_period = 0;    ///< 0: not given
  ErrorLines errors;
  std::string train_path;
  std::string test_path;
  std::string servers;
  std::string schedule = "constant";
  std::string model = "lr";
  std::string output;
  std::string http;
  monitoring::HttpSecurityOptions http_security;
  std::string method;
  std::string codec_error;  ///< empty: retain, or drop where nothing is kept back
  double density = 0;
  uint64_t dimension = 0;
  uint32_t index_base = 1;
  bool dense = false;
  bool json = false;
  bool verbose = false;
  bool rate_given = false;  ///< --lr or --lr-schedule
};

/// Adds the options of `millrace train` to `app`. REQUIRES: flags outlives app.
void add_train_flags(CLI::App& app, TrainFlags& flags);

}  // namespace millrace::cli
