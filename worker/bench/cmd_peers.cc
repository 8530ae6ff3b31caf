#include <fmt/format.h>

#include <cmath>
#include <exception>
#include <fstream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/allocator.h"
#include "kernels/base/clock.h"
#include "monitoring/command_line/quantity_flags.h"
#include "monitoring/standard_streams.h"
#include "worker/bench/bench_command.h"
#include "worker/bench/commands.h"
#include "worker/bench/peers/peer_bench.h"
#include "worker/program/flag_range.h"
#include "worker/program/mpi/mpi_end.h"
#include "worker/program/program.h"

namespace millrace::bench {

using program::end_job;
using program::fail_with;
using program::in_range;
using program::one_of;
using program::Outcome;

namespace {

constexpr const char* kPeersCommand = "millrace-bench peers";

struct PeerBenchFlags {
  PeerBenchOptions options;
  double density = 0.01;
  std::string distribution = "uniform";
  std::string codec;
  std::string quantizer;
  std::string threads = "serialized";
  std::string compute = "cores";
  std::string boundaries = "averaged";
  std::string cases;
  uint64_t shared_bytes_max = peer::MpiOptions{}.shared_bytes_max;
  bool overlap = false;
  bool without_dense = false;
  bool json = false;
};

/// Returns whether a value codec bounds the error on each value by numbers in its code: good enough for sums.
bool has_stated_bound(ValueCodecId codec) { return codec == ValueCodecId::kQsgd; }

/// Errors   invalid_argument: words that mean nothing, and what no algorithm would take.
Result<PeerBenchOptions> bench_options_of(const PeerBenchFlags& flags) {
  PeerBenchOptions options = flags.options;
  const double count = std::round(static_cast<double>(options.inputs.n) * flags.density);
  options.inputs.count = std::clamp<uint64_t>(static_cast<uint64_t>(count), 1, options.inputs.n);
  options.inputs.shape = *input_shape_of(flags.distribution);
  options.boundaries = peer::boundaries_of(flags.boundaries);
  if (flags.without_dense) options.dense = DenseRow::kLeftOut;
  if (flags.overlap) options.overlap = flags.compute == "cores" ? ComputeWhere::kCores : ComputeWhere::kElsewhere;
  const auto read = [](std::string_view flag, const std::string& text, std::optional<CodecSpec>& into) -> Status {
    if (text.empty() || text == "raw") return {};
    const Result<CodecSpec> spec = codec_from_text(text);
    if (!spec) return fail(spec.error().code, fmt::format("{}: {}", flag, spec.error().message));
    if (spec->automatic)
      return fail(ErrorCode::kInvalidArgument, fmt::format("{}: peers have no automatic codec yet: name one", flag));
    into = *spec;
    return {};
  };
  if (Status status = read("--codec", flags.codec, options.codec); !status) return std::unexpected(status.error());
  if (Status status = read("--quantizer", flags.quantizer, options.quantizer); !status)
    return std::unexpected(status.error());
  if (flags.quantizer.empty() && options.codec && has_stated_bound(options.codec->value)) {
    options.quantizer = options.codec;
  }
  const Result<std::vector<peer::AlgorithmId>> ids = algorithms_of(options);
  if (!ids) return std::unexpected(ids.error());
  const peer::AllreduceSettings settings = settings_of(options);
  for (const peer::AlgorithmId id : *ids) {
    if (const auto made = peer::make_allreduce(id, settings); !made) return std::unexpected(made.error());
  }
  return options;
}

/// One set of inputs and algorithms to measure.
struct BenchCase {
  std::string line;  ///< of --cases; empty: the command line's own
  PeerBenchFlags flags;
  PeerBenchOptions options;
};

/// Measures one case and prints its result on rank 0. A failure ends the job.
Outcome run_case(peer::MpiJob& job, const BenchCase& one) {
  const bool speaks = job.rank() == 0;
  const SayProgress say = [speaks](const std::string& line) {
    if (speaks) monitoring::say(fmt::format("{}: {}", kPeersCommand, line));
  };
  const auto communicator = peer::MpiCommunicator::over_world({.shared_bytes_max = one.flags.shared_bytes_max});
  if (!communicator)
    end_job(job, kPeersCommand, program::failure_of(communicator.error(), program::ErrorPlace::kRanks));
  Result<nlohmann::json> result = fail(ErrorCode::kInternal, "");
  try {
    result = one.options.overlap ? bench_overlap(job, **communicator, one.options, say)
                                 : bench_peers(job, **communicator, one.options, say);
  } catch (const std::exception& exception) {
    result = fail(ErrorCode::kInternal, exception.what());
  }
  if (!result) end_job(job, kPeersCommand, program::failure_of(result.error(), program::ErrorPlace::kRanks));
  if (!speaks) return {};
  const peer::SharedBodiesCounters shared = (*communicator)->counters();
  (*result)["shared_bodies"] = {
      {"in_place", shared.in_place}, {"copied", shared.copied}, {"without_room", shared.full}};
  if (!one.line.empty()) (*result)["case"] = one.line;
  if (!one.flags.json && !one.line.empty()) fmt::print("{}:\n", one.line);
  print_result(*result, {one.flags.json});
  for (const auto& row : result->at("rows")) {
    if (!row.value("correct", true)) {
      return fail_with(program::ExitCode::kInternal, row.at("algorithm").get<std::string>() + " has a wrong result");
    }
  }
  return {};
}

void add_case_flags(CLI::App& app, PeerBenchFlags& flags);

/// Reads the cases of --cases: the command line's options, and those of a line each. Skips empty lines, and lines that
/// begin with #.
/// Errors   io; invalid_argument: a line whose options are wrong, and a file without cases.
Result<std::vector<BenchCase>> read_cases(const PeerBenchFlags& flags) {
  std::ifstream file(flags.cases);
  if (!file) return fail(ErrorCode::kIo, "cannot read " + flags.cases);
  std::vector<BenchCase> cases;
  std::string line;
  for (size_t number = 1; std::getline(file, line); ++number) {
    if (line.empty() || line.front() == '#') continue;
    BenchCase one{line, flags, {}};
    CLI::App app;
    add_case_flags(app, one.flags);
    const auto where = [&](const std::string& what) {
      return fail(ErrorCode::kInvalidArgument, fmt::format("{}:{}: {}", flags.cases, number, what));
    };
    try {
      app.parse(line);
    } catch (const CLI::ParseError& error) {
      return where(error.what());
    }
    Result<PeerBenchOptions> options = bench_options_of(one.flags);
    if (!options) return where(options.error().message);
    one.options = *options;
    cases.push_back(std::move(one));
  }
  if (cases.empty()) return fail(ErrorCode::kInvalidArgument, flags.cases + " has no cases");
  return cases;
}

Result<std::vector<BenchCase>> cases_of(const PeerBenchFlags& flags) {
  if (!flags.cases.empty()) return read_cases(flags);
  Result<PeerBenchOptions> options = bench_options_of(flags);
  if (!options) return std::unexpected(options.error());
  return std::vector<BenchCase>{{"", flags, *options}};
}

Outcome run_bench(const PeerBenchFlags& flags) {
  const Result<std::vector<BenchCase>> cases = cases_of(flags);
  if (!cases) return fail_with(cases.error());
  // Vectors of one algorithm, up to the size that the function keeps, are not given back in the middle of another's
  // time.
  keep_freed_memory();
  auto job = peer::MpiJob::begin(peer::mpi_threads_of(flags.threads));
  if (!job) return fail_with(job.error());
  for (const BenchCase& one : *cases) {
    if (Outcome outcome = run_case(**job, one); !outcome) return outcome;
  }
  return {};
}

/// The options that a line of --cases may have, too.
void add_case_flags(CLI::App& app, PeerBenchFlags& flags) {
  auto& options = flags.options;
  app.option_defaults()->group("Data");
  app.add_option("--dimension", options.inputs.n, "dimension")
      ->capture_default_str()
      ->check(in_range(uint64_t{1}, uint64_t{1} << 31));
  app.add_option("--density", flags.density, "entries of each rank, over the dimension")
      ->capture_default_str()
      ->check(in_range(1e-9, 1.0));
  app.option_defaults()->group("Collectives");
  app.add_option("--algorithm", options.algorithms, "one, or several with commas between; else all")->delimiter(',');
  app.add_option("--codec", flags.codec,
                 "of what ranks contribute (raw: none); sums have its index codec, losslessly, but for --quantizer");
  app.add_option("--quantizer", flags.quantizer,
                 "of sums on their way to all ranks (dsar_split_allgather, ssar_split_allgather): raw+qsgd4; raw: none "
                 "(default: the codec, where its values are qsgd)");
  app.add_option("--k", options.k, "entries that selecting algorithms keep; 0: as many as each rank has")
      ->check(in_range(uint64_t{0}, uint64_t{1} << 31));
  std::vector<std::string> shapes(input_shape_names().begin(), input_shape_names().end());
  app.option_defaults()->group("Data");
  app.add_option("--distribution", flags.distribution, "where the entries lie")
      ->capture_default_str()
      ->check(one_of(shapes));
  app.option_defaults()->group("Collectives");
  app.add_option("--boundaries", flags.boundaries,
                 "oktopk: of the ranks' regions; pooled where entries lie in other places on every rank")
      ->capture_default_str()
      ->check(one_of(peer::boundaries_names()));
  app.option_defaults()->group("Measurement");
  app.add_option("--repeats", options.repeats, "measured repetitions; each step has one of its algorithm before it")
      ->capture_default_str()
      ->check(in_range(1, 1'000'000));
  app.add_option("--warmup", options.warmup, "repetitions before them")
      ->capture_default_str()
      ->check(in_range(0, 10'000));
  app.add_option("--seed", options.inputs.seed, "of the contributions")
      ->capture_default_str()
      ->check(in_range(uint64_t{0}, std::numeric_limits<uint64_t>::max()));
  app.option_defaults()->group("Network");
  monitoring::add_duration(app, "--rank-silence", monitoring::in_ms(options.silence_ms_max),
                           "a rank that does not answer for this time counts as dead",
                           {.least = kNsPerMs, .most = 3'600 * kNsPerS});
  monitoring::add_size(app, "--shared-bytes", flags.shared_bytes_max,
                       "memory of each rank that ranks of one machine look into instead of sending; 0B: none", 0,
                       uint64_t{1} << 40);
  app.option_defaults()->group("Measurement");
  app.add_flag("--without-dense", flags.without_dense, "leaves MPI_Allreduce of the dense vector out");
  CLI::Option* overlap = app.add_flag("--overlap", flags.overlap, "measures how much of it computation hides");
  app.add_option("--compute-on", flags.compute,
                 "place of the computation: the cores, or an accelerator elsewhere (a rank blocks on it)")
      ->capture_default_str()
      ->check(one_of({"cores", "elsewhere"}))
      ->needs(overlap);
  monitoring::add_size(
      app, "--bucket-bytes", options.bucket_bytes,
      "a dense gradient of 32 layers is also summed in buckets of at least this size, while the layers "
      "that follow are computed",
      1, uint64_t{1} << 40)
      ->needs(overlap);
}

void add_flags(CLI::App& app, PeerBenchFlags& flags) {
  flags.options.inputs.n = uint64_t{1} << 24;
  add_case_flags(app, flags);
  app.add_option(
         "--cases", flags.cases,
         "a file with a case a line, options of this command: measures them one after the other in one start of "
         "MPI; the command line's options hold where a line does not say otherwise")
      ->type_name("FILE")
      ->check(program::not_empty());
  app.option_defaults()->group("Network");
  app.add_option("--mpi-threads", flags.threads, "MPI's thread level")
      ->capture_default_str()
      ->check(one_of({"single", "funneled", "serialized", "multiple"}));
  app.option_defaults()->group("Output");
  app.add_flag("--json", flags.json, "one JSON object as the last line, of rank 0; with --cases, a line each");
}

}  // namespace

program::Command add_peers_bench(CLI::App& root) {
  auto flags = std::make_shared<PeerBenchFlags>();
  CLI::App* app = program::add_command(root, "peers", "allreduces over MPI, against MPI_Allreduce of the dense vector");
  add_flags(*app, *flags);
  app->footer(
      "Run it under mpirun. Every round has each algorithm once; a round's time is that of the slowest rank, from a "
      "barrier on.\n"
      "correct: all ranks have the same bits, and they are the sum of the contributions; where an algorithm keeps "
      "the\n"
      "largest entries or a codec loses something, sum and all entries that the ranks keep together are the "
      "contributions.\n\n"
      "Examples:\n"
      "  mpirun -n 8 --oversubscribe --mca mpi_yield_when_idle 1 millrace-bench peers --dimension 16777216 --density "
      "0.00781 "
      "--json\n"
      "  mpirun -n 2 millrace-bench peers --algorithm ssar_recursive_doubling --codec gap+qsgd4\n"
      "  deploy/netlab.sh mpirun --ranks 4 --link-rate 1gbit -- millrace-bench peers --dimension 16777216 --density "
      "0.00781\n"
      "  mpirun -n 4 millrace-bench peers --overlap --compute-on elsewhere --json\n"
      "  printf '%s\\n' '--density 0.001' '--density 0.01 --codec gap+raw' > cases.txt\n"
      "  mpirun -n 4 millrace-bench peers --dimension 1000000 --cases cases.txt --json\n\n" +
      program::exit_code_table());
  return {app, [flags] { return run_bench(*flags); }};
}

}  // namespace millrace::bench
