#include <fmt/core.h>

#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "kernels/stream/stream.h"
#include "worker/cli/commands.h"
#include "worker/program/flag_range.h"
#include "worker/program/json_text.h"
#include "worker/program/program.h"
#include "worker/program/progress.h"
#include "worker/training/data/data_debian.h"
#include "worker/training/data/data_synthetic.h"

namespace millrace::cli {

using program::Command;
using program::fail_with;
using program::grouped;
using program::in_range;
using program::not_empty;
using program::one_of;
using program::Outcome;

namespace {

/// debian.svm.gz -> debian.test.svm.gz; other.txt -> other.test.txt.
std::string held_out_path_of(const std::string& path) {
  const size_t slash = path.rfind('/') == std::string::npos ? 0 : path.rfind('/') + 1;
  size_t at = path.rfind(".svm");
  if (at == std::string::npos || at < slash) at = path.find('.', slash);
  if (at == std::string::npos) at = path.size();
  return path.substr(0, at) + ".test" + path.substr(at);
}

/// Names the held-out file where no flag did, and refuses one that is the training file.
Outcome complete_paths(const std::string& train, std::string& held_out) {
  if (held_out.empty()) held_out = held_out_path_of(train);
  if (std::filesystem::path(held_out).lexically_normal() != std::filesystem::path(train).lexically_normal()) return {};
  return fail_with(program::ExitCode::kUsage,
                   "--test-output is the file of --output, " + train + "; give it another name");
}

struct DebianFlags {
  training::DebianDataOptions options;
  bool json = false;
};

Outcome run_debian(DebianFlags& flags) {
  training::DebianDataOptions& options = flags.options;
  if (Outcome outcome = complete_paths(options.train_path, options.held_out_path); !outcome) return outcome;
  program::Progress progress("reading the package index", "packages");
  options.progress = progress.callback();
  const auto summary = training::make_debian_data(options);
  if (!summary) return fail_with(summary.error());
  const double per_row = static_cast<double>(summary->entries) / static_cast<double>(summary->packages);
  if (flags.json) {
    fmt::print("{}\n", program::json_text(nlohmann::json{{"data", "debian"},
                                                         {"train", options.train_path},
                                                         {"held_out", options.held_out_path},
                                                         {"dimension", options.dimension},
                                                         {"packages", summary->packages},
                                                         {"libraries", summary->libraries},
                                                         {"train_rows", summary->train_rows},
                                                         {"held_out_rows", summary->held_out_rows},
                                                         {"entries_per_row", per_row}}));
    return {};
  }
  fmt::print("{} packages, {} of them libraries; {:.0f} features a row of {}\n", grouped(summary->packages),
             grouped(summary->libraries), per_row, grouped(options.dimension));
  fmt::print("{}: {} rows\n{}: {} rows (held out)\n", options.train_path, grouped(summary->train_rows),
             options.held_out_path, grouped(summary->held_out_rows));
  return {};
}

Command add_debian(CLI::App& data) {
  auto flags = std::make_shared<DebianFlags>();
  CLI::App* app =
      program::add_command(data, "debian", "from the package index of this Debian machine: is a package a library?");
  app->option_defaults()->group("Output");
  app->add_option("-o,--output", flags->options.train_path, "training file; .gz: compressed")
      ->required()
      ->type_name("FILE")
      ->check(not_empty());
  app->add_option("--test-output", flags->options.held_out_path,
                  "file of the held-out rows (default: OUTPUT with .test before .svm)")
      ->type_name("FILE")
      ->check(not_empty());
  app->add_flag("--json", flags->json, "one JSON object as the last line");
  app->option_defaults()->group("Data");
  app->add_option("--input", flags->options.input, "a saved `apt-cache dumpavail` instead of running it")
      ->type_name("FILE")
      ->check(not_empty());
  app->add_option("--dimension", flags->options.dimension, "number of features that hashing makes")
      ->capture_default_str()
      ->check(in_range(uint64_t{1}, kDimensionMax - 1));
  app->add_option("--test-share", flags->options.held_out_share, "share of packages held out, by hash of the name")
      ->capture_default_str()
      ->check(in_range(0.0, 0.9));
  app->footer(
      "The label is +1 where the Section is libs, libdevel or oldlibs. Features are the hashed character 3- to 5-grams "
      "of\n"
      "the description alone, rows have norm 1.\n\n"
      "Examples:\n"
      "  millrace data debian -o debian.svm.gz        # writes debian.svm.gz and debian.test.svm.gz\n"
      "  millrace data debian -o small.svm --dimension 65536 --input packages.txt");
  return {app, [flags] { return run_debian(*flags); }};
}

struct SyntheticFlags {
  training::SyntheticDataOptions options;
  std::string like = "url";
  bool json = false;
};

Outcome run_synthetic(SyntheticFlags& flags) {
  training::SyntheticDataOptions& options = flags.options;
  const auto shape = training::synthetic_shape(flags.like);
  if (!shape) return fail_with(shape.error());
  options.shape = *shape;
  if (Outcome outcome = complete_paths(options.train_path, options.held_out_path); !outcome) return outcome;
  program::Progress progress("making " + options.train_path, "rows");
  options.progress = progress.callback();
  const auto summary = training::make_synthetic_data(options);
  if (!summary) return fail_with(summary.error());
  const double per_row = static_cast<double>(summary->entries) / static_cast<double>(options.rows);
  if (flags.json) {
    fmt::print("{}\n", program::json_text(nlohmann::json{{"data", "synthetic"},
                                                         {"like", flags.like},
                                                         {"train", options.train_path},
                                                         {"held_out", options.held_out_path},
                                                         {"dimension", options.shape.dimension},
                                                         {"support", options.shape.support},
                                                         {"features", summary->features},
                                                         {"train_rows", summary->train_rows},
                                                         {"held_out_rows", summary->held_out_rows},
                                                         {"entries_per_row", per_row}}));
    return {};
  }
  fmt::print("like {}: {:.0f} features a row; {} of {} occur\n", flags.like, per_row, grouped(summary->features),
             grouped(options.shape.dimension));
  fmt::print("{}: {} rows\n{}: {} rows (held out)\n", options.train_path, grouped(summary->train_rows),
             options.held_out_path, grouped(summary->held_out_rows));
  return {};
}

Command add_synthetic(CLI::App& data) {
  auto flags = std::make_shared<SyntheticFlags>();
  CLI::App* app = program::add_command(data, "synthetic", "rows with the statistics of the URL and Webspam sets");
  app->option_defaults()->group("Output");
  app->add_option("-o,--output", flags->options.train_path, "training file; .gz: compressed")
      ->required()
      ->type_name("FILE")
      ->check(not_empty());
  app->add_option("--test-output", flags->options.held_out_path,
                  "file of the held-out rows (default: OUTPUT with .test before .svm)")
      ->type_name("FILE")
      ->check(not_empty());
  app->add_flag("--json", flags->json, "one JSON object as the last line");
  app->option_defaults()->group("Data");
  app->add_option("--like", flags->like,
                  "url (3.2 M features, 116 a row) or webspam (16.6 M features, of which 681 k occur, 3,730 a row)")
      ->capture_default_str()
      ->check(one_of({"url", "webspam"}));
  app->add_option("--rows", flags->options.rows, "rows in both files together")
      ->required()
      ->check(in_range(uint64_t{2}, uint64_t{1} << 32));
  app->add_option("--seed", flags->options.seed, "equal seeds give equal files")
      ->capture_default_str()
      ->check(in_range(uint64_t{0}, std::numeric_limits<uint64_t>::max()));
  app->add_option("--test-share", flags->options.held_out_share, "share of rows held out")
      ->capture_default_str()
      ->check(in_range(0.0, 0.9));
  app->footer(
      "Features are drawn by popularity (a power law); labels come from a sparse linear model with noise. The law's\n"
      "exponent decides how a sum of rows fills in; webspam's is fitted, not measured "
      "(worker/training/data/DESIGN.md).\n\n"
      "Examples:\n"
      "  millrace data synthetic --like url --rows 20000 -o url.svm.gz\n"
      "  millrace data synthetic --like webspam --rows 1000 --test-share 0.2 --seed 7 -o webspam.svm");
  return {app, [flags] { return run_synthetic(*flags); }};
}

}  // namespace

Command add_data_command(CLI::App& root) {
  CLI::App* app = root.add_subcommand("data", "makes training data: LIBSVM text, plain or .gz");
  app->require_subcommand(1);
  const Command debian = add_debian(*app);
  const Command synthetic = add_synthetic(*app);
  app->footer("Each source has its own help: millrace data debian --help");
  return {app, [debian, synthetic] { return debian.app->parsed() ? debian.run() : synthetic.run(); }};
}

}  // namespace millrace::cli
