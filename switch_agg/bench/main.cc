#include <fmt/format.h>

#include <string>
#include <variant>

#include "monitoring/open_files.h"
#include "monitoring/standard_streams.h"
#include "switch_agg/bench/aggregator_bench.h"
#include "switch_agg/bench/bench_options.h"
#include "switch_agg/bench/load_generator.h"
#include "switch_agg/process/command_line.h"

namespace {

constexpr const char* kBenchName = "millrace-switch-bench";

int report_error(const millrace::Error& error) {
  millrace::switch_agg::say(kBenchName, error.message);
  return millrace::switch_agg::exit_code_of(error.code);
}

int print_report(const std::string& report) {
  fmt::print("{}\n", report);
  millrace::switch_agg::flush(kBenchName);
  return 0;
}

int traffic(const millrace::switch_agg::BenchOptions& options) {
  const auto report = millrace::switch_agg::run_bench(options);
  if (!report) return report_error(report.error());
  return print_report(options.json ? millrace::switch_agg::bench_json(options, *report)
                                   : millrace::switch_agg::bench_text(options, *report));
}

int load(const millrace::switch_agg::LoadOptions& options) {
  const auto report = millrace::switch_agg::run_load(options);
  if (!report) return report_error(report.error());
  return print_report(millrace::switch_agg::load_json(options, *report));
}

}  // namespace

int main(int argc, char** argv) {
  millrace::monitoring::hold_standard_streams();
  millrace::monitoring::raise_open_file_limit();
  const auto parsed = millrace::switch_agg::parse_bench_options(argc, argv);
  if (const int* code = std::get_if<int>(&parsed)) return *code;
  if (const auto* options = std::get_if<millrace::switch_agg::BenchOptions>(&parsed)) return traffic(*options);
  return load(std::get<millrace::switch_agg::LoadOptions>(parsed));
}
