#include <fmt/core.h>

#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/base/allocator.h"
#include "kernels/base/units.h"
#include "monitoring/command_line/quantity_flags.h"
#include "worker/bench/bench_command.h"
#include "worker/bench/commands.h"
#include "worker/bench/kernels/codec_bench.h"
#include "worker/bench/kernels/codec_explain.h"
#include "worker/bench/kernels/codec_hostile.h"
#include "worker/bench/kernels/reduce_bench.h"
#include "worker/bench/kernels/select_bench.h"
#include "worker/bench/rounds/session_core_bench.h"
#include "worker/program/flag_range.h"
#include "worker/program/program.h"

namespace millrace::bench {

using program::Command;
using program::fail_with;
using program::in_range;

namespace {

/// Flags of a kernel's benchmark, and whether to print JSON.
template <typename Options>
struct BenchFlags {
  Options options;
  bool json = false;
};

program::Outcome print_bench_result(const nlohmann::json& result, bool json) {
  print_result(result, {json});
  return {};
}

/// A benchmark of a kernel: the flags that all of them have, and the call.
template <typename Options>
CLI::App* add_kernel_bench(CLI::App& root, const std::string& name, const std::string& summary, uint64_t n_max,
                           const std::shared_ptr<BenchFlags<Options>>& flags) {
  CLI::App* app = program::add_command(root, name, summary);
  app->option_defaults()->group("Data");
  app->add_option("--dimension", flags->options.n, "dimension")
      ->capture_default_str()
      ->check(in_range(uint64_t{1}, n_max));
  app->add_option("--density", flags->options.density, "entries over dimension")
      ->capture_default_str()
      ->check(in_range(1e-9, 1.0));
  app->option_defaults()->group("Measurement");
  app->add_option("--repeats", flags->options.repeats, "repetitions of which the times are medians")
      ->capture_default_str()
      ->check(in_range(1, 1000));
  app->add_option("--seed", flags->options.seed, "of the data")
      ->capture_default_str()
      ->check(in_range(uint64_t{0}, std::numeric_limits<uint64_t>::max()));
  app->option_defaults()->group("Output");
  app->add_flag("--json", flags->json, "one JSON object as the last line");
  app->option_defaults()->group("Data");
  return app;
}

Command add_select(CLI::App& root) {
  auto flags = std::make_shared<BenchFlags<SelectBenchOptions>>();
  CLI::App* app =
      add_kernel_bench(root, "select", "selections against one read pass over the array", uint64_t{1} << 32, flags);
  CLI::Option* trace =
      app->add_option("--trace", flags->options.trace,
                      "the gradients of a file, in place of Gaussian values: n entries of it, from the "
                      "start again where it has fewer")
          ->type_name("FILE")
          ->check(program::not_empty());
  app->add_option("--worker", flags->options.worker, "of the trace")
      ->capture_default_str()
      ->check(in_range(0u, std::numeric_limits<uint32_t>::max()))
      ->needs(trace);
  app->footer(
      "ratio_to_read_pass compares with max|x| over the same array in the same run: single times on a shared machine\n"
      "mean little, ratios do. A trace is a file of numpy.savez with an array 'accumulator', f32 [workers, n].\n\n"
      "Examples:\n"
      "  millrace-bench select --dimension 16777216 --density 0.01 --json\n"
      "  millrace-bench select --trace lstm-step100.npz --worker 0 --density 0.001 --json");
  return {app, [flags]() -> program::Outcome {
            const auto result = bench_select(flags->options);
            if (!result) return fail_with(result.error());
            return print_bench_result(*result, flags->json);
          }};
}

/// Flags of `codec` that concern codec auto.
struct AutoFlags {
  bool explain = false;
  bool grid = false;
  CodecExplainOptions options;
};

void add_auto_flags(CLI::App& app, AutoFlags& flags) {
  app.option_defaults()->group("Codec auto");
  CLI::Option* explain =
      app.add_flag("--explain", flags.explain, "what codec auto would choose, and why: all candidates");
  app.add_option("--codec", flags.options.codec, "auto, or auto+VALUE")->capture_default_str()->needs(explain);
  monitoring::add_rate(app, "--link-rate", flags.options.link_bits_per_s, "of the link", 1)
      ->default_str(rate_text(flags.options.link_bits_per_s))
      ->needs(explain);
  app.add_flag_callback(
         "--clustered", [&flags] { flags.options.clustering = Clustering::kClustered; },
         "draw indices that lie in clusters")
      ->needs(explain);
  app.add_flag("--auto-grid", flags.grid, "codec auto against the best forced choice, over sizes, densities and rates")
      ->excludes(explain);
}

program::Outcome bench_auto(AutoFlags flags, const CodecBenchOptions& common, bool json) {
  keep_freed_memory();
  if (flags.grid) return print_bench_result(codec_auto_grid({.repeats = common.repeats, .seed = common.seed}), json);
  flags.options.n = common.n;
  flags.options.density = common.density;
  flags.options.repeats = common.repeats;
  flags.options.seed = common.seed;
  flags.options.trace = common.trace;
  flags.options.worker = common.worker;
  const auto result = explain_codec(flags.options);
  if (!result) return fail_with(result.error());
  if (!json) fmt::print("{}\n\n", result->at("why").get<std::string>());
  return print_bench_result(*result, json);
}

Command add_codec(CLI::App& root) {
  auto flags = std::make_shared<BenchFlags<CodecBenchOptions>>();
  auto of_auto = std::make_shared<AutoFlags>();
  CLI::App* app =
      add_kernel_bench(root, "codec", "index and value codecs: size against entropy, speed", uint64_t{1} << 28, flags);
  CLI::Option* trace =
      app->add_option("--trace", flags->options.trace,
                      "the largest entries of gradients in a file, in place of drawn ones of --dimension")
          ->type_name("FILE")
          ->check(program::not_empty());
  trace->excludes("--dimension");
  app->add_option("--worker", flags->options.worker, "of the trace")
      ->capture_default_str()
      ->check(in_range(0u, std::numeric_limits<uint32_t>::max()))
      ->needs(trace);
  add_auto_flags(*app, *of_auto);
  auto hostile = std::make_shared<bool>(false);
  app->add_flag("--hostile", *hostile, "time and memory of decoding malformed bytes, beside good ones")
      ->excludes(trace);
  app->footer(
      "entropy_bits_per_index is log2 of binomial(n, k), over k: no lossless code of uniform indices is smaller.\n"
      "A trace is a file of numpy.savez with an array 'accumulator', f32 [workers, n]. over_rice_blocks compares with "
      "Rice\n"
      "coding with the best parameter for every block of 128 gaps. Rows of kind method are the codecs of train "
      "--method, "
      "all\n"
      "on the same entries, with tables and the container's header.\n\n"
      "Examples:\n"
      "  millrace-bench codec --dimension 16777216 --density 0.01 --json\n"
      "  millrace-bench codec --trace cnn-step300.npz --worker 0 --density 0.001 --json\n"
      "  millrace-bench codec --explain --link-rate 100mbit --density 0.01\n"
      "  millrace-bench codec --hostile --dimension 1048576 --json");
  return {app, [flags, of_auto, hostile]() -> program::Outcome {
            if (of_auto->explain || of_auto->grid) return bench_auto(*of_auto, flags->options, flags->json);
            const auto result = *hostile ? bench_codec_hostile(flags->options) : bench_codec(flags->options);
            if (!result) return fail_with(result.error());
            return print_bench_result(*result, flags->json);
          }};
}

Command add_reduce(CLI::App& root) {
  auto flags = std::make_shared<BenchFlags<ReduceBenchOptions>>();
  CLI::App* app =
      add_kernel_bench(root, "reduce", "sums of sparse streams, against a pass over them", uint64_t{1} << 32, flags);
  app->add_option("--workers", flags->options.workers, "streams that are added up")
      ->capture_default_str()
      ->check(in_range(1, 1024));
  app->footer(
      "Examples:\n"
      "  millrace-bench reduce --dimension 16777216 --density 0.01 --workers 4 --json\n"
      "  millrace-bench reduce --workers 16 --repeats 3");
  return {app, [flags] { return print_bench_result(bench_reduce(flags->options), flags->json); }};
}

Command add_worker(CLI::App& root) {
  auto flags = std::make_shared<BenchFlags<WorkerBenchOptions>>();
  CLI::App* app =
      add_kernel_bench(root, "worker", "a worker's rounds without sockets, against a pass over the pushed values",
                       uint64_t{1} << 32, flags);
  app->get_option("--dimension")->check(in_range(uint64_t{64}, uint64_t{1} << 32));
  app->get_option("--density")->check(in_range(1e-9, 0.25));
  app->add_option("--parts-per-shard", flags->options.parts, "parts of the tensor, on one shard")
      ->capture_default_str()
      ->check(in_range(1, 64));
  app->footer(
      "A round is push, select and code, the updates of all parts, and the return of entries to the residual. The "
      "updates are made\n"
      "beforehand: carrying all that was sent, or every second entry, so that twice as many are sent as are pushed.\n"
      "Rows dense_...: dense pushes of which top-k selects the density, with one and two threads in turns.\n\n"
      "Examples:\n"
      "  millrace-bench worker --dimension 16777216 --density 0.01 --json\n"
      "  millrace-bench worker --parts-per-shard 9 --repeats 3");
  return {app, [flags] { return print_bench_result(bench_worker(flags->options), flags->json); }};
}

}  // namespace

std::vector<Command> add_kernel_benches(CLI::App& root) {
  return {add_select(root), add_codec(root), add_reduce(root), add_worker(root)};
}

}  // namespace millrace::bench
