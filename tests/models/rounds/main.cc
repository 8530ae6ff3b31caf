#include <fmt/format.h>

#include <cstdio>
#include <ctime>

#include "tests/models/rounds/checker.h"

namespace {

using millrace::model::Config;
using millrace::model::Report;
using millrace::model::Verdict;

void print(const Config& config, const Report& report) {
  const double seconds = static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
  fmt::print("{}\n", millrace::model::summary_of(config));
  if (config.walks > 0)
    fmt::print("{} walks, {} moves, {} completed the job, {:.1f} s: {}\n", config.walks, report.transitions,
               report.completed, seconds, report.verdict == Verdict::kClean ? "CLEAN" : "NOT CLEAN");
  else
    fmt::print("{} states, {} transitions, depth {}, {:.1f} s: ", report.states, report.transitions, report.depth,
               seconds);
  if (config.walks == 0) {
    switch (report.verdict) {
      case Verdict::kClean: fmt::print("CLEAN, exhausted{}\n", config.progress ? ", nothing stuck" : ""); break;
      case Verdict::kUnfinished: fmt::print("CLEAN SO FAR, bound reached\n"); break;
      case Verdict::kStuck: fmt::print("STUCK\n"); break;
      case Verdict::kViolation: fmt::print("VIOLATION\n"); break;
    }
  }
  if (report.trace.empty() || report.sentence.empty()) return;
  fmt::print("{} ({} moves)\n", report.sentence, report.trace.size());
  if (config.trace) fmt::print("{}", millrace::model::text_of(config, report.trace));
}

}  // namespace

int main(int count, char** words) {
  const std::vector<std::string> arguments(words + 1, words + count);
  if (std::ranges::find(arguments, "--help") != arguments.end()) {
    fmt::print("{}", millrace::model::help());
    return 0;
  }
  const auto config = millrace::model::read_options(arguments);
  if (!config) {
    fmt::print(stderr, "rounds_model: {}\n", config.error());
    return 2;
  }
  const Report report = config->walks > 0 ? millrace::model::walk(*config) : millrace::model::search(*config);
  print(*config, report);
  return report.verdict == config->expected ? 0 : 1;
}
