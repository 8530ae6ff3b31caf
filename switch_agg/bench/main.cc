#include <variant>

#include "monitoring/program.h"
#include "switch_agg/bench/aggregator_bench.h"
#include "switch_agg/bench/bench_options.h"
#include "switch_agg/bench/load_generator.h"

namespace {

using millrace::switch_agg::kBenchProgram;

int traffic(const millrace::switch_agg::BenchOptions& options) {
  const auto report = millrace::switch_agg::run_bench(options);
  if (!report) return kBenchProgram.report_error(report.error());
  kBenchProgram.print_line(options.json ? millrace::switch_agg::bench_json(options, *report)
                                        : millrace::switch_agg::bench_text(options, *report));
  return 0;
}

int load(const millrace::switch_agg::LoadOptions& options) {
  const auto report = millrace::switch_agg::run_load(options);
  if (!report) return kBenchProgram.report_error(report.error());
  kBenchProgram.print_line(millrace::switch_agg::load_json(options, *report));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  millrace::monitoring::begin_program();
  const auto parsed = millrace::switch_agg::parse_bench_options(argc, argv);
  if (const int* code = std::get_if<int>(&parsed)) return *code;
  if (const auto* options = std::get_if<millrace::switch_agg::BenchOptions>(&parsed)) return traffic(*options);
  return load(std::get<millrace::switch_agg::LoadOptions>(parsed));
}
